"""Documents whose fields are described where they are declared, and the ways to read these texts.

The string under a field is its description: the JSON Schema, the API, the tools of agents, the
pages' help and ``docs/reference/request.md`` all take it from there.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any, get_args

from pydantic import BaseModel, ConfigDict, GetJsonSchemaHandler
from pydantic.fields import FieldInfo
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema


def prose(text: str | None) -> str:
    """A docstring as one line of Markdown: lines joined, code in single backquotes."""
    return " ".join((text or "").split()).replace("``", "`")


def descriptions(model: type) -> dict[str, str]:
    """The string under each field of a class, by the field's name, its bases' fields among them.

    They are read from the source when a schema or a help text is wanted: pydantic's own way reads
    it while the class is made, which would be half of the time until a plan is printed.
    """
    out: dict[str, str] = {}
    for base in reversed(model.__mro__):
        if base.__module__.partition(".")[0] == model.__module__.partition(".")[0]:
            out |= _under_fields(base.__module__).get(base.__name__, {})
    return out


@cache
def _under_fields(module: str) -> dict[str, dict[str, str]]:
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    out: dict[str, dict[str, str]] = {}
    for node in (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)):
        fields = out.setdefault(node.name, {})
        for field, below in pairwise(node.body):
            if (
                isinstance(field, ast.AnnAssign)
                and isinstance(field.target, ast.Name)
                and isinstance(below, ast.Expr)
                and isinstance(below.value, ast.Constant)
            ):
                fields[field.target.id] = prose(str(below.value.value))
    return out


def _describe(schema: dict[str, Any], model: type) -> None:
    if "description" in schema:
        schema["description"] = prose(schema["description"])
    texts = descriptions(model)
    for name, part in schema.get("properties", {}).items():
        if name in texts:
            part["description"] = texts[name]


# For immutable documents with a string under every field, which refuse unknown fields.
DESCRIBED = ConfigDict(frozen=True, extra="forbid", defer_build=True, json_schema_extra=_describe)


class DescribedModel(BaseModel):
    """A document that nothing changes, with a string under every field."""

    model_config = DESCRIBED


@dataclass(frozen=True, slots=True)
class SchemaOf:
    """Marks plain values that are held against a model later, so that they bear its schema now.

    Doors take a mapping and let the library read it: its errors name the field and a remedy,
    which those of the frameworks do not.
    """

    model: type[BaseModel]

    def __get_pydantic_json_schema__(
        self,
        _plain: CoreSchema,
        handler: GetJsonSchemaHandler,
    ) -> JsonSchemaValue:
        """The model's schema in place of the mapping's."""
        return handler(self.model.__pydantic_core_schema__)


def models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    """The models that a field of this type can hold, at any depth of unions and lists."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from models_in(argument)


def models_at(model: type[BaseModel], path: Sequence[str]) -> list[type[BaseModel]]:
    """Return the models at a path; places in lists and keys of mappings are skipped."""
    models = [model]
    for name in path:
        owner = next((owner for owner in models if name in owner.model_fields), None)
        if owner is not None:
            models = list(models_in(owner.model_fields[name].annotation))
    return models


def field_of(model: type[BaseModel], path: str) -> FieldInfo:
    """The field at a dotted path; places in lists (``options.hardware.0``) are skipped.

    Raises:
        LookupError: naming the path, when no model on the way has such a field.
    """
    owner, name = _find_field_owner(model, path)
    return owner.model_fields[name]


def description_of(model: type[BaseModel], path: str) -> str:
    """The description of the field at a dotted path, empty where it has none.

    Raises:
        LookupError: as ``field_of``.
    """
    owner, name = _find_field_owner(model, path)
    return descriptions(owner).get(name, "")


def _find_field_owner(model: type[BaseModel], path: str) -> tuple[type[BaseModel], str]:
    """The model that has the field at a dotted path, and the field's name."""
    steps = [name for name in path.split(".") if not name.isdecimal()]
    owners = [
        next((owner for owner in models_at(model, steps[:n]) if name in owner.model_fields), None)
        for n, name in enumerate(steps)
    ]
    if not owners or (owner := owners[-1]) is None or None in owners:
        raise LookupError(f"{path!r} names no field")
    return owner, steps[-1]
