from __future__ import annotations

import io
import json
import zipfile

import pytest
from starlette.testclient import TestClient

from recipe_core.api import create_api
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
    assert client.get("/models/Qwen/Qwen3-8B").json()["parameters"] == pytest.approx(8.19e9, rel=0.005)
    assert {e["name"] for e in client.get("/engines").json()["engines"]} >= {"vllm", "transformers"}
    assert client.get("/schema").json()["properties"]["hardware"]


def test_a_bundle_comes_as_a_zip(client):
    answer = client.post("/build", json=request_values())
    assert answer.headers["content-type"] == "application/zip"
    assert "MANIFEST.json" in zipfile.ZipFile(io.BytesIO(answer.content)).namelist()


@pytest.mark.parametrize(
    ("path", "body", "status", "field"),
    [
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
    answer = client.post("/plan", content=b" " * (5 << 20), headers={"content-type": "application/json"})
    assert answer.status_code == 413


def test_unknown_paths_answer_json(client):
    assert client.get("/nothing").json()["error"]["code"] == "http"
    assert client.get("/models/no/such").status_code == 422


def test_the_surface_is_frozen(client):
    """Paths and methods of the API; change them knowingly."""
    document = client.get("/openapi.json").json()
    surface = sorted(f"{method.upper()} {path}" for path, methods in document["paths"].items() for method in methods)
    assert surface == [
        "GET /engines",
        "GET /hardware",
        "GET /hardware/{name}",
        "GET /models",
        "GET /models/{name}",
        "GET /schema",
        "GET /schema/{name}",
        "POST /build",
        "POST /check",
        "POST /convert",
        "POST /diff",
        "POST /estimate",
        "POST /plan",
        "POST /recipe",
        "POST /resolve",
    ]
    assert "NaN" not in json.dumps(document)
