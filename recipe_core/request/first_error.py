"""What pydantic refused, as one sentence that names the field, the value and the fix."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from recipe_core.base.documented import field_of, models_in
from recipe_core.base.errors import InputError


def first_error(
    error: ValidationError, value: Mapping[str, Any], model: type[BaseModel]
) -> InputError:
    """The first problem as one sentence: field, value, what is wrong, and the fix."""
    details = error.errors(include_url=False)
    problem = next((p for p in details if p["type"] == "extra_forbidden"), details[0])
    path = [str(step) for step in problem["loc"] if step not in _NO_FIELD]
    field = ".".join(path) or None
    if problem["type"] == "missing":
        hint = "Add it; see docs/reference/request.md for an example."
        return InputError("is missing.", field=field, hint=hint)
    if problem["type"] == "extra_forbidden":
        hint = f"Known here: {', '.join(_known_fields(path[:-1], value, model))}."
        return InputError("is not a known field.", field=field, hint=hint)
    message = problem["msg"].removeprefix("Value error, ")
    entry = problem.get("input")
    shown = "" if isinstance(entry, Mapping | list | tuple | BaseModel) else f" (got {entry!r:.80})"
    return InputError(f"{message[0].lower() + message[1:]}{shown}.", field=field)


# Steps of an error's place that name a choice of the schema.
_NO_FIELD = (
    "serving",
    "training",
    "open hardware",
    "one cluster",
    "str",
    "constrained-str",
    "dict[any,any]",
    "dict[str,any]",
)


def _known_fields(path: list[str], value: Mapping[str, Any], model: type[BaseModel]) -> list[str]:
    """Names of the fields that the object at ``path`` may have."""
    if not path:
        return list(model.model_fields)
    models = list(models_in(field_of(model, ".".join(path)).annotation))
    if path == ["workload"]:
        kind = value["workload"].get("kind", "serving")
        models = [m for m in models if kind in get_args(m.model_fields["kind"].annotation)]
    return [name for model in models for name in model.model_fields]
