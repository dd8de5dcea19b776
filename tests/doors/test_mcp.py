"""The agents' door gives what the JSON API gives."""

from __future__ import annotations

import base64
import io
import json
import sys
import zipfile
import zlib
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from mcp import Client, StdioServerParameters
from mcp.shared.exceptions import MCPError
from mcp.types import BlobResourceContents, CallToolResult, TextContent, TextResourceContents

from recipe_core.base.documents import MAX_DOCUMENT_BYTES
from recipe_core.base.errors import InputError
from recipe_core.doors.answers import Answers, engines
from recipe_core.doors.mcp import TOOLS, Tools, create_mcp, packed, unpacked
from tests.conftest import finished, request_values

ASK = Answers(folders=False)


def asked(question: Callable[[Client], Awaitable[Any]], server: Any = None) -> Any:
    """What a real client gets."""

    async def ask() -> Any:
        async with Client(server or create_mcp(folders=False)) as client:
            return await question(client)

    return finished(ask())


def call(tool: str, /, *, server: Any = None, **arguments: Any) -> CallToolResult:
    answer: CallToolResult = asked(lambda client: client.call_tool(tool, arguments), server)
    return answer


def answered(tool: str, /, **arguments: Any) -> dict[str, Any]:
    answer = call(tool, **arguments).structured_content
    assert answer is not None
    return answer


def read(uri: str) -> Any:
    """The contents of one resource."""
    return asked(lambda client: client.read_resource(uri)).contents[0]


def tools_listed() -> Any:
    return asked(lambda client: client.list_tools()).tools


def said(answer: CallToolResult) -> dict[str, Any]:
    """The error of an answer that is one."""
    assert answer.is_error
    assert isinstance(answer.content[0], TextContent)
    text = answer.content[0].text
    error: dict[str, Any] = json.loads(text[text.index("{") :])["error"]
    return error


def test_every_public_method_is_a_tool_that_says_what_it_does() -> None:
    tools, public = tools_listed(), {name for name in vars(Tools) if not name.startswith("_")}
    assert {tool.name for tool in tools} == set(TOOLS) == public
    assert all(tool.description and tool.annotations.read_only_hint for tool in tools)
    described = {tool.name: tool.input_schema["properties"] for tool in tools}
    assert "PlanRequest" in described["plan"]["request"]["description"]


CLUSTER = {"device": "h100-sxm", "per_node": 8, "nodes": 8}
TRAINING = {"kind": "training", "sequence_length": 4096, "global_batch": 64, "tokens": 1e9}


@pytest.mark.parametrize(
    "request_body",
    [request_values(), request_values(hardware=CLUSTER) | {"workload": TRAINING}],
    ids=["serving", "training"],
)
def test_plan_and_estimate_are_those_of_the_api(request_body: dict[str, Any]) -> None:
    plan = answered("plan", request=request_body, top=2, refused=1)
    whole = ASK.plan(request_body)
    assert plan["candidates"] == whole["candidates"][:2]
    assert (plan["refused"], plan["counts"]) == (whole["refused"][:1], whole["counts"])
    candidate = plan["candidates"][1]["candidate"]
    stated = request_body | {"candidate": candidate}
    assert answered("estimate", request=stated) == ASK.estimate(stated)


def test_a_command_is_checked_or_converted_and_never_run() -> None:
    command = "vllm serve Qwen/Qwen3-32B -tp 2 --nope 1"
    body = {"command": command, "hardware": "h100-sxm:2"}
    assert answered("check", **body) == ASK.check(body)
    where = {"command": command, "hardware": "h100-sxm", "gpus": 2}
    found = answered("check", **where, ground={"concurrency": 8})
    assert found == ASK.check(where | {"concurrency": 8})
    split = body | {"command": command.split()}
    assert answered("convert", **split) == ASK.convert(split)
    assert said(call("check", **body | {"command": "touch here; vllm"}))["field"] == "command"
    assert said(call("check"))["message"] == "give either a request or a command."


def test_a_bundle_is_described_and_read_as_a_resource() -> None:
    body = {"request": request_values(), "parameters": {"port": 9000}}
    answer = answered("build", recipe=body, files=["recipe.yaml"])
    contents = read(answer["zip"])
    assert isinstance(contents, BlobResourceContents)
    data = base64.b64decode(contents.blob)
    assert (answer["name"], data) == ASK.build(body)
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        assert answer["files"] == {each.filename: each.file_size for each in archive.infolist()}
        assert answer["texts"] == {"recipe.yaml": archive.read("recipe.yaml").decode()}
    assert said(call("build", recipe=body, files=["../x"]))["field"] == "files"


def test_recipes_are_resolved_and_compared() -> None:
    body = {"request": request_values(), "for": ["mi300x:8"]}
    recipe = answered("recipe", recipe=body)
    assert recipe == ASK.recipe(body)
    assert answered("resolve", recipe=recipe, hardware="mi300x:8")["applied"] == ["mi300x-8"]
    pair = {"before": recipe, "after": request_values(candidate={"tp": 4, "pp": 1, "dp": 2})}
    assert answered("diff", **pair) == ASK.diff(pair)


def test_what_is_known() -> None:
    for what, name in (("models", "Qwen/Qwen3-8B"), ("hardware", "mi300x"), ("engines", "vllm")):
        assert answered("known", what=what)
        assert answered("known", what=what, name=name)["name"] == name
    schema = read("recipe://schema/recipe")
    assert isinstance(schema, TextResourceContents)
    assert json.loads(schema.text) == answered("known", what="schema", name="recipe")


def test_errors_name_field_and_fix() -> None:
    error = said(call("plan", request=request_values(hardware={"device": "h100-sxn"})))
    assert error["field"] == "hardware.device"
    assert "h100-sxm" in error["hint"]
    assert "path" in said(call("plan", request=request_values(model="/etc")))["message"]


def test_a_resource_that_there_is_not_is_a_protocol_error() -> None:
    async def refused(client: Client) -> None:
        with pytest.raises(MCPError, match="build"):
            await client.read_resource("recipe://bundle/AAAA")

    asked(refused)


def test_words_hold_what_was_packed_and_foreign_ones_are_refused() -> None:
    body = {"request": request_values(), "parameters": {"namespace": "größe"}}
    assert unpacked(packed(body)) == body
    bomb = zlib.compress(b" " * (MAX_DOCUMENT_BYTES + 1))
    foreign = [
        base64.urlsafe_b64encode(word).decode() for word in (b"plain", zlib.compress(b"[1]"), bomb)
    ]
    for word in ("!", *foreign, packed({"model": "x"})[:-8]):
        with pytest.raises(InputError) as caught:
            unpacked(word)
        assert caught.value.field == "uri"


def test_a_process_of_its_own_answers() -> None:
    own = StdioServerParameters(command=sys.executable, args=["-m", "recipe_core", "mcp"])
    assert answered("known", server=own, what="engines", name="vllm") == engines("vllm")
