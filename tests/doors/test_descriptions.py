"""Every field of the documents says what it means and in which unit, and the doors pass it on."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from pydantic import BaseModel
from starlette.testclient import TestClient

from recipe_core.base.described import DESCRIBED, field_of
from recipe_core.doors.api import create_api
from recipe_core.present.schemas import schema
from recipe_core.recipe.place import Parameters
from recipe_core.request.schema import PlanRequest, describe_field
from recipe_core.targets import form
from tests.doors.test_mcp import tools_listed
from tests.fixtures.paths import ROOT

DOCUMENTS = ("request", "recipe", "manifest", "estimate", "simulate")
UNITS = {
    "_per_s": "per second",
    "_s": "second",
    "_ms": "millisecond",
    "_bytes": "byte",
    "_gib": "GiB",
    "_tokens": "token",
    "_hours": "hour",
    "_minutes": "minute",
    "_months": "month",
    "watts": "watt",
}
"""What the description of a field says, by the end of its name; the first that fits."""
QUANTITIES = {
    "usd_": "US dollar",
    "joules_": "joule",
    "bytes_per_": "byte",
    "tokens_per_": "token",
    "sequence_length": "token",
    "max_context": "token",
}
"""The same by the start of its name."""


def described(name: str) -> dict[str, dict[str, Any]]:
    """Every property of a document's schema, by model and field."""
    whole = schema(name)
    properties = {}
    for model, definition in {"": whole, **whole.get("$defs", {})}.items():
        for field, values in definition.get("properties", {}).items():
            properties[f"{model}.{field}"] = values
    return properties


def units_of(field: str) -> list[str]:
    """The words that a field's description must have."""
    by_end = [unit for end, unit in UNITS.items() if f"_{field}".endswith(end)][:1]
    return by_end + [unit for start, unit in QUANTITIES.items() if field.startswith(start)]


@pytest.mark.parametrize("name", DOCUMENTS)
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


def test_names_tell_their_units() -> None:
    assert units_of("restart_s") == ["second"]
    assert units_of("storage_bytes_per_s") == ["per second"]
    assert units_of("tokens_per_s_per_worker") == ["token"]
    assert units_of("usd_per_million_output_tokens") == ["token", "US dollar"]
    assert (units_of("watts"), units_of("tokens")) == (["watt"], ["token"])
    assert units_of("nodes") == []


def test_a_field_without_a_string_stays_silent() -> None:
    """So that the tests above can fail."""

    class Document(BaseModel):
        model_config = DESCRIBED

        told: int
        """Told
        over ``two`` lines."""

        silent: int

    properties = Document.model_json_schema()["properties"]
    assert properties["told"]["description"] == "Told over `two` lines."
    assert "description" not in properties["silent"]


def test_the_reference_is_fresh() -> None:
    script = [sys.executable, "scripts/request_reference.py"]
    done = subprocess.run([*script, "--check"], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, f"run python {script[1]}: {done.stdout}{done.stderr}"


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


def test_the_api_bears_the_descriptions() -> None:
    document = TestClient(create_api(folders=False)).get("/openapi.json").json()
    models = document["components"]["schemas"]
    told = models["Limits"]["properties"]["tpot_ms"]["description"]
    assert told == describe_field("objective.limits.tpot_ms")
    body = document["paths"]["/plan"]["post"]["requestBody"]["content"]["application/json"]
    assert body["schema"]["$ref"] == "#/components/schemas/PlanBody"
    assert models["PlanBody"]["anyOf"][0]["$ref"] == "#/components/schemas/PlanRequest"
    told = models["PlanRequest"]["properties"]["model"]["description"]
    assert told == describe_field("model")
    names = described("request").keys()
    missing = {name.split(".")[0] for name in names if not name.startswith(".")} - models.keys()
    assert missing == set()


def test_the_tools_of_agents_bear_the_descriptions() -> None:
    tools = {tool.name: tool.input_schema for tool in tools_listed()}
    told = tools["plan"]["$defs"]["Limits"]["properties"]["tpot_ms"]["description"]
    assert told == describe_field("objective.limits.tpot_ms")
    assert "plan" in tools["estimate"]["properties"]["request"]["description"]


def test_every_parameter_of_a_place_is_in_the_form_with_its_description() -> None:
    asked = [*form.EVERYWHERE, *form.KUBERNETES, *form.CLUSTERS]
    assert {parameter.name for parameter in asked} == set(Parameters.model_fields)
    assert all(parameter.help.endswith(".") for parameter in asked)
