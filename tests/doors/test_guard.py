"""What stands before every door: host, token, uploads and headers."""

from __future__ import annotations

import re
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

from recipe_core.base.errors import InputError
from recipe_core.doors import guard, sign_in
from recipe_core.doors.guard import Guard
from recipe_core.doors.policy import page_policy
from recipe_core.doors.settings import ServerSettings, variable

TOKEN = "a-token-of-twenty-chars"
PATHS = ("/", "/api/v1/plan", "/mcp", "/_stcore/host-config", "/media/x.zip")


def client(base_url: str = "http://127.0.0.1:8501", **settings: Any) -> TestClient:
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
    app = Starlette(
        routes=routes, middleware=[Middleware(Guard, settings=ServerSettings(**settings))]
    )
    return TestClient(app, base_url=base_url, follow_redirects=False)


# whom a request is meant for


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8501", "10.0.0.7", "127.0.0.1.evil.example", "", "a b"]
)
def test_a_loopback_server_answers_to_its_own_names_only(host: str, path: str) -> None:
    answer = client().get(path, headers={"Host": host})
    assert answer.status_code == 421
    assert "--allow-host" in answer.json()["error"]["hint"]


@pytest.mark.parametrize("host", ["127.0.0.1:8501", "localhost", "LOCALHOST:80", "[::1]:8501"])
def test_loopback_names_are_its_own(host: str) -> None:
    assert client().get("/", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://localhost:8501"])
def test_another_origin_is_refused_under_the_right_host(origin: str) -> None:
    asked = client().post("/api/v1/plan", headers={"Origin": origin})
    assert asked.status_code == 421
    same = {"Origin": "http://127.0.0.1:8501"}
    assert client().post("/api/v1/plan", headers=same).status_code == 200


def test_the_websocket_is_behind_the_same_check() -> None:
    def opened(**headers: str) -> None:
        with client().websocket_connect("ws://127.0.0.1:8501/_stcore/stream", headers=headers):
            pass

    opened()
    for headers in ({"Host": "evil.example"}, {"Origin": "http://evil.example"}):
        with pytest.raises(WebSocketDisconnect):
            opened(**headers)


def test_on_the_network_addresses_and_allowed_names_count() -> None:
    network = client("http://192.0.2.7:8501", no_auth=True, hosts=("recipes.example",))
    assert network.get("/").status_code == 200
    assert network.get("/", headers={"Host": "recipes.example"}).status_code == 200
    assert network.get("/", headers={"Host": "evil.example"}).status_code == 421
    anywhere = client("http://192.0.2.7:8501", no_auth=True, hosts=("*",))
    assert anywhere.get("/", headers={"Host": "evil.example"}).status_code == 200


def test_the_network_is_not_answered_without_a_token() -> None:
    """However the server was started: nobody says to another ASGI server what it may."""
    assert client("http://192.0.2.7:8501").get("/api/v1/models").status_code == 403
    # a stranger writes any Host that he likes; the address he reached is not his to write
    named = client("http://192.0.2.7:8501").get("/", headers={"Host": "localhost"})
    assert named.status_code in (403, 421)


# who sends it


@pytest.mark.parametrize("path", ["/api/v1/plan", "/mcp"])
@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"Authorization": "Bearer wrong"}, 401),
        ({"Authorization": f"Basic {TOKEN}"}, 401),
        ({"Authorization": f"Bearer {TOKEN}"}, 200),
        ({"Authorization": f"bearer  {TOKEN} "}, 200),
    ],
)
def test_programs_send_the_token(path: str, headers: dict[str, str], status: int) -> None:
    answer = client(token=TOKEN).post(path, headers=headers)
    assert answer.status_code == status
    if status == 401:
        assert answer.headers["www-authenticate"] == "Bearer"
        assert TOKEN not in answer.text


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
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert TOKEN not in cookie
    assert browser.get("/compare", headers=html).status_code == 200
    with browser.websocket_connect("ws://127.0.0.1:8501/_stcore/stream"):
        pass
    assert browser.get("/api/v1/models").status_code == 401  # programs' doors take no cookie
    browser.post(sign_in.PATH, data={"out": "1"})
    assert browser.get("/compare", headers=html).status_code == 303


@pytest.mark.parametrize("path", [*PATHS, "/_stcore/upload_file/a/b", "/static/js/index.js"])
def test_nothing_is_open_without_the_token(path: str) -> None:
    stranger = client(token=TOKEN)
    assert stranger.get(path).status_code == 401
    assert stranger.put(path).status_code == 401
    forged = {"Cookie": f"{sign_in.COOKIE}=00.aaaa.bbbb"}
    assert stranger.get(path, headers=forged).status_code == 401
    with pytest.raises(WebSocketDisconnect):
        stranger.websocket_connect("ws://127.0.0.1:8501/_stcore/stream").__enter__()
    assert stranger.get("/_stcore/health").status_code == 200


@pytest.mark.parametrize(
    "onward",
    ["https://evil.example/", "//evil.example", "/\\evil.example", "javascript:alert(1)", "/\r\nx"],
)
def test_the_form_leads_nowhere_else(onward: str) -> None:
    answer = client(token=TOKEN).post(sign_in.PATH, params={"next": onward}, data={"token": TOKEN})
    assert (answer.status_code, answer.headers["location"]) == (303, "/")


def test_markup_in_the_onward_path_stays_text() -> None:
    page = client(token=TOKEN).get(sign_in.PATH, params={"next": '/"><script>alert(1)</script>'})
    assert "<script>" not in page.text


def test_guessing_is_slowed_down(monkeypatch: pytest.MonkeyPatch) -> None:
    browser, now = client(token=TOKEN), [1000.0]
    monkeypatch.setattr(sign_in.time, "monotonic", lambda: now[0])
    for _ in range(sign_in.MOST_TRIES):
        assert browser.post(sign_in.PATH, data={"token": "wrong"}).status_code == 401
    late = browser.post(sign_in.PATH, data={"token": TOKEN})
    assert late.status_code == 429
    now[0] += float(late.headers["retry-after"])
    assert browser.post(sign_in.PATH, data={"token": TOKEN}).status_code == 303


def test_a_posted_form_is_small() -> None:
    answer = client(token=TOKEN).post(sign_in.PATH, data={"token": "x" * 10_000})
    assert answer.status_code == 401


def test_a_cookie_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    browser = client(token=TOKEN)
    browser.post(sign_in.PATH, data={"token": TOKEN})
    assert browser.get("/").status_code == 200
    monkeypatch.setattr(sign_in, "SIGNED_IN_S", -1)
    assert browser.get("/").status_code == 401
    other = client(token=TOKEN + "2")
    other.cookies = browser.cookies
    assert other.get("/").status_code == 401


# how much it brings, what it tells


def test_metrics_are_off_unless_asked_for() -> None:
    assert client().get(guard.METRICS).status_code == 404
    assert client(metrics=True).get(guard.METRICS).status_code == 200
    assert client(metrics=True, token=TOKEN).get(guard.METRICS).status_code == 401


def holding(files: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> TestClient:
    """A visitor of a server whose session ``full`` keeps files of these sizes (bytes)."""
    from streamlit import runtime

    kept = {name: SimpleNamespace(data=bytes(size)) for name, size in files.items()}
    running = SimpleNamespace(uploaded_file_mgr=SimpleNamespace(file_storage={"full": kept}))
    monkeypatch.setattr(runtime, "exists", lambda: True)
    monkeypatch.setattr(runtime, "get_instance", lambda: running)
    return client()


def test_a_session_keeps_a_few_files(monkeypatch: pytest.MonkeyPatch) -> None:
    visitor = holding({str(n): 1 for n in range(guard.MOST_UPLOADS)}, monkeypatch)
    assert visitor.put(f"{guard.UPLOADS}full/another").status_code == 413
    assert visitor.put(f"{guard.UPLOADS}full/0").status_code == 200  # in place of one that is there
    assert visitor.put(f"{guard.UPLOADS}other/0").status_code == 200


def test_a_session_keeps_a_few_megabytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "MOST_UPLOADED_MB", 2)
    visitor = holding({"0": 1 << 20, "1": 1 << 19}, monkeypatch)
    assert visitor.put(f"{guard.UPLOADS}full/2", content=bytes(1 << 19)).status_code == 200
    assert visitor.put(f"{guard.UPLOADS}full/2", content=bytes(1 + (1 << 19))).status_code == 413
    assert visitor.put(f"{guard.UPLOADS}full/0", content=bytes(1 << 20)).status_code == 200
    assert visitor.put(f"{guard.UPLOADS}other/2", content=bytes(1 << 20)).status_code == 200


@pytest.mark.parametrize("path", PATHS)
def test_every_answer_tells_browsers_what_it_may_do(path: str) -> None:
    for host in ("127.0.0.1", "evil.example"):
        headers = client().get(path, headers={"Host": host}).headers
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
    rules = [rule.split() for rule in page_policy().split("; ")]
    scripts = next(sources for name, *sources in rules if name == "script-src")
    assert "'self'" in scripts
    assert not {"'unsafe-inline'", "'unsafe-eval'", "*", "https:"} & set(scripts)


# settings


def test_settings_come_from_the_environment() -> None:
    stated = {"token": TOKEN, "hosts": "a.example,b.example", "workers": "3", "metrics": "1"}
    settings = ServerSettings.of_environment({variable(k): v for k, v in stated.items()})
    assert settings.token == TOKEN
    assert settings.hosts == ("a.example", "b.example")
    assert (settings.workers, settings.metrics, settings.folders) == (3, True, False)


@pytest.mark.parametrize(
    ("name", "value"),
    [("token", "short"), ("workers", "many"), ("workers", "-1"), ("seconds", "0")],
)
def test_a_wrong_setting_names_its_variable_and_hides_its_value(name: str, value: str) -> None:
    with pytest.raises(InputError) as refused:
        ServerSettings.of_environment({variable(name): value})
    assert refused.value.field == variable(name)
    assert "short" not in str(refused.value)
