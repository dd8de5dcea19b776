"""Parameters of a place and variants, which users add to a recipe, read from plain values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import TypeAdapter, ValidationError

from recipe_core.base.documents import parse_json
from recipe_core.base.errors import InputError
from recipe_core.recipe.place import Parameters
from recipe_core.recipe.variants import Variant

_ABOUT = "See docs/reference/recipe.md."
# Parameters that are mappings or lists, and JSON where they are given as text.
_STRUCTURED = tuple(
    name
    for name, field in Parameters.model_fields.items()
    if isinstance(field.default, Mapping | tuple)
)


def read_parameters(values: Mapping[str, Any]) -> Parameters:
    """Parameters by name; text becomes what a parameter takes, ``{"zone": "a"}`` (JSON) a mapping.

    Raises:
        InputError: naming the parameter that is unknown or wrong.
    """
    try:
        return Parameters.model_validate({k: _structured(k, value) for k, value in values.items()})
    except ValidationError as error:
        raise _first_problem(
            error, "parameters", f"Known: {', '.join(Parameters.model_fields)}."
        ) from None


def _structured(name: str, value: Any) -> Any:
    """The value of a parameter; raises InputError for a mapping or list that is not JSON."""
    if name not in _STRUCTURED or not isinstance(value, str):
        return value
    try:
        return parse_json(value, "the value")
    except InputError as error:
        raise InputError(error.message, field=f"parameters.{name}", hint=error.hint) from None


def parse_recipe_variants(value: Any) -> tuple[Variant, ...]:
    """Variants from a list; raises InputError naming the field that is unknown or wrong."""
    try:
        return TypeAdapter(tuple[Variant, ...]).validate_python(value)
    except ValidationError as error:
        raise _first_problem(error, "variants", _ABOUT) from None


def _first_problem(error: ValidationError, where: str, hint: str) -> InputError:
    problem = error.errors(include_url=False)[0]
    field = ".".join([where, *(str(step) for step in problem["loc"])])
    if problem["type"] == "extra_forbidden":
        return InputError("is not known.", field=field, hint=hint)
    message = problem["msg"].removeprefix("Value error, ")
    value = problem.get("input")
    shown = "" if isinstance(value, Mapping | list) else f" (got {value!r:.80})"
    if problem["type"] == "string_pattern_mismatch":
        message = "has characters that it may not have"
    return InputError(f"{message[0].lower()}{message[1:]}{shown}.", field=field, hint=_ABOUT)
