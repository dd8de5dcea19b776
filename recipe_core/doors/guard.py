"""The rules that every request passes before any door, and the faults that are our own.

Whom it was meant for (its Host, against DNS rebinding), who sends it (the token, where one is
set), how much there is already (pages, uploads), and the headers that tell browsers what a page may
do.
"""

from __future__ import annotations

import base64
import hashlib
import ipaddress
import logging
import re
import secrets
import socket
import time
from collections.abc import Callable
from functools import cache
from importlib.resources import files

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import HTTPConnection
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from recipe_core.base.errors import RecipeError
from recipe_core.base.resources import shipped_path
from recipe_core.doors.moved import MOVED
from recipe_core.doors.page_scripts import PAGE_SCRIPTS
from recipe_core.doors.sessions import PATH as SIGN_IN
from recipe_core.doors.sessions import Sessions, Upload, Visitors, address_of
from recipe_core.doors.settings import ServerSettings, variable

log = logging.getLogger("recipe_builder")


def note_fault(error: Exception, where: str) -> str:
    """Log an unexpected error; the number under which the log has it."""
    number = secrets.token_hex(4)
    log.error("error %s in %s", number, where, exc_info=error)
    return number


class FaultError(RecipeError):
    """An unexpected error as its caller hears of it: without a word of what it was."""

    code = "server"


def tell_fault(error: Exception, where: str) -> FaultError:
    """Log an unexpected error; what the one who asked is told."""
    number = note_fault(error, where)
    return FaultError(
        "something failed, and it is not your fault.",
        hint=f"The server's log has the details under {number}.",
    )


class FaultsTold:
    """Answers requests with JSON whose handling fails unexpectedly.

    Args:
        app: what handles them.
        where: its name in the log.
    """

    def __init__(self, app: ASGIApp, where: str) -> None:
        self._app, self._where = app, where

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand a request on."""
        begun = False

        async def sending(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self._app(scope, receive, sending)
        except Exception as error:
            if begun or scope["type"] != "http":
                raise
            await JSONResponse(tell_fault(error, self._where).to_json(), 500)(scope, receive, send)


# Paths for anybody: is the server running, and the form itself.
OPEN_PATHS = ("/_stcore/health", SIGN_IN)
METRICS = "/_stcore/metrics"
UPLOADS = "/_stcore/upload_file/"
# Seconds after which a reader for whom there is no room may try again.
FULL_S = 30
# Doors of programs, which send a token instead of signing in.
MACHINES = ("/api/", "/mcp")
# Paths of these doors; one with a line end would pass for another path, or a page.
_DOORS = re.compile(r"/api/v1/[^\x00-\x1f\x7f]*|/mcp")
# Folders of what Streamlit's frontend asks for. It answers any other path with the page.
_FOLDERS = ("_stcore", "static", "media", "component")
# Files of the frontend beside them.
_FILES = ("favicon.png", "manifest.json", "index.html")
# Answers of programs' doors are documents, not pages.
API_POLICY = "default-src 'none'; frame-ancestors 'none'"

_INLINE_SCRIPT = re.compile(r"<script>(.*?)</script>", re.DOTALL)
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
}


class Guard:
    """The outermost middleware.

    Args:
        app: what it protects.
        settings: who may call the server.
        clock: seconds that only grow.
    """

    def __init__(
        self,
        app: ASGIApp,
        settings: ServerSettings,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._app, self._settings = app, settings
        self._machines = FaultsTold(app, "a door of programs")
        self._visitors = Visitors(settings.token, clock) if settings.token else None
        self._sessions = Sessions(settings.sessions, clock)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer what may not pass, hand on the rest."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        request = HTTPConnection(scope)
        answer = self._refusal(request)
        sending = _with_headers(scope["path"], send)
        if answer is None and self._visitors and scope["path"] == SIGN_IN:
            answer = await self._visitors.answer(scope, receive)
        if answer is None:
            await self._pass(request, receive, sending)
        elif scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1008, "reason": "refused"})
        else:
            await answer(scope, receive, sending)

    async def _pass(self, request: HTTPConnection, receive: Receive, send: Send) -> None:
        """Hand a request on; a page and an upload take room until they end."""
        scope, path = request.scope, request.scope["path"]
        if path.startswith(MACHINES):
            await self._machines(scope, receive, send)
        elif scope["type"] == "websocket":
            with self._sessions.opened(address_of(request)):
                await self._app(scope, receive, send)
        elif path.startswith(UPLOADS) and scope["method"] == "PUT":
            session, _, name = path.removeprefix(UPLOADS).partition("/")
            upload = Upload(session, name, int(request.headers["content-length"][:20]))
            with self._sessions.uploading(upload, address_of(request)) as refusal:
                if refusal:
                    answer = _problem_response(413, refusal, "Remove a file, or reload the page.")
                    await answer(scope, receive, send)
                else:
                    await self._app(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _refusal(self, request: HTTPConnection) -> Response | None:
        """Say why a request may not pass; None where it may."""
        scope, settings = request.scope, self._settings
        if (host := _foreign_host(request.headers, settings.hosts, _is_local(scope))) is not None:
            return _problem_response(
                421,
                f"this server is not called {host!r}.",
                "Call it by its address, or allow the name where it is started: "
                f"recipe serve --allow-host NAME (or {variable('hosts')}).",
            )
        if not settings.token and not settings.no_auth and not _is_local(scope):
            return _problem_response(
                403,
                "this server answers the network only with a token.",
                f"Start it with {variable('token')} set, or with --no-auth.",
            )
        if scope["path"] == METRICS and not settings.metrics:
            return _problem_response(404, "metrics are off.", f"Set {variable('metrics')}=1.")
        return self._stranger(request) or self._misfit(request)

    def _stranger(self, request: HTTPConnection) -> Response | None:
        """The answer to somebody who has neither token nor cookie; None for anybody else."""
        path = request.scope["path"]
        if self._visitors is None or path in OPEN_PATHS:
            return None
        machine = path.startswith(MACHINES) or path == METRICS
        if not machine and self._visitors.signed_in(request):
            return None
        if "authorization" in request.headers:
            if wait_s := self._visitors.wait_s(request):
                return _problem_response(
                    429,
                    "too many wrong tokens came from your address.",
                    f"Try again in {wait_s} s.",
                    {"Retry-After": str(wait_s)},
                )
            if self._visitors.has_token(request):
                return None
        if not machine and request.scope["type"] == "http" and _for_reading(request):
            return RedirectResponse(self._visitors.form(request), 303)
        return _problem_response(
            401,
            "this server asks for a token." if machine else "you are not signed in.",
            "Send it as Authorization: Bearer TOKEN." if machine else f"Open {SIGN_IN}.",
            {"WWW-Authenticate": "Bearer"} if machine else None,
        )

    def _misfit(self, request: HTTPConnection) -> Response | None:
        """The answer to what has no door, no length or no room here; None for anything else."""
        scope, path = request.scope, request.scope["path"]
        if not (_DOORS.fullmatch(path) if path.startswith(MACHINES) else _is_page_path(path)):
            hint = "Pages start at /; doors of programs stand in /api/v1/openapi.json."
            return _problem_response(404, "there is no such path.", hint)
        if path.startswith(UPLOADS) and scope.get("method") == "PUT":
            if not request.headers.get("content-length", "").isdecimal():
                return _problem_response(
                    413, "an upload needs a Content-Length.", "Send its length."
                )
            return None
        page = scope["type"] == "websocket" or (_for_reading(request) and path.count("/") == 1)
        if page and self._sessions.full(address_of(request)):
            text = f"As many pages are open as this server shows. Try again in {FULL_S} s."
            return PlainTextResponse(text, 503, {"Retry-After": str(FULL_S)})
        return None


def _is_page_path(path: str) -> bool:
    """True for the path of a page, or of something that pages ask for."""
    first, slash, rest = path.removeprefix("/").partition("/")
    if first in _FOLDERS:
        return bool(slash)
    return not rest and (first in _page_names() or f"/{first}" == SIGN_IN or path[1:] in _FILES)


@cache
def _page_names() -> frozenset[str]:
    """Names of pages in addresses: of their files, of earlier pages, and none for the first."""
    files = shipped_path("pages").glob("[!_]*.py")
    return frozenset({"", *(file.stem for file in files), *MOVED})


def _for_reading(request: HTTPConnection) -> bool:
    """True for a browser that asks for a page to show."""
    accept = request.headers.get("accept", "")
    return request.scope.get("method") == "GET" and "text/html" in accept


def _problem_response(
    status: int, message: str, hint: str, headers: dict[str, str] | None = None
) -> JSONResponse:
    problem = {"code": "http", "field": None, "message": message, "hint": hint}
    return JSONResponse({"error": problem}, status, headers)


# Whom a request is meant for


def _is_local(scope: Scope) -> bool:
    """True for a connection that came in on a loopback address of this machine."""
    server = scope.get("server")
    address = _address(server[0]) if server else None
    return address is not None and address.is_loopback


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


_HOST = re.compile(r"(\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9_.-]{1,253})(:\d{1,5})?")


def _foreign_host(headers: Headers, allowed: tuple[str, ...], local: bool) -> str | None:
    """The host that a request names, where it is not this server; else None.

    A page of another site can make a browser call any address, but under that site's name only. So
    on a loopback address loopback names count, elsewhere addresses and the machine's own names,
    and names that are allowed anywhere. An Origin, which browsers add, has to name the same host.
    """
    if "*" in allowed:
        return None
    hosts = headers.getlist("host")
    match = _HOST.fullmatch(hosts[0]) if len(hosts) == 1 else None
    if match is None:
        return ", ".join(hosts)[:100]
    name = match[1].strip("[]").lower().rstrip(".")
    if not (name in {alias.lower() for alias in allowed} or _is_this_machine(name, local)):
        return name
    origin = headers.get("origin")
    if origin is None or origin.partition("://")[2].lower() == hosts[0].lower():
        return None
    return origin[:100]


def _is_this_machine(name: str, local: bool) -> bool:
    address = _address(name)
    if local:
        return name == "localhost" or (address is not None and address.is_loopback)
    return address is not None or name in _own_names()


@cache
def _own_names() -> frozenset[str]:
    """The names that this machine gives itself."""
    return frozenset({"localhost", socket.gethostname().lower(), socket.getfqdn().lower()})


# What browsers may do with the answer


def _with_headers(path: str, send: Send) -> Send:
    """``send``, with the headers of every answer."""
    policy = API_POLICY if path.startswith(MACHINES) else page_policy()

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in {**HEADERS, "Content-Security-Policy": policy}.items():
                headers.setdefault(name, value)
        await send(message)

    return sending


@cache
def page_policy() -> str:
    """The policy of pages: what Streamlit's frontend needs, and nothing of another site.

    It sets styles as it runs and draws icons and downloads from memory; of scripts only its files,
    the ones inside its own document and those of the pages run, which are named by their digests.
    """
    document = files("streamlit").joinpath("static", "index.html").read_text(encoding="utf-8")
    inline_scripts = [*_INLINE_SCRIPT.findall(document), *PAGE_SCRIPTS]
    scripts = [_script_digest(script) for script in inline_scripts]
    sources = {
        "default-src": ["'self'"],
        "script-src": ["'self'", "'wasm-unsafe-eval'", *scripts],
        "style-src": ["'self'", "'unsafe-inline'"],
        "img-src": ["'self'", "data:", "blob:"],
        "font-src": ["'self'", "data:"],
        "worker-src": ["'self'", "blob:"],
        "object-src": ["'none'"],
        "base-uri": ["'none'"],
        "form-action": ["'self'"],
        "frame-ancestors": ["'none'"],
    }
    return "; ".join(f"{name} {' '.join(allowed)}" for name, allowed in sources.items())


def _script_digest(script: str) -> str:
    digest = hashlib.sha256(script.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
