"""The API, the agents' door, the command line and the page's snippets give the same answers.

Every field of the documents says what it means and in which unit, and the doors pass it on.
"""

from __future__ import annotations

import base64
import io
import json
import shlex
import sys
import zipfile
import zlib
from itertools import pairwise
from typing import Any

import pytest
from mcp import Client, StdioServerParameters
from mcp.shared.exceptions import MCPError
from mcp.types import BlobResourceContents, TextResourceContents
from pydantic import BaseModel
from starlette.testclient import TestClient

from recipe_core.base.documented import DESCRIBED, field_of
from recipe_core.base.documents import MAX_DOCUMENT_BYTES, to_yaml
from recipe_core.bundle.write import zip_bytes
from recipe_core.doors import answers, operations
from recipe_core.doors.api import create_api
from recipe_core.doors.catalog import engines
from recipe_core.doors.mcp import pack_body, unpack_body
from recipe_core.recipe import Additions, make_recipe
from recipe_core.request.schema import PlanRequest, describe_field
from recipe_core.targets import Parameters, form
from recipe_core.views import exports
from recipe_core.views.catalog import document_schema
from tests.conftest import make_request, request_values
from tests.fixtures.agents import answered, asked, error_of
from tests.fixtures.command_line import recipe
from tests.fixtures.refusals import refusal
from tests.fixtures.rows import over, table

JSON = {"content-type": "application/json"}
REQUEST = request_values()
CLUSTER = {"device": "h100-sxm", "per_node": 8, "nodes": 8}
TRAINING = {"kind": "training", "sequence_length": 4096, "global_batch": 64, "tokens": 1e9}
COMMAND = {"command": "vllm serve Qwen/Qwen3-32B -tp 2 --nope 1", "hardware": "h100-sxm:2"}
BODY = {"request": REQUEST, "parameters": {"port": 9000}, "for": ["mi300x:8"]}
ANOTHER = request_values(candidate={"tp": 4, "pp": 1, "dp": 2})


@pytest.fixture(scope="module")
def client() -> TestClient:
    return TestClient(create_api(folders=False), raise_server_exceptions=True)


def plain(value: Any) -> Any:
    return json.loads(json.dumps(value))


@pytest.mark.parametrize(
    "request_body",
    [REQUEST, request_values(hardware=CLUSTER) | {"workload": TRAINING}],
    ids=["serving", "training"],
)
def test_plans_and_estimates_agree(client: TestClient, request_body: dict[str, Any]) -> None:
    whole = answers.answer_plan(request_body)
    plan = answered("plan", request=request_body, top=2, refused=1)
    assert plan["candidates"] == whole["candidates"][:2]
    assert (plan["refused"], plan["counts"]) == (whole["refused"][:1], whole["counts"])
    posted = client.post("/plan", json=request_body, params={"top": 1}).json()
    assert posted["candidates"] == plain(whole["candidates"][:1])
    printed = json.loads(recipe("plan", "-", "--json", stdin=to_yaml(request_body)).stdout)
    assert printed == plain(whole)
    best = plan["candidates"][1]
    stated = request_body | {"candidate": best["candidate"]}
    estimate = answers.answer_estimate(stated)
    assert answered("estimate", request=stated) == estimate
    assert client.post("/estimate", json=stated).json() == plain(estimate)
    printed = json.loads(recipe("estimate", "-", "--json", stdin=to_yaml(stated)).stdout)
    assert printed == plain(estimate)
    kind = "training" if "training" in estimate else "serving"
    assert best["estimate"][kind].items() <= estimate[kind].items()  # and percentiles


def test_recipes_commands_and_differences_agree(client: TestClient) -> None:
    made = answers.answer_recipe(BODY)
    assert made["parameters"]["port"] == 9000
    where = {"command": COMMAND["command"], "hardware": "h100-sxm", "gpus": 2}
    pair = {"before": made, "after": ANOTHER}
    found: dict[str, Any] = {}
    exact = {"concurrency": 8, "input_spread": 0, "output_spread": 0}
    for operation, body, arguments in (
        ("recipe", BODY, {"recipe": BODY}),
        ("resolve", {"recipe": made, "hardware": "mi300x:8"}, None),
        ("diff", pair, None),
        ("check", COMMAND, None),
        ("check", where | {"concurrency": 8}, where | {"ground": {"concurrency": 8}}),
        ("check", where | exact, where | {"ground": exact}),
        ("convert", COMMAND | {"command": COMMAND["command"].split()}, None),
        ("convert", COMMAND, None),
    ):
        found[operation] = plain(operations.OPERATIONS[operation].answer(body))
        assert client.post(f"/{operation}", json=body).json() == found[operation], operation
        assert answered(operation, **(arguments or body)) == found[operation], operation
    assert "in waves" in str(found["check"])
    assert found["resolve"]["applied"] == ["mi300x-8"]
    batched = "max_num_batched_tokens"
    assert found["resolve"]["options"][batched] != made["engine"]["options"][batched]
    change = {"field": "candidate.tp", "before": 8, "after": 4}
    assert change in found["diff"]["changed"]["candidate"]
    lost = found["convert"]["lost"][0]["what"]
    assert (found["convert"]["recipe"]["candidate"]["tp"], lost) == (2, "--nope 1")
    document = {"argv": ["vllm", "serve", "Qwen/Qwen3-8B"], "hardware": "h200"}
    answer = client.post("/convert", json={"document": document}).json()
    assert answer["recipe"]["device"]["name"] == "h200-sxm"


def test_advice_on_formats_agrees(client: TestClient) -> None:
    request = {
        "model": "Qwen/Qwen3-8B",
        "hardware": {"device": "h100-sxm", "per_node": 1},
        "workload": {"input_tokens": 512, "output_tokens": 128, "concurrency": 16},
        "objective": {"optimize": "cost", "limits": {"accuracy_recovery": 0.97}},
    }
    names = ["fp8_w8a8", "kv_fp8", "sparse_unstructured"]
    reply = client.post(f"/compress?techniques={','.join(names)}", json=request)
    answer = plain(answers.answer_compress(request, techniques=",".join(names)))
    assert (reply.status_code, reply.json()) == (200, answer)
    rows = answered("compress", request=request, techniques=names)
    assert rows["formats"] == answer["formats"]
    assert "matrix" not in rows
    words = [word for name in names for word in ("--technique", name)]
    printed = recipe("compress", "-", *words, "--json", stdin=to_yaml(request))
    assert (printed.returncode, json.loads(printed.stdout)) == (0, answer)
    text = recipe("compress", "-", *words, stdin=to_yaml(request), columns=200).stdout
    assert "FP8 weights and activations" in text
    assert "void. Zeros are stored" in text
    run = recipe("compress", "-", stdin=to_yaml(REQUEST | {"workload": TRAINING}))
    assert run.returncode == 2
    assert "served" in run.stderr


def test_bundles_agree(client: TestClient) -> None:
    body = {"request": REQUEST, "parameters": {"port": 9000}}
    name, data = answers.answer_build(body)
    answer = answered("build", recipe=body, files=["recipe.yaml"])
    contents = asked(lambda agent: agent.read_resource(answer["zip"])).contents[0]
    assert isinstance(contents, BlobResourceContents)
    assert (answer["name"], base64.b64decode(contents.blob)) == (name, data)
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        assert answer["files"] == {each.filename: each.file_size for each in archive.infolist()}
        assert answer["texts"] == {"recipe.yaml": archive.read("recipe.yaml").decode()}
    assert error_of("build", recipe=body, files=["../x"])["field"] == "files"
    made = answers.answer_recipe(body)
    for sent in (body, made):
        posted = client.post("/build", json=sent)
        assert posted.headers["content-type"] == "application/zip"
        assert posted.content == data
    foreign = made | {"request": made["request"] | {"model": "/etc"}}  # a path is not followed
    refused = client.post("/build", json=foreign)
    assert (refused.status_code, refused.json()["error"]["field"]) == (422, "model")


def test_what_is_known_agrees(client: TestClient) -> None:
    def got(path: str) -> Any:
        return client.get(path).json()

    for what, name in (("models", "Qwen/Qwen3-8B"), ("hardware", "mi300x"), ("engines", "vllm")):
        listed = plain(answered("known", what=what))
        assert got(f"/{what}") == listed
        assert name in str(listed)
        assert answered("known", what=what, name=name)["name"] == name
    assert got("/hardware/mi300x")["vendor"] == "amd"
    assert got("/models/Qwen/Qwen3-8B")["parameters"] == pytest.approx(8.19e9, rel=0.005)
    assert got("/schema/request").items() >= got("/schema").items()
    schema = asked(lambda agent: agent.read_resource("recipe://schema/recipe")).contents[0]
    assert isinstance(schema, TextResourceContents)
    known = answered("known", what="schema", name="recipe")
    assert json.loads(schema.text) == known == got("/schema/recipe")
    for unknown in ("/schema/nothing", "/models/no/such"):
        assert client.get(unknown).status_code == 422
    assert got("/nothing")["error"]["code"] == "http"
    own = StdioServerParameters(command=sys.executable, args=["-m", "recipe_core", "mcp"])
    assert answered("known", server=own, what="engines", name="vllm") == engines("vllm")


# Refusals


@over("path, body, status, field", table("doors", "api_errors"))
def test_errors_of_the_api_have_one_shape(client, path, body, status, field):
    if path.startswith(("/plan", "/build", "/compress")) and isinstance(body, dict):
        body = REQUEST | body
    for part in ("request", "recipe", "before"):
        if part in body:
            body[part] = REQUEST
    answer = client.post(path, json=body)
    assert answer.status_code == status
    error = answer.json()["error"]
    assert (set(error), error["field"]) == ({"code", "field", "message", "hint"}, field)


def test_what_is_not_json_or_too_large_is_refused(client: TestClient) -> None:
    answer = client.post("/plan", content=b"{", headers=JSON)
    assert answer.status_code == 422
    assert "JSON" in answer.json()["error"]["message"]
    assert client.post("/plan", content=b" " * (5 << 20), headers=JSON).status_code == 413


def test_faults_and_other_methods_are_told_in_the_same_shape(client, monkeypatch, caplog) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise KeyError("secret")

    for method, path, allowed in (
        ("POST", "/models", "GET"),
        ("PUT", "/jobs/a", "DELETE, GET"),
        ("DELETE", "/plan", "POST"),
    ):
        answer = client.request(method, path)
        assert (answer.status_code, answer.headers["allow"]) == (405, allowed)
        assert answer.json()["error"]["code"] == "http"
    monkeypatch.setattr(operations, "reply", fail)
    monkeypatch.setattr(operations, "answer_operation", fail)
    answer = client.post("/plan", json=REQUEST)
    assert answer.status_code == 500
    for error in (answer.json()["error"], error_of("plan", request=REQUEST)):
        assert (error["code"], set(error)) == ("server", {"code", "field", "message", "hint"})
        number = error["hint"].split()[-1].rstrip(".")
        assert number in caplog.text
        assert "secret" not in str(error)


def test_errors_of_tools_name_field_and_fix() -> None:
    error = error_of("plan", request=request_values(hardware={"device": "h100-sxn"}))
    assert error["field"] == "hardware.device"
    assert "h100-sxm" in error["hint"]
    assert "path" in error_of("plan", request=request_values(model="/etc"))["message"]
    assert error_of("check", **COMMAND | {"command": "touch here; vllm"})["field"] == "command"
    assert error_of("check")["message"] == "give either a request, a command or a file."

    async def refused(agent: Client) -> None:
        with pytest.raises(MCPError, match="build"):
            await agent.read_resource("recipe://bundle/AAAA")

    asked(refused)


def test_words_hold_what_was_packed_and_foreign_ones_are_refused() -> None:
    body = {"request": REQUEST, "parameters": {"namespace": "größe"}}
    assert unpack_body(pack_body(body)) == body
    bomb = zlib.compress(b" " * (MAX_DOCUMENT_BYTES + 1))
    foreign = [
        base64.urlsafe_b64encode(word).decode() for word in (b"plain", zlib.compress(b"[1]"), bomb)
    ]
    for word in ("!", *foreign, pack_body({"model": "x"})[:-8]):
        assert refusal(unpack_body, word).field == "uri"


# Snippets of the page

BASE = "http://127.0.0.1:8501"
PLACE = Parameters(namespace="llm", node_selector={"pool": "a"}, port=9000)


def sent(url: str, data: bytes) -> bytes:
    """What the server would answer; it has the API under /api/v1."""
    assert url == f"{BASE}/api/v1/build"
    answer = TestClient(create_api(folders=False)).post("/build", content=data, headers=JSON)
    assert answer.status_code == 200, answer.text
    return answer.content


@pytest.mark.parametrize("place", [Parameters(), PLACE])
def test_snippets_send_what_the_page_builds(place: Parameters, monkeypatch, tmp_path) -> None:
    request = make_request()
    built = zip_bytes(make_recipe(request, Additions(parameters=place)))
    words = shlex.split(exports.build_request_curl(BASE, request, place, "name"))
    options = dict(pairwise(words))
    assert options["-o"] == "name.zip"
    url = next(word for word in words if word.startswith("http"))
    assert sent(url, options["-d"].encode()) == built
    monkeypatch.setattr(
        "urllib.request.urlopen", lambda asked: io.BytesIO(sent(asked.full_url, asked.data))
    )
    monkeypatch.chdir(tmp_path)
    exec(compile(exports.python(BASE, request, place, "name"), "snippet", "exec"), {})
    assert (tmp_path / "name.zip").read_bytes() == built
    (tmp_path / "name.zip").unlink()
    (tmp_path / "request.yaml").write_text(json.dumps(request.to_json()))
    for line in exports.command_line(place, "name"):
        program, *rest = shlex.split(line)
        assert program == "recipe"
        assert recipe(*rest, cwd=tmp_path).returncode == 0, line
    assert (tmp_path / "name.zip").read_bytes() == built


def test_only_what_was_filled_in_is_sent() -> None:
    values: dict[str, Any] = exports.body(make_request(), Parameters())
    assert "parameters" not in values
    filled = {"port": 9000, "namespace": "llm", "node_selector": {"pool": "a"}}
    assert exports.body(make_request(), PLACE)["parameters"] == filled


# Descriptions


def described(name: str) -> dict[str, dict[str, Any]]:
    """Every property of a document's schema, by model and field."""
    whole = document_schema(name)
    return {
        f"{model}.{field}": values
        for model, definition in {"": whole, **whole.get("$defs", {})}.items()
        for field, values in definition.get("properties", {}).items()
    }


def units_of(field: str) -> list[str]:
    """The words that a field's description must have."""
    units, quantities = table("doors", "units").items(), table("doors", "quantities").items()
    by_end = [unit for end, unit in units if f"_{field}".endswith(end)][:1]
    return by_end + [unit for start, unit in quantities if field.startswith(start)]


@over("name", ("request", "recipe", "manifest", "estimate", "simulate"))
def test_every_field_has_a_sentence_of_one_line_that_names_its_unit(name: str) -> None:
    fields = described(name)
    assert len(fields) >= 4
    texts = {field: properties.get("description", "") for field, properties in fields.items()}
    odd = [f for f, text in texts.items() if "\n" in text or "``" in text or text[-1:] != "."]
    unitless = [
        f"{field} lacks {unit!r}"
        for field, text in texts.items()
        for unit in units_of(field.rpartition(".")[2])
        if unit.casefold() not in text.casefold()
    ]
    assert (odd, unitless) == ([], [])


def test_a_field_is_described_by_the_string_below_it_and_else_not_at_all() -> None:
    class Document(BaseModel):
        model_config = DESCRIBED

        said: int
        """Said
        over ``two`` lines."""

        silent: int

    properties = Document.model_json_schema()["properties"]
    assert properties["said"]["description"] == "Said over `two` lines."
    assert "description" not in properties["silent"]


def test_a_field_is_described_by_its_dotted_name() -> None:
    fields = described("request")
    tpot = describe_field("objective.limits.tpot_ms")
    assert tpot == fields["Limits.tpot_ms"]["description"]
    assert "milliseconds" in tpot
    assert describe_field("options.hardware.0.nodes") == describe_field("hardware.nodes")
    training = fields["TrainingWorkload.global_batch"]["description"]
    assert describe_field("workload.global_batch") == training
    for path in ("objective.limits.tpot", "modle", "model.x", "", "0"):
        with pytest.raises(LookupError):
            field_of(PlanRequest, path)


def test_the_api_and_the_tools_of_agents_bear_the_descriptions(client: TestClient) -> None:
    document = client.get("/openapi.json").json()
    models = document["components"]["schemas"]
    listed = asked(lambda client: client.list_tools()).tools
    tools = {tool.name: tool.input_schema for tool in listed}
    assert tools.keys() == {"known", *operations.OPERATIONS}
    assert all(tool.description and tool.annotations.read_only_hint for tool in listed)
    assert "PlanRequest" in tools["plan"]["properties"]["request"]["description"]
    for definitions in (models, tools["plan"]["$defs"]):
        limit = definitions["Limits"]["properties"]["tpot_ms"]["description"]
        assert limit == describe_field("objective.limits.tpot_ms")
    assert "plan" in tools["estimate"]["properties"]["request"]["description"]
    body = document["paths"]["/plan"]["post"]["requestBody"]["content"]["application/json"]
    assert body["schema"]["$ref"] == "#/components/schemas/PlanBody"
    assert models["PlanBody"]["anyOf"][0]["$ref"] == "#/components/schemas/PlanRequest"
    model = models["PlanRequest"]["properties"]["model"]["description"]
    assert model == describe_field("model")
    names = {name.split(".")[0] for name in described("request")}
    assert names - {""} - models.keys() == set()


def test_every_parameter_of_a_place_is_in_the_form_with_its_description() -> None:
    asked = form.every_field()
    assert {parameter.name for parameter in asked} == set(Parameters.model_fields)
    assert all(parameter.help.endswith(".") for parameter in asked)
