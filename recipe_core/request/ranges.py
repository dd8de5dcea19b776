"""The numbers that a field of a request takes, read from its schema."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from recipe_core.base.documented import field_of
from recipe_core.base.numbers import Range
from recipe_core.request.schema import PlanRequest

_ENDS = {"ge": "minimum", "gt": "above", "le": "maximum", "lt": "below"}


@cache
def range_of(path: str, model: type[BaseModel] = PlanRequest) -> Range:
    """The range of the field at a dotted path; of a list, that of its items.

    Raises:
        LookupError: for a name that the model has not.
    """
    field = field_of(model, path)
    ends: dict[str, Any] = {}
    for bound in _type_bounds([*field.metadata, field.annotation]):
        ends |= {name: getattr(bound, end) for end, name in _ENDS.items() if hasattr(bound, end)}
    return Range(integer=int in set(_types(field.annotation)), **ends)


def _types(annotation: Any) -> Iterator[Any]:
    yield annotation
    for argument in get_args(annotation):
        yield from _types(argument)


def _type_bounds(parts: list[Any]) -> Iterator[Any]:
    for part in parts:
        if isinstance(part, FieldInfo):
            yield from part.metadata
        elif any(hasattr(part, end) for end in _ENDS):
            yield part
        else:
            yield from _type_bounds([*getattr(part, "__metadata__", ()), *get_args(part)])
