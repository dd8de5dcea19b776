"""What users add to a recipe, read from plain values: parameters of a place, variants of their own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import TypeAdapter, ValidationError

from recipe_core.base.documents import parse_json
from recipe_core.base.errors import InputError
from recipe_core.recipe.place import Parameters
from recipe_core.recipe.variants import Variant


def read_parameters(values: Mapping[str, Any]) -> Parameters:
    """Parameters by name; text becomes what a parameter takes, ``{"zone": "a"}`` (JSON) a mapping.

    Raises:
        InputError: naming the parameter that is unknown or wrong.
    """
    try:
        return Parameters.model_validate(
            {name: _structured(value) for name, value in values.items()}
        )
    except ValidationError as error:
        raise _first(error, "parameters", f"Known: {', '.join(Parameters.model_fields)}.") from None


def _structured(value: Any) -> Any:
    return (
        parse_json(value, "the parameter")
        if isinstance(value, str) and value[:1] in ("{", "[")
        else value
    )


def read_variants(value: Any) -> tuple[Variant, ...]:
    """Variants from a list; raises InputError naming the field that is unknown or wrong."""
    try:
        return TypeAdapter(tuple[Variant, ...]).validate_python(value)
    except ValidationError as error:
        raise _first(error, "variants", "See docs/recipe.md.") from None


def _first(error: ValidationError, where: str, hint: str) -> InputError:
    problem = error.errors(include_url=False)[0]
    field = ".".join([where, *(str(step) for step in problem["loc"])])
    if problem["type"] == "extra_forbidden":
        return InputError("is not known.", field=field, hint=hint)
    message = problem["msg"].removeprefix("Value error, ")
    given = (
        ""
        if isinstance(problem.get("input"), Mapping | list)
        else f" (got {problem.get('input')!r:.80})"
    )
    return InputError(f"{message[0].lower()}{message[1:]}{given}.", field=field, hint=hint)
