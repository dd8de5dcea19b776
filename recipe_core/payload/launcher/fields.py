"""Typed access to a JSON object; every failure names the field, the value and the remedy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .errors import InputError

_REBUILD = "Build the bundle again with `recipe build`."


@dataclass(frozen=True, slots=True)
class Fields:
    """One JSON object and where it is (``launch.json: processes[0]``)."""

    data: dict[str, Any]
    where: str

    def fail(self, key: str, expected: str) -> InputError:
        problem = f"got {self.data[key]!r}" if key in self.data else "it is missing"
        return InputError(
            f"expected {expected}, {problem}.", field=f"{self.where}.{key}", hint=_REBUILD
        )

    def text(self, key: str) -> str:
        """Text that is not empty."""
        value = self.data.get(key)
        if not isinstance(value, str) or not value:
            raise self.fail(key, "text")
        return value

    def optional_text(self, key: str) -> str | None:
        """Text, or None when it is null or absent."""
        return None if self.data.get(key) is None else self.text(key)

    def one_of(self, key: str, allowed: tuple[str, ...]) -> str:
        """One of a few words."""
        value = self.data.get(key)
        if not isinstance(value, str) or value not in allowed:
            raise self.fail(key, "one of " + ", ".join(allowed))
        return value

    def integer(self, key: str, *, low: int = 0) -> int:
        """A whole number of at least ``low``."""
        value = self.data.get(key)
        if isinstance(value, bool) or not isinstance(value, int) or value < low:
            raise self.fail(key, f"a whole number of at least {low}")
        return value

    def optional_integer(self, key: str, *, low: int = 0) -> int | None:
        """A whole number, or None when it is null or absent."""
        return None if self.data.get(key) is None else self.integer(key, low=low)

    def optional_number(self, key: str) -> float | None:
        """A number above 0, or None when it is null or absent."""
        value = self.data.get(key)
        if value is None:
            return None
        numeric = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not numeric or not 0 < value < float("inf"):
            raise self.fail(key, "a number above 0")
        return float(value)

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of text, empty when absent."""
        value = self.data.get(key, [])
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.fail(key, "a list of text")
        return tuple(value)

    def integers(self, key: str) -> tuple[int, ...]:
        """A list of whole numbers, empty when absent."""
        value = self.data.get(key, [])
        valid = isinstance(value, list) and all(type(n) is int and n >= 0 for n in value)
        if not valid:
            raise self.fail(key, "a list of whole numbers")
        return tuple(value)

    def text_map(self, key: str) -> dict[str, str]:
        """An object whose values are text, empty when absent."""
        value = self.data.get(key, {})
        if not isinstance(value, dict) or not all(isinstance(item, str) for item in value.values()):
            raise self.fail(key, "an object of text")
        return dict(value)

    def child(self, key: str, *, optional: bool = False) -> Fields:
        """The object inside this one."""
        value = self.data.get(key, {} if optional else None)
        if not isinstance(value, dict):
            raise self.fail(key, "an object")
        return Fields(value, f"{self.where}.{key}")

    def children(self, key: str) -> tuple[Fields, ...]:
        """The objects in a list that is not empty."""
        value = self.data.get(key)
        objects = isinstance(value, list) and all(isinstance(item, dict) for item in value)
        if not value or not objects:
            raise self.fail(key, "a list of objects")
        return tuple(Fields(item, f"{self.where}.{key}[{i}]") for i, item in enumerate(value))
