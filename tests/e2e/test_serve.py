"""`recipe serve` from any folder: pages, API and MCP on one port, and a server behind a token."""

from __future__ import annotations

import base64
import json
import tomllib
from collections.abc import Iterator
from typing import Any

import pytest
from mcp import Client

from recipe_core.base.resources import shipped_path
from recipe_core.bundle.write import zip_bytes
from recipe_core.doors.settings import variable
from recipe_core.recipe import Additions, make_recipe
from recipe_core.targets import Parameters
from recipe_core.views import exports
from tests.conftest import make_request, request_values
from tests.fixtures.agents import finished
from tests.fixtures.command_line import recipe
from tests.fixtures.serve import Server, recipe_serve
from tests.fixtures.wizard import PAGES, open_step, settled, unfold, upload, violations

TOKEN = "a-token-of-twenty-chars"
NETWORK = "0.0.0.0"


def test_page_and_api_answer_on_one_port(server, tmp_path, tiny_config):
    assert server.url in server.log.read_text()
    status, page, _ = server.ask("GET", "/")
    assert (status, b"<title>" in page) == (200, True)
    for path, found in {
        "/plan": 200,
        "/favicon.png": 200,
        "/robots.txt": 404,
        "/metrics": 404,
    }.items():
        assert server.ask("GET", path)[0] == found, path
    status, plan, _ = server.ask("POST", "/api/v1/plan", request_values())
    assert (status, json.loads(plan)["candidates"][0]["rank"]) == (200, 1)
    (tmp_path / "config.json").write_text(json.dumps(tiny_config))  # a local server reads folders
    workload = {"input_tokens": 64, "output_tokens": 64}
    body = request_values(str(tmp_path), "cpu", 1, workload=workload)
    status, answer, _ = server.ask("POST", "/api/v1/estimate", body)
    assert (status, json.loads(answer)["candidate"]["engine"]) == (200, "transformers")


def test_agents_ask_on_the_same_port(server: Server) -> None:
    """With what the page tells them to be configured with, and to send."""
    where = json.loads(exports.agent(server.url))["mcpServers"]["recipe-builder"]["url"]
    message = json.loads(exports.tool_call(make_request(), Parameters(port=9000)))

    async def asked() -> Any:
        async with Client(where) as client:
            answer = await client.call_tool(**message["params"])
            return answer, await client.read_resource(answer.structured_content["zip"])

    answer, found = finished(asked())
    assert "MANIFEST.json" in answer.structured_content["files"]
    made = make_recipe(make_request(), Additions(parameters=Parameters(port=9000)))
    assert base64.b64decode(found.contents[0].blob) == zip_bytes(made)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that the network may reach, with a token."""
    secret = {variable("token"): TOKEN}
    with recipe_serve(tmp_path_factory.mktemp("guarded"), "--host", NETWORK, **secret) as running:
        yield running
        assert TOKEN not in running.log.read_text()


@pytest.mark.nightly
def test_a_reader_signs_in_and_comes_to_the_page_that_was_asked_for(page, guarded):
    page.goto(f"{guarded.url}/hardware")
    page.get_by_label("Token").fill(TOKEN)
    page.keyboard.press("Enter")
    settled(page, PAGES["hardware"])
    assert page.url.startswith(f"{guarded.url}/hardware")
    assert TOKEN not in page.url
    page.reload()
    settled(page, PAGES["hardware"])


@pytest.mark.nightly
def test_the_form_can_be_used_by_everybody(open_page: Any, guarded: Server) -> None:
    for scheme in ("light", "dark"):
        page = open_page(color_scheme=scheme, bypass_csp=True)  # the checker brings its own script
        page.goto(guarded.url)
        page.get_by_role("button", name="Sign in").wait_for()
        assert violations(page) == []


@pytest.mark.nightly
def test_the_pages_socket_stays_shut_without_the_form(server: Server, guarded: Server) -> None:
    upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13"}
    upgrade["Sec-WebSocket-Key"] = "dGhlIHNhbXBsZSBub25jZQ=="
    elsewhere = {"Host": "evil.example", "Origin": "http://evil.example"}
    asked = ((server, {}), (server, elsewhere), (guarded, {}))
    statuses = [at.status("GET", "/_stcore/stream", upgrade | more) for at, more in asked]
    assert statuses == [101, 403, 403]


@pytest.mark.nightly
def test_the_network_is_not_served_without_a_token() -> None:
    done = recipe("serve", "--host", NETWORK)
    assert done.returncode == 2
    assert variable("token") in done.stderr
    assert "--no-auth" in done.stderr


@pytest.mark.nightly
def test_a_large_upload_is_refused_by_the_server_too(page: Any, address: str) -> None:
    """The widget keeps to the limit in the browser; here somebody else sends the file."""
    open_step(page, address, "model")
    unfold(page, "Popular models")
    sent = upload(page, {"name": "config.json", "mimeType": "application/json", "buffer": b"{}"})
    target, headers = sent.url, sent.all_headers()
    token = {"X-Xsrftoken": headers["x-xsrftoken"]} if "x-xsrftoken" in headers else {}

    def put(name: str, size: int) -> int:
        file = {"name": "a.json", "mimeType": "application/json", "buffer": b"0" * size}
        place = target.rpartition("/")[0] + "/" + name
        return int(page.request.put(place, multipart={"file": file}, headers=token).status)

    assert put("small", 1000) == 204
    config = tomllib.loads((shipped_path(".streamlit") / "config.toml").read_text(encoding="utf-8"))
    limit = config["server"]["maxUploadSize"] << 20
    assert put("large", limit + 1) == 413
    assert {put(f"more-{n}", 1000) for n in range(40)} == {204, 413}
