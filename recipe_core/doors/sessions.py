"""Readers' sessions and the files that they upload: how many, how large, and when they end.

Streamlit keeps both, and keeps those of a closed page until another closes. Here a session with
files ends soon after its socket, and an upload takes its room before its first byte is read.
"""

from __future__ import annotations

import asyncio
import hashlib
import html
import ipaddress
import secrets
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

from itsdangerous import BadSignature, TimestampSigner
from starlette.requests import HTTPConnection, Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.types import Receive, Scope

PATH = "/sign-in"
COOKIE = "recipe_builder_visitor"
SIGNED_IN_S = 12 * 3600
# Different wrong tokens of an address within so many seconds, after which none of it is read.
MOST_TRIES, TRIES_S = 10, 60.0
# Addresses whose wrong tokens are remembered, the latest.
MOST_ADDRESSES = 4096
MOST_BODY_BYTES = 4096


class Guesses:
    """Wrong tokens by address. The same one again is a program that nobody told, and no guess."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock, self._key = clock, secrets.token_bytes(16)
        self._wrong: OrderedDict[str, OrderedDict[bytes, float]] = OrderedDict()

    def wait_s(self, address: str) -> int:
        """Seconds until a token from an address is read; 0 for now."""
        latest = list(self._wrong.get(_sender_network(address), OrderedDict()).values())[
            -MOST_TRIES:
        ]
        if len(latest) < MOST_TRIES:
            return 0
        return max(int(latest[0] + TRIES_S - self._clock() + 1), 0)

    def note(self, address: str, token: str) -> None:
        """Remember a wrong token."""
        network, now = _sender_network(address), self._clock()
        wrong = self._wrong.setdefault(network, OrderedDict())
        for old in [old for old, at in wrong.items() if now - at > TRIES_S]:
            del wrong[old]
        wrong.setdefault(
            hashlib.blake2b(token.encode(errors="replace"), key=self._key).digest(), now
        )
        self._wrong.move_to_end(network)
        if len(self._wrong) > MOST_ADDRESSES:
            self._wrong.popitem(last=False)


def _sender_network(address: str) -> str:
    """The addresses of one sender: one of IPv4, of IPv6 the network of a connection."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv4Address):
        return address
    return str(parsed.ipv4_mapped or ipaddress.IPv6Network((int(parsed), 64), strict=False))


class Visitors:
    """Callers of a server with a token."""

    def __init__(self, token: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._token, self._guesses = token.encode(), Guesses(clock)
        self._signer = TimestampSigner(token, salt="recipe-builder visitor")

    def has_token(self, request: HTTPConnection) -> bool:
        """True for a program that sends the token; asked after ``wait_s``."""
        kind, _, token = request.headers.get("authorization", "").partition(" ")
        return kind.lower() == "bearer" and self._right(request, token.strip())

    def wait_s(self, request: HTTPConnection) -> int:
        """Seconds until a token from where a request comes from is read; 0 for now."""
        return self._guesses.wait_s(address_of(request))

    def signed_in(self, request: HTTPConnection) -> bool:
        """True for a browser that has the cookie of the form."""
        try:
            self._signer.unsign(request.cookies.get(COOKIE, ""), max_age=SIGNED_IN_S)
        except BadSignature:
            return False
        return True

    def form(self, request: HTTPConnection) -> str:
        """The address of the form, which leads on to where the request was for."""
        url = request.url
        return f"{PATH}?{urlencode({'next': url.path + (f'?{url.query}' if url.query else '')})}"

    async def answer(self, scope: Scope, receive: Receive) -> Response:
        """The form, or what became of it."""
        request = Request(scope, receive)
        onward = _path_inside(request.query_params.get("next", "/"))
        if request.method == "GET":
            return _render_page(onward, self.signed_in(request))
        if request.method != "POST":
            return Response(status_code=405, headers={"Allow": "GET, POST"})
        fields = await _read_fields(request)
        if "out" in fields:
            answer: Response = RedirectResponse(PATH, 303)
            answer.delete_cookie(COOKIE)
            return answer
        if wait_s := self.wait_s(request):
            text = f"Too many wrong tokens came from your address. Try again in {wait_s} s."
            return _render_page(onward, False, text, 429, {"Retry-After": str(wait_s)})
        if not self._right(request, fields.get("token", "")):
            return _render_page(onward, False, "That is not the token of this server.", 401)
        answer = RedirectResponse(onward, 303)
        answer.set_cookie(
            COOKIE,
            self._signer.sign(secrets.token_hex(8)).decode(),
            max_age=SIGNED_IN_S,
            httponly=True,
            samesite="strict",
            secure=request.url.scheme == "https",
        )
        return answer

    def _right(self, request: HTTPConnection, token: str) -> bool:
        """Compare a token with the server's, and remember a wrong one."""
        right = secrets.compare_digest(token.encode(errors="replace"), self._token)
        if not right:
            self._guesses.note(address_of(request), token)
        return right


def address_of(request: HTTPConnection) -> str:
    """The address of a request's sender; behind a trusted proxy, the one that it states."""
    return request.client.host if request.client else ""


async def _read_fields(request: Request) -> dict[str, str]:
    """The fields of a posted form; none of one that is too large or not text."""
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > MOST_BODY_BYTES:
            return {}
    fields = parse_qs(body.decode(errors="replace"), keep_blank_values=True, max_num_fields=8)
    return {name: values[-1] for name, values in fields.items()}


def _path_inside(onward: str) -> str:
    """A path of this server; its first page for an address anywhere else."""
    parts = urlsplit(onward)
    elsewhere = parts.scheme or parts.netloc or "\\" in onward or not onward.isprintable()
    plain = onward.startswith("/") and not onward.startswith("//")
    return onward if plain and not elsewhere else "/"


def _render_page(
    onward: str,
    signed_in: bool,
    problem: str = "",
    status: int = 200,
    headers: dict[str, str] | None = None,
) -> HTMLResponse:
    alert = f'<p role="alert">{html.escape(problem)}</p>' if problem else ""
    if signed_in:
        form = '<p>You are signed in.</p><button name="out" value="1">Sign out</button>'
    else:
        form = (
            '<label for="token">Token</label>'
            '<input id="token" name="token" type="password" required autofocus '
            'autocomplete="current-password">'
            "<button>Sign in</button>"
        )
    action = html.escape(f"{PATH}?{urlencode({'next': onward})}", quote=True)
    page = Template(Path(__file__).with_name("sign_in.html").read_text(encoding="utf-8"))
    document = page.substitute(alert=alert, form=form, action=action)
    return HTMLResponse(document, status, {"Cache-Control": "no-store", **(headers or {})})


# Files that a session may keep on the server at a time; a page has two places for one file.
MOST_UPLOADS = 16
# And megabytes: three traces of the size that one file may have.
MOST_UPLOADED_MB = 48
# Megabytes of all sessions; half of them from one address.
MOST_UPLOADED_IN_ALL_MB = 256
# Seconds in which a page whose connection broke comes back before its session with files ends.
GONE_S = 10.0


@dataclass(eq=False, frozen=True, slots=True)
class Upload:
    """A file on its way: the session and the name that it goes to, its bytes."""

    session: str
    name: str
    size: int


class Sessions:
    """The sessions of one server.

    Args:
        limit: pages that may be open at a time.
        clock: seconds that only grow.
        later: has something done after some seconds.
    """

    def __init__(
        self,
        limit: int,
        clock: Callable[[], float] = time.monotonic,
        later: Callable[[float, Callable[[], None]], object] | None = None,
    ) -> None:
        self._limit, self._clock, self._later = limit, clock, later or _call_later
        self._open: Counter[str] = Counter()
        self._coming: list[Upload] = []
        self._senders: dict[str, str] = {}
        self._gone: dict[str, float] = {}

    def full(self, address: str) -> bool:
        """True where no further page may be opened, or none from this address."""
        return self._open.total() >= self._limit or self._open[address] >= max(self._limit // 2, 1)

    @contextmanager
    def opened(self, address: str) -> Iterator[None]:
        """A block for as long as a page is connected."""
        self._open[address] += 1
        try:
            yield
        finally:
            self._open[address] -= 1
            self._open += Counter()  # forgets who has none
            self._settle()

    @contextmanager
    def uploading(self, upload: Upload, address: str) -> Iterator[str | None]:
        """A block in which an upload comes and has its room; why it must not, where it must not."""
        self.sweep()
        if refusal := self._refusal(upload, address):
            yield refusal
            return
        self._coming.append(upload)
        self._senders.setdefault(upload.session, address)
        try:
            yield None
        finally:
            self._coming.remove(upload)
            self._settle()

    def sweep(self) -> None:
        """End sessions with files whose page has been gone for some time."""
        if (runtime := _runtime()) is None:
            return
        now, files = self._clock(), runtime.uploaded_file_mgr
        holding = {upload.session for upload in _stored_uploads()}
        for session in holding:
            if runtime.is_active_session(session):
                self._gone.pop(session, None)
            elif now - self._gone.setdefault(session, now) >= GONE_S:
                runtime.close_session(session)
                files.remove_session_files(session)  # also of one that had ended before they came
        present = {upload.session for upload in (*_stored_uploads(), *self._coming)}
        self._gone = {name: at for name, at in self._gone.items() if name in present}
        self._senders = {name: whose for name, whose in self._senders.items() if name in present}

    def _settle(self) -> None:
        self.sweep()
        self._later(GONE_S + 1, self.sweep)

    def _refusal(self, upload: Upload, address: str) -> str | None:
        """Say why there is no room for an upload; the file that it replaces makes some."""
        place = upload.session, upload.name
        files = [
            *(file for file in _stored_uploads() if (file.session, file.name) != place),
            *self._coming,
        ]
        of_session = [file for file in files if file.session == upload.session]
        of_address = [file for file in files if self._senders.get(file.session) == address]
        if len(of_session) >= MOST_UPLOADS or _over(of_session, upload, MOST_UPLOADED_MB):
            return f"a session keeps {MOST_UPLOADS} files and {MOST_UPLOADED_MB} MB at most."
        limit = MOST_UPLOADED_IN_ALL_MB
        if _over(files, upload, limit) or _over(of_address, upload, limit // 2):
            return f"this server keeps {limit} MB of files at most, half of them of one address."
        return None


def _over(files: list[Upload], upload: Upload, limit_mb: int) -> bool:
    return sum(file.size for file in files) + upload.size > limit_mb << 20


def _runtime() -> Any:
    """The pages' runtime; None where no page is served."""
    from streamlit import runtime

    return runtime.get_instance() if runtime.exists() else None


def _stored_uploads() -> list[Upload]:
    """The files that are there."""
    manager = getattr(_runtime(), "uploaded_file_mgr", None)
    sessions = list(getattr(manager, "file_storage", {}).items())
    return [
        Upload(session, name, len(file.data))
        for session, files in sessions
        for name, file in list(files.items())
    ]


def _call_later(seconds: float, do: Callable[[], None]) -> None:
    asyncio.get_running_loop().call_later(seconds, do)
