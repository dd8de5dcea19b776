"""Texts that some language takes for more than a text, and every field to put them into."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import yaml

from recipe_core.bundle.write import Bundle, bundle_of
from recipe_core.models.catalog import catalog_entry
from recipe_core.recipe import Additions, make_recipe
from recipe_core.recipe.place import parse_recipe_variants, read_parameters
from recipe_core.request.schema import PlanRequest
from tests.fixtures.hostile import hostile
from tests.fixtures.paths import DATA
from tests.nightly.attack.readers import texts

PAYLOADS = tuple(hostile("texts"))
KNOWN: dict[str, Any] = yaml.safe_load((DATA / "injection.yaml").read_text())


@dataclass(frozen=True, slots=True)
class Case:
    """A deployment to put texts into."""

    name: str
    engine: str
    device: str
    candidate: Mapping[str, Any] = field(default_factory=dict)
    per_node: int = 2
    nodes: int = 1
    option: str = "chat_template"
    json_option: str = ""
    training: bool = False

    def body(self) -> dict[str, Any]:
        """A request and what travels with it; some targets are closed without these parameters."""
        training = {"kind": "training", "sequence_length": 1024, "global_batch": 32, "tokens": 1e9}
        request = {
            "model": {"_name_or_path": "owner/some-model", **catalog_entry("Qwen/Qwen3-8B").config},
            "hardware": {"device": self.device, "per_node": self.per_node, "nodes": self.nodes},
            "workload": training if self.training else {"concurrency": 8},
            "candidate": {"engine": self.engine, **self.candidate},
        }
        parameters = {"image": "registry.example/engine:1.0", "max_replicas": 2}
        return {"request": request, "parameters": parameters, "variants": []}


CASES = {name: Case(name, **parts) for name, parts in KNOWN["cases"].items()}


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a request: what is merged into the request to put a text there.

    ``whole``: the text is the name itself, from which other names follow; then only what is started
    is held against it.
    """

    name: str
    part: Mapping[str, Any]

    @property
    def whole(self) -> bool:
        return self.name in ("model", "named model")


def fields(case: Case) -> dict[str, Field]:
    """Every field of a deployment's request that takes a text, by its name."""
    parts = KNOWN["fields"] | {
        f"parameters.{name}": {"parameters": {name: "{}"}} for name in KNOWN["parameters"]
    }
    if not case.training:
        parts |= KNOWN["serving"]
        parts |= KNOWN["option"] if case.option else {}
        parts |= KNOWN["json_option"] if case.json_option else {}
        parts |= KNOWN["draft"] if case.engine in ("vllm", "sglang") else {}
    return {name: Field(name, part) for name, part in parts.items()}


def _merged(body: Any, part: Any) -> Any:
    if not (isinstance(body, dict) and isinstance(part, dict)):
        return part
    return body | {name: _merged(body.get(name), inner) for name, inner in part.items()}


def build(case: Case, place: Field, payload: str) -> Bundle:
    """The bundle of a deployment with a text in one of its fields."""
    known = {"$DEVICE": case.device, "$OPTION": case.option, "$JSON_OPTION": case.json_option}
    part = texts(place.part, lambda text: known.get(text, text.replace("{}", payload)))
    body = _merged(deepcopy(case.body()), part)
    additions = Additions(
        parameters=read_parameters(body["parameters"]),
        variants=parse_recipe_variants(body["variants"]),
    )
    request = PlanRequest.parse(body["request"])
    return bundle_of(make_recipe(request, additions, folders=False))
