"""The other doors give the same bundle."""

from __future__ import annotations

import io
import json
import shlex
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from recipe_core.bundle.write import zip_bytes
from recipe_core.doors.api import create_api
from recipe_core.present import snippets
from recipe_core.recipe import Additions, make_recipe
from recipe_core.targets import Parameters
from tests.conftest import make_request

BASE = "http://127.0.0.1:8501"
PLACES = [Parameters(), Parameters(namespace="llm", node_selector={"pool": "a"}, port=9000)]


def asked(url: str, data: bytes) -> bytes:
    """What the server would answer; it has the API under /api/v1."""
    assert url == f"{BASE}/api/v1/build"
    answer = TestClient(create_api(folders=False)).post(
        "/build", content=data, headers={"content-type": "application/json"}
    )
    assert answer.status_code == 200, answer.text
    return answer.content


@pytest.mark.parametrize("place", PLACES)
def test_curl_sends_what_the_page_builds(place: Parameters) -> None:
    request = make_request()
    words = shlex.split(snippets.curl(BASE, request, place, "name"))
    said = dict(pairwise(words))
    assert said["-o"] == "name.zip"
    url = next(word for word in words if word.startswith("http"))
    assert asked(url, said["-d"].encode()) == zip_bytes(
        make_recipe(request, Additions(parameters=place))
    )


@pytest.mark.parametrize("place", PLACES)
def test_python_sends_what_the_page_builds(
    place: Parameters, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    request = make_request()
    monkeypatch.setattr(
        "urllib.request.urlopen", lambda sent: io.BytesIO(asked(sent.full_url, sent.data))
    )
    monkeypatch.chdir(tmp_path)
    exec(compile(snippets.python(BASE, request, place, "name"), "snippet", "exec"), {})
    assert (tmp_path / "name.zip").read_bytes() == zip_bytes(
        make_recipe(request, Additions(parameters=place))
    )


def test_the_command_line_builds_and_checks(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from typer.testing import CliRunner

    from recipe_core.doors.cli.app import app

    monkeypatch.chdir(tmp_path)
    (tmp_path / "request.yaml").write_text(json.dumps(make_request().to_json()))
    for line in snippets.command_line(PLACES[1], "name"):
        program, *words = shlex.split(line)
        assert program == "recipe"
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 0, done.output
    assert (tmp_path / "name.zip").read_bytes() == zip_bytes(
        make_recipe(make_request(), Additions(parameters=PLACES[1]))
    )


def test_only_what_was_filled_in_is_sent() -> None:
    values: dict[str, Any] = snippets.body(make_request(), Parameters())
    assert "parameters" not in values
    assert snippets.body(make_request(), PLACES[1])["parameters"] == {
        "port": 9000,
        "namespace": "llm",
        "node_selector": {"pool": "a"},
    }
