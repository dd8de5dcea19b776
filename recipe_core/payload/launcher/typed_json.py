"""JSON documents as typed objects: one object's fields, read and checked, or as a dataclass."""

from __future__ import annotations

import re
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from types import NoneType
from typing import Any, TypeVar, get_args, get_type_hints

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

    def text(self, key: str, *, form: str = ".+", words: str = "text") -> str:
        """Text of a form, by default any that is not empty; ``words`` say which."""
        value = self.data.get(key)
        if not isinstance(value, str) or not re.fullmatch(form, value, re.DOTALL):
            raise self.fail(key, words)
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

    def number(self, key: str, *, high: float | None = None) -> float:
        """A number above 0, and at most ``high``."""
        value = self.data.get(key)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            value = 0.0
        if not 0 < value < float("inf") or (high is not None and value > high):
            raise self.fail(key, "a number above 0" + (f" and at most {high:g}" if high else ""))
        return float(value)

    def optional_number(self, key: str) -> float | None:
        """A number above 0, or None when it is null or absent."""
        return None if self.data.get(key) is None else self.number(key)

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


T = TypeVar("T")


def read_typed(kind: type[T], data: Fields, /, **values: Any) -> T:
    """Return a dataclass of an object's fields, by their annotations, and of ``values``.

    What has a default, or may be None, may be null or absent; truth is what is literally true. A
    field's metadata are the arguments of the reader: ``low``, ``high``, ``allowed``, ``form``.

    Raises:
        InputError: for a field that is missing or not what it should be.
    """
    hints = get_type_hints(kind)
    listed: tuple[Field[Any], ...] = fields(kind)  # type: ignore[arg-type]
    read = {f.name: _read_field(data, f, hints[f.name]) for f in listed if f.name not in values}
    return kind(**read, **values)


def _read_field(data: Fields, field: Field[Any], hint: Any) -> Any:
    key, parts = field.name, get_args(hint)
    if hint is bool:
        return data.data.get(key) is True
    if data.data.get(key) is None and (field.default is not MISSING or NoneType in parts):
        return None if field.default is MISSING else field.default
    if NoneType in parts:
        hint = next(part for part in parts if part is not NoneType)
        parts = get_args(hint)
    if is_dataclass(hint):
        return read_typed(hint, data.child(key))  # type: ignore[arg-type]
    if parts and is_dataclass(parts[0]):
        return tuple(read_typed(parts[0], item) for item in data.children(key))  # type: ignore[arg-type]
    if "allowed" in field.metadata:
        return data.one_of(key, **field.metadata)
    readers: dict[Any, Any] = {
        str: data.text,
        int: data.integer,
        float: data.number,
        tuple[str, ...]: data.texts,
        tuple[int, ...]: data.integers,
        dict[str, str]: data.text_map,
    }
    return readers[hint](key, **field.metadata)
