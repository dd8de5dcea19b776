"""Refusals of pydantic, in the words of every error that tells of them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError

_WORDS = {
    "missing": "is missing",
    "extra_forbidden": "is not a known field",
    "string_pattern_mismatch": "does not have the form of this field",
}
# What a field takes, by the beginning of the kinds of problem with another type.
_TAKES = {
    ("tuple_", "list_", "set_", "frozen_set_"): "a list",
    ("dict_", "mapping_", "model_"): "a mapping of names to values",
    ("string_type", "string_sub_type"): "text",
    ("int_",): "a whole number",
    ("float_",): "a number",
    ("bool_",): "true or false",
    ("date_type", "date_parsing", "date_from"): "a date such as 2026-01-31",
}
_TYPE_NAME = re.compile(r"^(?:Tuple|List|Set|Frozenset|Dictionary|String|Input) (?=should have)")
# Kinds about the field itself, not about its value.
_OF_FIELD = ("missing", "extra_forbidden")


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem at a path of a document; ``kind`` as pydantic names it."""

    path: tuple[str, ...]
    kind: str
    message: str
    value: Any

    @property
    def field(self) -> str:
        return ".".join(self.path)

    @property
    def text(self) -> str:
        """The message, with the value where that is a short one."""
        if self.kind in _OF_FIELD or isinstance(self.value, Mapping | list | tuple | BaseModel):
            return self.message
        return f"{self.message} (got {self.value!r:.80})"


def first_problem(error: ValidationError) -> Problem:
    """Return the first problem; a misspelt field goes first, as it explains one that is missing."""
    details = error.errors(include_url=False)
    first = next((detail for detail in details if detail["type"] == "extra_forbidden"), details[0])
    return Problem(tuple(map(str, first["loc"])), first["type"], say_problem(first), first["input"])


def type_in_words(value: Any) -> str:
    """Say of which type a value of a document is."""
    name = type(value).__name__
    words = {"list": "a list", "str": "text", "NoneType": "nothing", "bool": "true or false"}
    return words.get(name) or ("a number" if name in ("int", "float") else name)


def say_problem(detail: Mapping[str, Any]) -> str:
    """Say what pydantic found, in words of documents in place of those of Python."""
    kind = detail["type"]
    if kind in _WORDS:
        return _WORDS[kind]
    for kinds, takes in _TAKES.items():
        if kind.startswith(kinds):
            return f"input should be {takes}"
    if kind == "union_tag_invalid":
        tags = detail["ctx"]
        choices = f"{tags['discriminator']} should be one of {tags['expected_tags']}"
        return f"{choices}, not {tags['tag']!r:.80}"
    if kind == "union_tag_not_found":
        return f"{detail['ctx']['discriminator']} is missing"
    message = _TYPE_NAME.sub("", str(detail["msg"]).removeprefix("Value error, "))
    message = message.replace(" after validation, not", ", not")
    return message[0].lower() + message[1:]
