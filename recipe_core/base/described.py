"""Documents whose fields are described where they are declared, and the ways to read these texts.

The string under a field is its description: the JSON Schema, the API, the tools of agents, the
pages' help and ``docs/request.md`` all take it from there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, get_args

from pydantic import BaseModel, ConfigDict, GetJsonSchemaHandler
from pydantic.fields import FieldInfo
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema


def prose(text: str | None) -> str:
    """A docstring as one line of Markdown: lines joined, code in single backquotes."""
    return " ".join((text or "").split()).replace("``", "`")


def _as_prose(schema: dict[str, Any]) -> None:
    for part in (schema, *schema.get("properties", {}).values()):
        if "description" in part:
            part["description"] = prose(part["description"])


DESCRIBED = ConfigDict(
    frozen=True,
    extra="forbid",
    use_attribute_docstrings=True,
    json_schema_extra=_as_prose,
)
"""For immutable documents with a string under every field, which refuse unknown fields."""


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


def field_of(model: type[BaseModel], path: str) -> FieldInfo:
    """The field at a dotted path; places in lists (``options.hardware.0``) are skipped.

    Raises:
        LookupError: naming the path, when no model on the way has such a field.
    """
    models: list[type[BaseModel]] = [model]
    field: FieldInfo | None = None
    for name in path.split("."):
        if name.isdecimal():
            continue
        field = next((m.model_fields[name] for m in models if name in m.model_fields), None)
        if field is None:
            raise LookupError(f"{path}: no field {name}")
        models = list(models_in(field.annotation))
    if field is None:
        raise LookupError(f"{path!r} names no field")
    return field
