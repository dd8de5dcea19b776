"""The files of the pages' frontend, sent compressed.

Streamlit sends them as they lie on the disk: three megabytes for the first page, ten for one with a
chart and a table. They never change while the server runs, so each is compressed once, at its first
use, and its bytes are kept.
"""

from __future__ import annotations

import gzip
import hashlib
import threading
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

# Media types of files that get smaller; fonts and pictures are compressed already.
TYPES = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
# Names carry a digest of the content, so a browser need never ask again.
KEPT = "public, immutable, max-age=31536000"
# Names in the folder of the frontend, below which addresses have the same ones.
FOLDER = "static"
# Level of gzip: 9 takes twice the processor time for 0.4 % of the bytes.
LEVEL = 6


@dataclass(frozen=True, slots=True)
class _Packed:
    """A compressed file and the tag of its content."""

    body: bytes
    tag: str
    media_type: str


class Frontend:
    """Middleware that answers requests for the frontend's own files.

    Args:
        app: what answers all else, and browsers that take nothing compressed.
        root: the folder in which ``static`` lies; Streamlit's own unless given.
    """

    def __init__(self, app: ASGIApp, root: Path | None = None) -> None:
        self._app = app
        root = Path(str(files("streamlit"))) / "static" if root is None else root
        self._files = {
            f"/{path.relative_to(root).as_posix()}": path
            for path in (root / FOLDER).rglob("*")
            if path.suffix in TYPES and path.is_file()
        }
        self._packed: dict[str, _Packed] = {}
        self._packing = threading.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request for one of the files, hand on any other."""
        path = scope.get("path", "")
        if scope["type"] != "http" or path not in self._files:
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        if scope["method"] not in ("GET", "HEAD") or "range" in headers or not _takes_gzip(headers):
            await self._app(scope, receive, _varied(send))
            return
        packed = self._packed.get(path)
        if packed is None:
            packed = await run_in_threadpool(self._pack, path)
        await _frontend_response(packed, headers)(scope, receive, send)

    def _pack(self, path: str) -> _Packed:
        """Compress a file, unless another request just did."""
        with self._packing:
            if path not in self._packed:
                file = self._files[path]
                body = gzip.compress(file.read_bytes(), LEVEL, mtime=0)
                tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
                self._packed[path] = _Packed(body, tag, TYPES[file.suffix])
            return self._packed[path]


def _frontend_response(packed: _Packed, headers: Headers) -> Response:
    """The compressed file, or that the browser has it already."""
    about = {"Cache-Control": KEPT, "ETag": packed.tag, "Vary": "Accept-Encoding"}
    held_tags = {
        tag.strip().removeprefix("W/") for tag in headers.get("if-none-match", "").split(",")
    }
    if packed.tag in held_tags or "*" in held_tags:
        return Response(status_code=304, headers=about)
    about["Content-Encoding"] = "gzip"
    return Response(packed.body, headers=about, media_type=packed.media_type)


def _takes_gzip(headers: Headers) -> bool:
    """True where a client says that it reads gzip (RFC 9110, 12.5.3)."""
    weights = {}
    for part in ",".join(headers.getlist("accept-encoding")).lower().split(","):
        name, _, weight = part.partition(";")
        weights[name.strip()] = weight.replace(" ", "").removeprefix("q=")
    weight = weights.get("gzip", weights.get("*", "0"))
    return weight.strip("0.") != "" or weight == ""


def _varied(send: Send) -> Send:
    """``send``, with a word to caches that other clients get other bytes."""

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            MutableHeaders(scope=message).add_vary_header("Accept-Encoding")
        await send(message)

    return sending
