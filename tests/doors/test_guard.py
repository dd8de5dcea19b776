"""What stands before every door: host, token, pages and uploads, headers."""

from __future__ import annotations

import base64
import hashlib
import re
import time
from collections.abc import Callable
from contextlib import ExitStack
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

from recipe_core.doors import guard, sessions
from recipe_core.doors.guard import Guard, page_policy
from recipe_core.doors.page_scripts import PAGE_SCRIPTS
from recipe_core.doors.sessions import Sessions, Upload
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
        if text := request.headers.get("x-fail"):
            raise ValueError(text)
        return PlainTextResponse(request.url.path)

    async def stream(socket: WebSocket) -> None:
        await socket.accept()
        await socket.receive()  # that it is closed

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
    sent = browser.get("/plan?model=Qwen/Qwen3-8B", headers=html)
    assert sent.status_code == 303
    form = browser.get(sent.headers["location"], headers=html)
    assert 'type="password"' in form.text
    action = re.search(r'action="([^"]+)"', form.text)
    assert action
    wrong = browser.post(action[1], data={"token": "wrong"})
    assert (wrong.status_code, "not the token" in wrong.text) == (401, True)
    right = browser.post(action[1], data={"token": TOKEN})
    assert (right.status_code, right.headers["location"]) == (303, "/plan?model=Qwen/Qwen3-8B")
    cookie = right.headers["set-cookie"].lower()
    assert {"httponly", "samesite=strict"} <= set(cookie.split("; "))
    assert TOKEN not in cookie
    assert browser.get("/plan", headers=html).status_code == 200
    with browser.websocket_connect(STREAM):
        pass
    assert browser.get("/api/v1/models").status_code == 401  # programs' doors take no cookie
    browser.post(sessions.PATH, data={"out": "1"})
    assert browser.get("/plan", headers=html).status_code == 303


def test_nothing_is_open_without_the_token() -> None:
    stranger = client(token=TOKEN)
    forged = {"Cookie": f"{sessions.COOKIE}=00.aaaa.bbbb"}
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
        answer = visitor.post(sessions.PATH, params={"next": onward}, data={"token": TOKEN})
        assert (answer.status_code, answer.headers["location"]) == (303, "/"), onward
    page = client(token=TOKEN).get(sessions.PATH, params={"next": '/"><script>alert(1)</script>'})
    assert "<script>" not in page.text
    answer = client(token=TOKEN).post(sessions.PATH, data={"token": "x" * 10_000})
    assert answer.status_code == 401


def through_the_form(visitor: TestClient, token: str) -> Any:
    return visitor.post(sessions.PATH, data={"token": token})


def as_a_program(visitor: TestClient, token: str) -> Any:
    return visitor.get("/api/v1/models", headers={"Authorization": f"Bearer {token}"})


@over("send, passes", [(through_the_form, 303), (as_a_program, 200)])
def test_who_guesses_waits_and_nobody_else(send: Callable[..., Any], passes: int) -> None:
    now = [1000.0]
    browser = client(clock=lambda: now[0], token=TOKEN)

    def at(address: str) -> TestClient:
        options: Any = {"base_url": "http://127.0.0.1:8501", "follow_redirects": False}
        return TestClient(browser.app, client=(address, 5000), **options)

    guesser, neighbour = at("2001:db8::1"), at("2001:db8::2")  # of one network
    for number in range(sessions.MOST_TRIES):
        assert send(guesser, f"wrong {number}").status_code == 401
    late = send(neighbour, TOKEN)
    assert late.status_code == 429
    for other in (at("2001:db8:0:1::1"), at("192.0.2.1")):
        assert {send(other, "old").status_code for _ in range(99)} == {401}  # no guess
        assert send(other, TOKEN).status_code == passes
    now[0] += float(late.headers["retry-after"])
    assert send(guesser, TOKEN).status_code == passes


def test_of_many_addresses_the_latest_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "MOST_ADDRESSES", 2)
    guesses = sessions.Guesses(lambda: 0.0)
    for address in ("a", "b", "c"):
        for number in range(sessions.MOST_TRIES):
            guesses.note(address, str(number))
    assert [bool(guesses.wait_s(address)) for address in ("a", "b", "c")] == [False, True, True]


def test_a_cookie_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    browser = client(token=TOKEN)
    browser.post(sessions.PATH, data={"token": TOKEN})
    assert browser.get("/").status_code == 200
    monkeypatch.setattr(sessions, "SIGNED_IN_S", -1)
    assert browser.get("/").status_code == 401
    other = client(token=TOKEN + "2")
    other.cookies = browser.cookies
    assert other.get("/").status_code == 401


class Pages:
    """Streamlit's runtime: files of sessions, of which some are connected."""

    def __init__(self) -> None:
        self.connected, self.closed = {"a", "b", "c"}, list[str]()
        self.file_storage: dict[str, dict[str, Any]] = {}
        self.uploaded_file_mgr = self
        self.is_active_session = self.connected.__contains__
        self.close_session = self.closed.append

    def remove_session_files(self, session: str) -> None:
        del self.file_storage[session]

    def keep(self, session: str, name: str, mb: int) -> None:
        file = SimpleNamespace(data=bytes(mb << 20))
        self.file_storage.setdefault(session, {})[name] = file


@pytest.fixture
def pages(monkeypatch: pytest.MonkeyPatch) -> Pages:
    from streamlit import runtime

    running = Pages()
    monkeypatch.setattr(runtime, "exists", lambda: True)
    monkeypatch.setattr(runtime, "get_instance", lambda: running)
    return running


def test_uploads_are_bounded_while_they_come_and_over_all_sessions(
    pages: Pages, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, most in (("UPLOADS", 3), ("UPLOADED_MB", 4), ("UPLOADED_IN_ALL_MB", 10)):
        monkeypatch.setattr(sessions, f"MOST_{name}", most)
    room, coming = Sessions(8, later=lambda *_: None), ExitStack()

    def refused(session: str, name: str, mb: int, address: str = "x") -> bool:
        block = room.uploading(Upload(session, name, mb << 20), address)
        return coming.enter_context(block) is not None

    pages.keep("a", "0", 2)
    for mb in (2, 0):  # both at once are too many megabytes, or files; neither is alone
        assert [refused("a", name, mb) for name in ("1", "2", "3")] == [False, mb > 0, True]
        coming.close()
    assert not refused("a", "0", 4)  # in place of the one that is there
    coming.close()
    pages.keep("a", "0", 0)
    uploads = (("b", 4, "x"), ("c", 2, "x"), ("c", 2, "y"), ("d", 4, "z"), ("e", 1, "w"))
    # half of all for one address
    found = [refused(session, "0", mb, address) for session, mb, address in uploads]
    assert found == [False, True, False, False, True]


def test_a_session_with_files_ends_after_its_page(pages: Pages) -> None:
    now, later = [0.0], list[Callable[[], None]]()
    room = Sessions(8, lambda: now[0], lambda _, do: later.append(do))
    pages.keep("a", "0", 1)
    pages.keep("b", "0", 1)
    with room.opened("x"):
        pages.connected -= {"a", "b"}
    pages.connected.add("b")  # comes back
    now[0] = sessions.GONE_S
    later.pop()()
    assert (pages.closed, list(pages.file_storage)) == (["a"], ["b"])
    with room.uploading(Upload("gone", "0", 1), "x"):
        pages.keep("gone", "0", 1)  # that had ended before its file was there
    now[0] *= 2
    later.pop()()
    assert list(pages.file_storage) == ["b"]


def test_an_upload_without_a_length_is_refused(pages: Pages) -> None:
    put = client().put
    assert put(f"{guard.UPLOADS}a/0", content=iter([b"x"])).status_code == 413
    assert put(f"{guard.UPLOADS}a/0", content=b"x").status_code == 200


def test_so_many_pages_are_open_and_no_more() -> None:
    visitor, html = client(sessions=2), {"Accept": "text/html"}
    with visitor.websocket_connect(STREAM):  # half of them from one address
        full = visitor.get("/hardware", headers=html)
        assert (full.status_code, full.headers["retry-after"]) == (503, str(guard.FULL_S))
        assert visitor.get("/media/x.zip", headers=html).status_code == 200
        with pytest.raises(WebSocketDisconnect):
            visitor.websocket_connect(STREAM).__enter__()
    assert visitor.get("/hardware", headers=html).status_code == 200


def test_a_fault_behind_a_door_of_programs_is_told_in_the_log_alone(caplog) -> None:
    visitor = client()
    for path in ("/mcp", "/api/v1/models"):
        answer = visitor.get(path, headers={"X-Fail": "secret"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (500, "server")
        assert "secret" not in answer.text
        assert "secret" in caplog.text
        caplog.clear()


def test_every_answer_tells_browsers_what_it_may_do() -> None:
    for path, host in product(PATHS, ("127.0.0.1", "evil.example")):
        headers = client().get(path, headers={"Host": host}).headers
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
    rules = [rule.split() for rule in page_policy().split("; ")]
    scripts = next(sources for name, *sources in rules if name == "script-src")
    assert "'self'" in scripts
    for script in PAGE_SCRIPTS:
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in scripts
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
