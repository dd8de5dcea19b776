"""What stands before every door: host, token, uploads and headers."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route, WebSocketRoute
from starlette.testclient import TestClient
from starlette.websockets import WebSocket, WebSocketDisconnect

from recipe_core.doors import guard, sign_in
from recipe_core.doors.guard import Guard
from recipe_core.doors.policy import page_policy
from recipe_core.doors.settings import ServerSettings, variable
from tests.fixtures.refusals import refusal
from tests.fixtures.rows import over, table

TOKEN = "a-token-of-twenty-chars"
STREAM = "ws://127.0.0.1:8501/_stcore/stream"
PATHS = ("/", "/api/v1/plan", "/mcp", "/_stcore/host-config", "/media/x.zip")


def client(
    base_url: str = "http://127.0.0.1:8501",
    clock: Callable[[], float] = time.monotonic,
    **settings: Any,
) -> TestClient:
    """A client of a guarded app that says the path it was asked for."""

    def page(request: Request) -> PlainTextResponse:
        return PlainTextResponse(request.url.path)

    async def stream(socket: WebSocket) -> None:
        await socket.accept()
        await socket.close()

    routes = [
        WebSocketRoute("/_stcore/stream", stream),
        Route("/{path:path}", page, methods=["GET", "POST", "PUT"]),
    ]
    guarded = Middleware(Guard, settings=ServerSettings(**settings), clock=clock)
    app = Starlette(routes=routes, middleware=[guarded])
    return TestClient(app, base_url=base_url, follow_redirects=False)


@over("base_url, settings, method, paths, headers, status", table("doors", "guard"))
def test_a_request_is_let_in_or_refused(base_url, settings, method, paths, headers, status):
    for path in paths or PATHS:
        answer = client(base_url, **settings).request(method, path, headers=headers)
        assert answer.status_code == status, path
        assert TOKEN not in answer.text
        if status == 421:
            assert "--allow-host" in answer.json()["error"]["hint"]
        if status == 401:
            assert answer.headers["www-authenticate"] == "Bearer"


def test_the_websocket_is_behind_the_same_check() -> None:
    def opened(**headers: str) -> None:
        with client().websocket_connect(STREAM, headers=headers):
            pass

    opened()
    for headers in ({"Host": "evil.example"}, {"Origin": "http://evil.example"}):
        with pytest.raises(WebSocketDisconnect):
            opened(**headers)


def test_a_person_signs_in_once() -> None:
    browser = client(token=TOKEN)
    html = {"Accept": "text/html,*/*"}
    sent = browser.get("/compare?model=Qwen/Qwen3-8B", headers=html)
    assert sent.status_code == 303
    form = browser.get(sent.headers["location"], headers=html)
    assert 'type="password"' in form.text
    action = re.search(r'action="([^"]+)"', form.text)
    assert action
    wrong = browser.post(action[1], data={"token": "wrong"})
    assert (wrong.status_code, "not the token" in wrong.text) == (401, True)
    right = browser.post(action[1], data={"token": TOKEN})
    assert (right.status_code, right.headers["location"]) == (303, "/compare?model=Qwen/Qwen3-8B")
    cookie = right.headers["set-cookie"].lower()
    assert {"httponly", "samesite=strict"} <= set(cookie.split("; "))
    assert TOKEN not in cookie
    assert browser.get("/compare", headers=html).status_code == 200
    with browser.websocket_connect(STREAM):
        pass
    assert browser.get("/api/v1/models").status_code == 401  # programs' doors take no cookie
    browser.post(sign_in.PATH, data={"out": "1"})
    assert browser.get("/compare", headers=html).status_code == 303


def test_nothing_is_open_without_the_token() -> None:
    stranger = client(token=TOKEN)
    forged = {"Cookie": f"{sign_in.COOKIE}=00.aaaa.bbbb"}
    for path in (*PATHS, "/_stcore/upload_file/a/b", "/static/js/index.js"):
        answers = stranger.get(path), stranger.put(path), stranger.get(path, headers=forged)
        assert [answer.status_code for answer in answers] == [401] * 3, path
    with pytest.raises(WebSocketDisconnect):
        stranger.websocket_connect(STREAM).__enter__()
    assert stranger.get("/_stcore/health").status_code == 200


def test_the_form_leads_nowhere_else_shows_markup_as_text_and_takes_no_long_body() -> None:
    foreign = ("https://evil.example/", "//evil.example", "/\\evil.example", "javascript:alert(1)")
    for onward in (*foreign, "/\r\nx"):
        visitor = client(token=TOKEN)
        answer = visitor.post(sign_in.PATH, params={"next": onward}, data={"token": TOKEN})
        assert (answer.status_code, answer.headers["location"]) == (303, "/"), onward
    page = client(token=TOKEN).get(sign_in.PATH, params={"next": '/"><script>alert(1)</script>'})
    assert "<script>" not in page.text
    answer = client(token=TOKEN).post(sign_in.PATH, data={"token": "x" * 10_000})
    assert answer.status_code == 401


def test_guessing_is_slowed_down() -> None:
    now = [1000.0]
    browser = client(clock=lambda: now[0], token=TOKEN)
    for _ in range(sign_in.MOST_TRIES):
        assert browser.post(sign_in.PATH, data={"token": "wrong"}).status_code == 401
    late = browser.post(sign_in.PATH, data={"token": TOKEN})
    assert late.status_code == 429
    now[0] += float(late.headers["retry-after"])
    assert browser.post(sign_in.PATH, data={"token": TOKEN}).status_code == 303


def test_a_cookie_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    browser = client(token=TOKEN)
    browser.post(sign_in.PATH, data={"token": TOKEN})
    assert browser.get("/").status_code == 200
    monkeypatch.setattr(sign_in, "SIGNED_IN_S", -1)
    assert browser.get("/").status_code == 401
    other = client(token=TOKEN + "2")
    other.cookies = browser.cookies
    assert other.get("/").status_code == 401


def holding(files: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> TestClient:
    """A visitor of a server whose session ``full`` keeps files of these sizes (bytes)."""
    from streamlit import runtime

    kept = {name: SimpleNamespace(data=bytes(size)) for name, size in files.items()}
    running = SimpleNamespace(uploaded_file_mgr=SimpleNamespace(file_storage={"full": kept}))
    monkeypatch.setattr(runtime, "exists", lambda: True)
    monkeypatch.setattr(runtime, "get_instance", lambda: running)
    return client()


def test_a_session_keeps_a_few_files_and_megabytes(monkeypatch: pytest.MonkeyPatch) -> None:
    def statuses(*uploads: tuple[str, int]) -> list[int]:
        sent = ((guard.UPLOADS + name, bytes(size)) for name, size in uploads)
        return [visitor.put(path, content=data).status_code for path, data in sent]

    visitor = holding({str(n): 1 for n in range(guard.MOST_UPLOADS)}, monkeypatch)
    # full/0 takes the place of one that is there
    assert statuses(("full/another", 0), ("full/0", 0), ("other/0", 0)) == [413, 200, 200]
    monkeypatch.setattr(guard, "MOST_UPLOADED_MB", 2)
    visitor = holding({"0": 1 << 20, "1": 1 << 19}, monkeypatch)
    assert statuses(("full/2", 1 << 19), ("full/2", 1 + (1 << 19))) == [200, 413]
    assert statuses(("full/0", 1 << 20), ("other/2", 1 << 20)) == [200, 200]


def test_every_answer_tells_browsers_what_it_may_do() -> None:
    for path, host in product(PATHS, ("127.0.0.1", "evil.example")):
        headers = client().get(path, headers={"Host": host}).headers
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
    rules = [rule.split() for rule in page_policy().split("; ")]
    scripts = next(sources for name, *sources in rules if name == "script-src")
    assert "'self'" in scripts
    assert not {"'unsafe-inline'", "'unsafe-eval'", "*", "https:"} & set(scripts)


def test_settings_come_from_the_environment_and_a_wrong_one_hides_its_value() -> None:
    stated = {"token": TOKEN, "hosts": "a.example,b.example", "workers": "3", "metrics": "1"}
    settings = ServerSettings.of_environment({variable(k): v for k, v in stated.items()})
    assert settings.token == TOKEN
    assert settings.hosts == ("a.example", "b.example")
    assert (settings.workers, settings.metrics, settings.folders) == (3, True, False)
    wrong = [("token", "short"), ("workers", "many"), ("workers", "-1"), ("seconds", "0")]
    for name, value in wrong:
        refused = refusal(ServerSettings.of_environment, {variable(name): value})
        assert refused.field == variable(name)
        assert "short" not in str(refused)
