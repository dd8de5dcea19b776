"""Advice on formats through every door."""

from __future__ import annotations

import json
from typing import Any

import pytest
from starlette.testclient import TestClient

import recipe_core as rb
from recipe_core.base.documents import to_yaml
from recipe_core.doors.api import create_api
from tests.doors.test_mcp import answered
from tests.fixtures.command_line import recipe

REQUEST = {
    "model": "Qwen/Qwen3-8B",
    "hardware": {"device": "h100-sxm", "per_node": 1},
    "workload": {"input_tokens": 512, "output_tokens": 128, "concurrency": 16},
    "objective": {"optimize": "cost", "limits": {"accuracy_recovery": 0.97}},
}
NAMES = ["fp8_w8a8", "kv_fp8", "sparse_unstructured"]


@pytest.fixture(scope="module")
def answer() -> dict[str, Any]:
    plain: dict[str, Any] = json.loads(json.dumps(rb.compress(REQUEST, NAMES).to_json()))
    return plain


def test_the_command_line_says_what_the_library_says(answer: dict[str, Any]) -> None:
    words = [word for name in NAMES for word in ("--technique", name)]
    printed = recipe("compress", "-", *words, "--json", stdin=to_yaml(REQUEST))
    assert (printed.returncode, json.loads(printed.stdout)) == (0, answer)
    text = recipe("compress", "-", *words, stdin=to_yaml(REQUEST), columns=200).stdout
    assert "FP8 weights and activations" in text
    assert "void. Zeros are stored" in text


def test_the_api_says_what_the_library_says(answer: dict[str, Any]) -> None:
    client = TestClient(create_api(folders=False))
    reply = client.post(f"/compress?techniques={','.join(NAMES)}", json=REQUEST)
    assert (reply.status_code, reply.json()) == (200, answer)
    unknown = client.post("/compress?techniques=fp9", json=REQUEST)
    assert (unknown.status_code, unknown.json()["error"]["field"]) == (422, "technique")


def test_agents_get_rows_without_the_matrix(answer: dict[str, Any]) -> None:
    rows = answered("compress", request=REQUEST, techniques=NAMES)
    assert rows["formats"] == answer["formats"]
    assert "matrix" not in rows


def test_training_is_bad_input() -> None:
    run = {**REQUEST, "workload": {"kind": "training", "sequence_length": 4096, "global_batch": 8}}
    run["objective"] = {}
    printed = recipe("compress", "-", stdin=to_yaml(run))
    assert printed.returncode == 2
    assert "served" in printed.stderr
