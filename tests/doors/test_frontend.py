"""The frontend's files: compressed once, with headers by which browsers keep them."""

from __future__ import annotations

import gzip
import threading
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route, WebSocketRoute
from starlette.testclient import TestClient
from starlette.websockets import WebSocket

from recipe_core.doors import frontend
from recipe_core.doors.frontend import Frontend
from recipe_core.doors.guard import Guard
from recipe_core.doors.settings import ServerSettings
from tests.fixtures.rows import over
from tests.fixtures.serve import recipe_serve

SCRIPT = "/static/js/main.CbS7ZKx1.js"
TEXT = "let answer = 42;\n" * 500
ADDRESS = "http://127.0.0.1:8501"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "static" / "js"
    folder.mkdir(parents=True)
    (folder / "main.CbS7ZKx1.js").write_text(TEXT)
    (folder / "font.Ab12Cd34.woff2").write_bytes(b"wOF2")
    (tmp_path / "secret.js").write_text("not for you")
    return tmp_path


def client(root: Path, **settings: str) -> TestClient:
    """A client of the middleware before an app that says what it was asked for."""

    def plain(request: Request) -> PlainTextResponse:
        return PlainTextResponse(f"plain {request.method} {request.url.path}")

    async def stream(socket: WebSocket) -> None:
        await socket.accept()
        await socket.send_text("as it is")

    app = Starlette(
        routes=[
            WebSocketRoute(SCRIPT, stream),
            Route("/{path:path}", plain, methods=["GET", "POST"]),
        ],
        middleware=[
            Middleware(Guard, settings=ServerSettings(**settings)),
            Middleware(Frontend, root=root),
        ],
    )
    return TestClient(app, base_url=ADDRESS, follow_redirects=False)


def test_a_file_is_compressed_kept_and_known_again(root: Path) -> None:
    visitor = client(root)
    answer = visitor.get(SCRIPT, headers={"Accept-Encoding": "gzip, deflate, br"})
    assert answer.text == TEXT
    assert int(answer.headers["content-length"]) < len(TEXT) / 20
    assert answer.headers["content-encoding"] == "gzip"
    assert answer.headers["content-type"] == "text/javascript; charset=utf-8"
    assert "immutable" in answer.headers["cache-control"]
    assert answer.headers["vary"] == "Accept-Encoding"
    assert answer.headers["x-content-type-options"] == "nosniff"
    tag = answer.headers["etag"]
    for known in (tag, f'"other", W/{tag}', "*"):
        again = visitor.get(SCRIPT, headers={"If-None-Match": known})
        assert (again.status_code, again.content) == (304, b""), known
        assert again.headers["etag"] == tag
    assert visitor.get(SCRIPT, headers={"If-None-Match": '"other"'}).text == TEXT
    head = visitor.head(SCRIPT)
    assert (head.content, head.headers["etag"]) == (b"", tag)


def test_each_file_is_compressed_once(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls, compress = [], gzip.compress

    def counted(data: bytes, *args: int, **options: int) -> bytes:
        calls.append(len(data))
        return compress(data, *args, **options)

    monkeypatch.setattr(frontend.gzip, "compress", counted)
    visitor = client(root)
    visitor.get("/")  # builds the app
    asking = [threading.Thread(target=visitor.get, args=(SCRIPT,)) for _ in range(5)]
    for thread in asking:
        thread.start()
    for thread in asking:
        thread.join()
    assert calls == [len(TEXT)]


@over(
    "encoding, compressed",
    [
        ("gzip", True),
        ("*", True),
        ("br;q=1.0, gzip;q=0.8", True),
        ("GZIP", True),
        ("", False),
        ("identity", False),
        ("gzip;q=0", False),
        ("*;q=0.0", False),
        ("gzip; q=0.000, *", False),
    ],
)
def test_only_who_reads_gzip_gets_it(root: Path, encoding: str, compressed: bool) -> None:
    answer = client(root).get(SCRIPT, headers={"Accept-Encoding": encoding})
    assert ("content-encoding" in answer.headers) is compressed
    assert answer.text == (TEXT if compressed else f"plain GET {SCRIPT}")
    assert answer.headers["vary"] == "Accept-Encoding"


@over(
    "method, path, headers",
    [
        ("POST", SCRIPT, {}),
        ("GET", SCRIPT, {"Range": "bytes=0-9"}),
        ("GET", "/static/js/font.Ab12Cd34.woff2", {}),
        ("GET", "/static/js/absent.js", {}),
        ("GET", "/static/%2e%2e/secret.js", {}),
        ("GET", "/static/js/../../secret.js", {}),
        ("GET", "/", {}),
    ],
)
def test_all_else_passes(root: Path, method: str, path: str, headers: dict[str, str]) -> None:
    answer = client(root).request(method, path, headers={"Accept-Encoding": "gzip"} | headers)
    assert "not for you" not in answer.text
    assert "content-encoding" not in answer.headers


def test_a_websocket_passes(root: Path) -> None:
    with client(root).websocket_connect(f"ws://127.0.0.1:8501{SCRIPT}") as socket:
        assert socket.receive_text() == "as it is"


def test_no_file_is_sent_to_a_stranger(root: Path) -> None:
    answer = client(root, token="a-token-of-twenty-chars").get(SCRIPT)
    assert answer.status_code == 401
    assert "answer" not in answer.text


def test_the_server_compresses_what_its_first_page_names(tmp_path: Path) -> None:
    with recipe_serve(tmp_path) as server:
        _, page, _ = server.ask("GET", "/", headers={"Accept": "text/html"})
        name = page.decode().partition('src="./static/js/')[2].partition('"')[0]
        path = f"/static/js/{name}"
        _, whole, plain = server.ask("GET", path)
        _, packed, headers = server.ask("GET", path, headers={"Accept-Encoding": "gzip"})
    assert "Content-Encoding" not in plain
    assert "Accept-Encoding" in plain["vary"] + headers["vary"]
    assert gzip.decompress(packed) == whole
    assert len(packed) < 0.4 * len(whole)
