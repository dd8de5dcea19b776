"""`recipe serve` from any folder: the page answers, and the API on the same port."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mcp import Client

from recipe_core.bundle.write import zip_bytes
from recipe_core.present import snippets
from recipe_core.recipe import Additions, make_recipe
from recipe_core.targets import Parameters
from tests.conftest import finished, make_request, request_values
from tests.fixtures.patience import PATIENCE, serving
from tests.fixtures.ports import free_port


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    port = free_port()
    words = [sys.executable, "-m", "recipe_core", "serve", "--port", str(port)]
    folder = tmp_path_factory.mktemp("elsewhere")
    with (
        (folder / "log").open("w") as log,
        subprocess.Popen(words, cwd=folder, stdout=log, stderr=log) as process,
    ):
        address = f"http://127.0.0.1:{port}"
        try:
            serving(f"{address}/_stcore/health", process, folder / "log")
            yield address
        finally:
            process.terminate()
            process.wait(PATIENCE)
    assert address in (folder / "log").read_text()


def ask(address: str, path: str, body: Any = None) -> tuple[int, Any]:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(
        address + path, data=data, headers={"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def test_the_page_answers(server: str) -> None:
    with urllib.request.urlopen(server, timeout=PATIENCE) as answer:
        assert answer.status == 200
        assert b"<title>" in answer.read()


def test_the_api_answers_on_the_same_port(server: str) -> None:
    status, plan = ask(server, "/api/v1/plan", request_values())
    assert status == 200
    assert plan["candidates"][0]["rank"] == 1
    assert ask(server, "/api/v1/hardware")[1]["hardware"]
    assert ask(server, "/api/v1/plan", {"model": "x"})[0] == 422


def test_a_local_server_reads_model_folders(
    server: str, tmp_path: Path, tiny_config: dict[str, Any]
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(tiny_config))
    status, answer = ask(
        server,
        "/api/v1/estimate",
        request_values(str(tmp_path), "cpu", 1, workload={"input_tokens": 64, "output_tokens": 64}),
    )
    assert status == 200, answer
    assert answer["candidate"]["engine"] == "transformers"


def test_agents_ask_on_the_same_port(server: str) -> None:
    """With what the page tells them to be configured with, and to send."""
    where = json.loads(snippets.agent(server))["mcpServers"]["recipe-builder"]["url"]
    message = json.loads(snippets.tool_call(make_request(), Parameters(port=9000)))

    async def asked() -> Any:
        async with Client(where) as client:
            answer = await client.call_tool(**message["params"])
            return answer, await client.read_resource(answer.structured_content["zip"])

    answer, found = finished(asked())
    assert "MANIFEST.json" in answer.structured_content["files"]
    recipe = make_recipe(make_request(), Additions(parameters=Parameters(port=9000)))
    assert base64.b64decode(found.contents[0].blob) == zip_bytes(recipe)
