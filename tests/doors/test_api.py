from __future__ import annotations

import io
import json
import zipfile

import pytest
from starlette.testclient import TestClient

from recipe_core.doors.api import create_api
from tests.conftest import request_values


@pytest.fixture(scope="module")
def client():
    return TestClient(create_api(folders=False), raise_server_exceptions=True)


def test_plan_and_estimate_agree(client):
    plan = client.post("/plan", json=request_values(), params={"top": 1}).json()
    best = plan["candidates"][0]
    answer = client.post("/estimate", json=request_values(candidate=best["candidate"])).json()
    assert best["estimate"]["serving"].items() < answer["serving"].items()  # and percentiles
    assert plan["refused"]


def test_catalogs(client):
    assert "h100-sxm" in client.get("/hardware").json()["hardware"]
    assert client.get("/hardware/mi300x").json()["vendor"] == "amd"
    assert "Qwen/Qwen3-8B" in client.get("/models").json()["models"]
    assert client.get("/models/Qwen/Qwen3-8B").json()["parameters"] == pytest.approx(
        8.19e9, rel=0.005
    )
    assert {e["name"] for e in client.get("/engines").json()["engines"]} >= {"vllm", "transformers"}
    assert client.get("/schema").json()["properties"]["hardware"]


def test_a_bundle_comes_as_a_zip(client):
    answer = client.post("/build", json=request_values())
    assert answer.headers["content-type"] == "application/zip"
    assert "MANIFEST.json" in zipfile.ZipFile(io.BytesIO(answer.content)).namelist()


def test_a_recipe_is_asked_for_and_asked_of(client):
    body = {"request": request_values(), "parameters": {"port": 9000}, "for": ["mi300x:8"]}
    recipe = client.post("/recipe", json=body).json()
    assert recipe["parameters"]["port"] == 9000
    found = client.post("/resolve", json={"recipe": recipe, "hardware": "mi300x:8"}).json()
    assert found["applied"] == ["mi300x-8"]
    assert (
        found["options"]["max_num_batched_tokens"]
        != recipe["engine"]["options"]["max_num_batched_tokens"]
    )
    changed = client.post(
        "/diff",
        json={"before": recipe, "after": request_values(candidate={"tp": 4, "pp": 1, "dp": 2})},
    ).json()
    assert {"field": "candidate.tp", "before": 8, "after": 4} in changed["changed"]["candidate"]
    answer = client.post("/build", json=recipe)
    assert "recipe.yaml" in zipfile.ZipFile(io.BytesIO(answer.content)).namelist()


def test_a_command_is_converted(client):
    body = {"command": "vllm serve Qwen/Qwen3-32B -tp 2 --nope 1", "hardware": "h100-sxm:2"}
    answer = client.post("/convert", json=body).json()
    assert answer["recipe"]["candidate"]["tp"] == 2
    assert answer["lost"][0]["what"] == "--nope 1"
    document = {"argv": ["vllm", "serve", "Qwen/Qwen3-8B"], "hardware": "h200"}
    assert (
        client.post("/convert", json={"document": document}).json()["recipe"]["device"]["name"]
        == "h200-sxm"
    )


def test_schemas_are_served(client):
    assert "provenance" in client.get("/schema/recipe").json()["properties"]
    assert client.get("/schema/request").json().items() >= client.get("/schema").json().items()
    assert client.get("/schema/nothing").status_code == 422


def test_a_recipe_that_names_a_path_is_not_followed(client):
    recipe = client.post("/recipe", json=request_values()).json()
    answer = client.post("/build", json=recipe | {"request": recipe["request"] | {"model": "/etc"}})
    assert (answer.status_code, answer.json()["error"]["field"]) == (422, "model")


@pytest.mark.parametrize(
    ("path", "body", "status", "field"),
    [
        ("/recipe", {"request": request_values(), "surprise": 1}, 422, "surprise"),
        (
            "/recipe",
            {"request": request_values(), "parameters": {"prot": 1}},
            422,
            "parameters.prot",
        ),
        ("/recipe", {"request": request_values(), "for": ["mi300x:0"]}, 422, "for"),
        ("/recipe", {"schema_version": 9, "lock": None}, 400, None),
        ("/resolve", {"recipe": request_values()}, 422, "hardware"),
        ("/diff", {"before": request_values()}, 422, "after"),
        ("/convert", {"hardware": "h100-sxm"}, 422, "command"),
        ("/convert", {"document": {"a": 1}, "hardware": "h100-sxm"}, 422, "convert"),
        ("/plan", {"model": "x"}, 422, "hardware"),
        ("/plan", request_values(device="nope"), 422, "hardware.device"),
        ("/plan", request_values(model="/etc"), 422, "model"),
        ("/plan", [1], 422, None),
        ("/build", request_values(per_node=1), 409, "candidate"),
    ],
)
def test_errors_have_one_shape(client, path, body, status, field):
    answer = client.post(path, json=body)
    assert answer.status_code == status
    error = answer.json()["error"]
    assert set(error) == {"code", "field", "message", "hint"}
    assert error["field"] == field


def test_what_is_not_json_is_refused(client):
    answer = client.post("/plan", content=b"{", headers={"content-type": "application/json"})
    assert answer.status_code == 422
    assert "JSON" in answer.json()["error"]["message"]


def test_large_bodies_are_refused_unread(client):
    answer = client.post(
        "/plan", content=b" " * (5 << 20), headers={"content-type": "application/json"}
    )
    assert answer.status_code == 413


def test_unknown_paths_answer_json(client):
    assert client.get("/nothing").json()["error"]["code"] == "http"
    assert client.get("/models/no/such").status_code == 422


def test_the_surface_is_frozen(client):
    """Paths and methods of the API; change them knowingly."""
    document = client.get("/openapi.json").json()
    surface = sorted(
        f"{method.upper()} {path}"
        for path, methods in document["paths"].items()
        for method in methods
    )
    assert surface == [
        "DELETE /jobs/{job_id}",
        "GET /engines",
        "GET /hardware",
        "GET /hardware/{name}",
        "GET /jobs/{job_id}",
        "GET /models",
        "GET /models/{name}",
        "GET /offers",
        "GET /schema",
        "GET /schema/{name}",
        "POST /build",
        "POST /check",
        "POST /compress",
        "POST /convert",
        "POST /diff",
        "POST /estimate",
        "POST /plan",
        "POST /recipe",
        "POST /reconcile",
        "POST /resolve",
        "POST /simulate",
        "POST /size",
        "POST /trace",
    ]
    assert "NaN" not in json.dumps(document)
