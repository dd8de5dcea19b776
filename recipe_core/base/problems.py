"""Refusals of pydantic, in the words of every error that tells of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError

_WORDS = {
    "missing": "is missing",
    "extra_forbidden": "is not a known field",
    "string_pattern_mismatch": "does not have the form of this field",
}
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
    message = _WORDS.get(first["type"]) or first["msg"].removeprefix("Value error, ")
    path = tuple(map(str, first["loc"]))
    return Problem(path, first["type"], message[0].lower() + message[1:], first["input"])
