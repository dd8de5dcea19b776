"""The first refusal of pydantic, as a sentence that names the field, the value and the fix."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError

from recipe_core.base.documented import description_of, models_at
from recipe_core.base.errors import InputError
from recipe_core.base.problems import Problem, first_problem, type_in_words

Model = TypeVar("Model", bound=BaseModel)


def validate_plain(
    value: Any, model: type[Model], example: str = "docs/reference/request.md"
) -> Model:
    """Return plain values as a document; ``example`` is the page that shows one.

    Raises:
        InputError: for the first problem: the field, its value, what is wrong, and the fix.
    """
    if not isinstance(value, Mapping):
        needed = [name for name, field in model.model_fields.items() if field.is_required()]
        names = f" with {', '.join(needed)}" if needed else ""
        message = f"must be a mapping{names}; this is {type_in_words(value)}."
        raise InputError(message, hint=f"See {example} for an example.")
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise _first_error(first_problem(error), value, model) from None


def _first_error(problem: Problem, value: Mapping[str, Any], model: type[BaseModel]) -> InputError:
    hint = None
    path = [step for step in problem.path if step not in _NO_FIELD]
    if problem.kind == "missing":
        hint = "Add it; see docs/reference/request.md for an example."
    elif problem.kind == "extra_forbidden":
        hint = f"Known here: {', '.join(_known_fields(path[:-1], value, model))}."
    elif problem.kind == "string_pattern_mismatch":
        hint = _described_form(model, ".".join(path))
    return InputError(f"{problem.text}.", field=".".join(path) or None, hint=hint)


def _described_form(model: type[BaseModel], field: str) -> str | None:
    """Say what a field holds, as its description begins; None where it has none."""
    try:
        described = description_of(model, field)
    except LookupError:
        return None
    return f"{described.partition(': ')[0].partition('. ')[0]}."


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
    models = models_at(model, path)
    if path == ["workload"]:
        kind = value["workload"].get("kind", "serving")
        models = [m for m in models if kind in get_args(m.model_fields["kind"].annotation)]
    return [name for model in models for name in model.model_fields]
