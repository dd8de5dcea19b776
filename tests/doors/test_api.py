from __future__ import annotations

import io
import json
import zipfile
from typing import Any

import pytest
from starlette.testclient import TestClient

from recipe_core.base.documents import read_document
from recipe_core.doors.api import create_api
from tests.conftest import request_values
from tests.fixtures.paths import DATA

JSON = {"content-type": "application/json"}


@pytest.fixture(scope="module")
def client() -> TestClient:
    return TestClient(create_api(folders=False), raise_server_exceptions=True)


def test_plan_and_estimate_agree(client: TestClient) -> None:
    plan = client.post("/plan", json=request_values(), params={"top": 1}).json()
    best = plan["candidates"][0]
    answer = client.post("/estimate", json=request_values(candidate=best["candidate"])).json()
    assert best["estimate"]["serving"].items() < answer["serving"].items()  # and percentiles
    assert plan["refused"]


def test_catalogs_and_schemas(client: TestClient) -> None:
    def got(path: str) -> Any:
        return client.get(path).json()

    assert "h100-sxm" in got("/hardware")["hardware"]
    assert got("/hardware/mi300x")["vendor"] == "amd"
    assert "Qwen/Qwen3-8B" in got("/models")["models"]
    assert got("/models/Qwen/Qwen3-8B")["parameters"] == pytest.approx(8.19e9, rel=0.005)
    assert {e["name"] for e in got("/engines")["engines"]} >= {"vllm", "transformers"}
    assert got("/schema")["properties"]["hardware"]
    assert "provenance" in got("/schema/recipe")["properties"]
    assert got("/schema/request").items() >= got("/schema").items()
    for unknown in ("/schema/nothing", "/models/no/such"):
        assert client.get(unknown).status_code == 422
    assert got("/nothing")["error"]["code"] == "http"


def test_a_recipe_is_asked_for_and_asked_of(client: TestClient) -> None:
    body = {"request": request_values(), "parameters": {"port": 9000}, "for": ["mi300x:8"]}
    recipe = client.post("/recipe", json=body).json()
    assert recipe["parameters"]["port"] == 9000
    found = client.post("/resolve", json={"recipe": recipe, "hardware": "mi300x:8"}).json()
    assert found["applied"] == ["mi300x-8"]
    batched = "max_num_batched_tokens"
    assert found["options"][batched] != recipe["engine"]["options"][batched]
    after = request_values(candidate={"tp": 4, "pp": 1, "dp": 2})
    changed = client.post("/diff", json={"before": recipe, "after": after}).json()
    assert {"field": "candidate.tp", "before": 8, "after": 4} in changed["changed"]["candidate"]
    for request, file in ((recipe, "recipe.yaml"), (request_values(), "MANIFEST.json")):
        answer = client.post("/build", json=request)
        assert answer.headers["content-type"] == "application/zip"
        assert file in zipfile.ZipFile(io.BytesIO(answer.content)).namelist()
    foreign = recipe | {"request": recipe["request"] | {"model": "/etc"}}  # a path is not followed
    answer = client.post("/build", json=foreign)
    assert (answer.status_code, answer.json()["error"]["field"]) == (422, "model")


def test_a_command_is_converted(client: TestClient) -> None:
    body = {"command": "vllm serve Qwen/Qwen3-32B -tp 2 --nope 1", "hardware": "h100-sxm:2"}
    answer = client.post("/convert", json=body).json()
    assert (answer["recipe"]["candidate"]["tp"], answer["lost"][0]["what"]) == (2, "--nope 1")
    document = {"argv": ["vllm", "serve", "Qwen/Qwen3-8B"], "hardware": "h200"}
    answer = client.post("/convert", json={"document": document}).json()
    assert answer["recipe"]["device"]["name"] == "h200-sxm"


REQUEST = request_values()


@pytest.mark.parametrize(
    ("path", "body", "status", "field"),
    [
        ("/recipe", {"request": REQUEST, "surprise": 1}, 422, "surprise"),
        ("/recipe", {"request": REQUEST, "parameters": {"prot": 1}}, 422, "parameters.prot"),
        ("/recipe", {"request": REQUEST, "for": ["mi300x:0"]}, 422, "for"),
        ("/recipe", {"schema_version": 9, "lock": None}, 400, None),
        ("/resolve", {"recipe": REQUEST}, 422, "hardware"),
        ("/diff", {"before": REQUEST}, 422, "after"),
        ("/convert", {"hardware": "h100-sxm"}, 422, "command"),
        ("/convert", {"document": {"a": 1}, "hardware": "h100-sxm"}, 422, "convert"),
        ("/plan", {"model": "x"}, 422, "hardware"),
        ("/plan", request_values(device="nope"), 422, "hardware.device"),
        ("/plan", request_values(model="/etc"), 422, "model"),
        ("/plan", [1], 422, None),
        ("/build", request_values(per_node=1), 409, "candidate"),
    ],
)
def test_errors_have_one_shape(
    client: TestClient, path: str, body: Any, status: int, field: str | None
) -> None:
    answer = client.post(path, json=body)
    assert answer.status_code == status
    error = answer.json()["error"]
    assert (set(error), error["field"]) == ({"code", "field", "message", "hint"}, field)


def test_what_is_not_json_or_too_large_is_refused(client: TestClient) -> None:
    answer = client.post("/plan", content=b"{", headers=JSON)
    assert answer.status_code == 422
    assert "JSON" in answer.json()["error"]["message"]
    assert client.post("/plan", content=b" " * (5 << 20), headers=JSON).status_code == 413


def test_the_surface_is_frozen(client: TestClient) -> None:
    document = client.get("/openapi.json").json()
    paths = document["paths"].items()
    surface = [f"{method.upper()} {path}" for path, methods in paths for method in methods]
    assert sorted(surface) == read_document(DATA / "doors.yaml")["api"]
    assert "NaN" not in json.dumps(document)
