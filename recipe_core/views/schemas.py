"""JSON Schemas of what this project reads and writes.

``scripts/schemas.py`` writes them to ``docs/schema/``.
"""

from __future__ import annotations

from typing import Any

from pydantic import TypeAdapter

from recipe_core.base.errors import InputError, unknown
from recipe_core.bundle.manifest import Manifest
from recipe_core.compression.advisor.result import CompressAnswer
from recipe_core.estimates.results import Estimate
from recipe_core.recipe import Recipe
from recipe_core.request.schema import PlanRequest
from recipe_core.request.size import SizeRequest
from recipe_core.scaling.result import OverTimeAnswer

DIALECT = "https://json-schema.org/draft/2020-12/schema"
_TYPES: dict[str, Any] = {
    "request": PlanRequest,
    "size": SizeRequest,
    "recipe": Recipe,
    "manifest": Manifest,
    "estimate": Estimate,
    "simulate": OverTimeAnswer,
    "compress": CompressAnswer,
}
NAMES = tuple(_TYPES)


def document_schema(name: str) -> dict[str, Any]:
    """The schema of a document by its name, one of ``NAMES``.

    Raises:
        InputError: for another name.
    """
    if name not in _TYPES:
        message, hint = unknown("schema", name, NAMES)
        raise InputError(message, field="schema", hint=hint)
    return {"$schema": DIALECT, **TypeAdapter(_TYPES[name]).json_schema()}
