"""Who has the server's token: programs send it, people type it into a form once.

The browser keeps a signed time instead of the token. Another token signs everybody out.
"""

from __future__ import annotations

import html
import secrets
import time
from collections import deque
from collections.abc import Callable
from urllib.parse import parse_qs, urlencode, urlsplit

from itsdangerous import BadSignature, TimestampSigner
from starlette.requests import HTTPConnection, Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.types import Receive, Scope

PATH = "/sign-in"
COOKIE = "recipe_builder_visitor"
SIGNED_IN_S = 12 * 3600
MOST_TRIES, TRIES_S = 10, 60.0
"""Wrong tokens of all visitors within so many seconds, after which the form takes none."""
MOST_BODY_BYTES = 4096


class Visitors:
    """Callers of a server with a token."""

    def __init__(self, token: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._token, self._clock = token.encode(), clock
        self._signer = TimestampSigner(token, salt="recipe-builder visitor")
        self._wrong: deque[float] = deque(maxlen=MOST_TRIES)

    def has_token(self, request: HTTPConnection) -> bool:
        """Whether a program sends the token."""
        kind, _, token = request.headers.get("authorization", "").partition(" ")
        return kind.lower() == "bearer" and self._right(token.strip())

    def signed_in(self, request: HTTPConnection) -> bool:
        """Whether a browser has the cookie of the form; a program may send the token instead."""
        try:
            self._signer.unsign(request.cookies.get(COOKIE, ""), max_age=SIGNED_IN_S)
        except BadSignature:
            return self.has_token(request)
        return True

    def form(self, request: HTTPConnection) -> str:
        """The address of the form, which leads on to where the request was for."""
        url = request.url
        return f"{PATH}?{urlencode({'next': url.path + (f'?{url.query}' if url.query else '')})}"

    async def answer(self, scope: Scope, receive: Receive) -> Response:
        """The form, or what became of it."""
        request = Request(scope, receive)
        onward = _inside(request.query_params.get("next", "/"))
        if request.method == "GET":
            return _page(onward, self.signed_in(request))
        if request.method != "POST":
            return Response(status_code=405, headers={"Allow": "GET, POST"})
        fields = await _fields(request)
        if "out" in fields:
            answer: Response = RedirectResponse(PATH, 303)
            answer.delete_cookie(COOKIE)
            return answer
        if wait_s := self._wait_s():
            text = f"Too many wrong tokens. Try again in {wait_s} s."
            return _page(onward, False, text, 429, {"Retry-After": str(wait_s)})
        if not self._right(fields.get("token", "")):
            self._wrong.append(self._clock())
            return _page(onward, False, "That is not the token of this server.", 401)
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

    def _right(self, token: str) -> bool:
        return secrets.compare_digest(token.encode(errors="replace"), self._token)

    def _wait_s(self) -> int:
        """Seconds until another token is taken; 0 for now."""
        if len(self._wrong) < MOST_TRIES:
            return 0
        return max(int(self._wrong[0] + TRIES_S - self._clock() + 1), 0)


async def _fields(request: Request) -> dict[str, str]:
    """The fields of a posted form; none of one that is too large or not text."""
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > MOST_BODY_BYTES:
            return {}
    fields = parse_qs(body.decode(errors="replace"), keep_blank_values=True, max_num_fields=8)
    return {name: values[-1] for name, values in fields.items()}


def _inside(onward: str) -> str:
    """A path of this server; its first page for an address anywhere else."""
    parts = urlsplit(onward)
    elsewhere = parts.scheme or parts.netloc or "\\" in onward or not onward.isprintable()
    plain = onward.startswith("/") and not onward.startswith("//")
    return onward if plain and not elsewhere else "/"


def _page(
    onward: str,
    signed_in: bool,
    problem: str = "",
    status: int = 200,
    headers: dict[str, str] | None = None,
) -> HTMLResponse:
    said = f'<p role="alert">{html.escape(problem)}</p>' if problem else ""
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
    document = _DOCUMENT.format(said=said, form=form, action=action)
    return HTMLResponse(document, status, {"Cache-Control": "no-store", **(headers or {})})


_DOCUMENT = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Sign in · Recipe builder</title>
<link rel="icon" href="data:,">
<style>
:root {{ color-scheme: light dark; --line: #8a949e; --main: #07446c; --on-main: #fff; }}
@media (prefers-color-scheme: dark) {{
  :root {{ --main: #6cb6e8; --on-main: #12171d; }}
  body {{ background: #12171d; color: #e6eaee; }}
}}
body {{ font: 16px/1.5 system-ui, sans-serif; display: grid; min-height: 100vh; margin: 0;
  place-items: center; }}
main {{ width: min(22rem, 100% - 2rem); }}
h1 {{ font-size: 1.5rem; }}
form {{ display: grid; gap: .75rem; }}
input, button {{ font: inherit; padding: .5rem .75rem; border-radius: 6px;
  border: 1px solid var(--line); }}
button {{ background: var(--main); color: var(--on-main); border-color: var(--main);
  cursor: pointer; }}
[role=alert] {{ border-left: 4px solid #c5221f; padding-left: .75rem; }}
</style>
</head>
<body>
<main>
<h1>Recipe builder</h1>
<p>This server asks for its token. Whoever started it can give it to you.</p>
{said}
<form method="post" action="{action}">{form}</form>
</main>
</body>
</html>
"""
