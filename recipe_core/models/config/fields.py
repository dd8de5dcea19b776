"""Typed access to the fields of a ``config.json``; errors name the field, its value and the fix."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

from recipe_core.base.errors import ModelError

Config = Mapping[str, Any]

MAX_LAYERS, MAX_WIDTH, MAX_VOCABULARY, MAX_EXPERTS, MAX_CONTEXT = (
    1_000,
    1 << 20,
    1 << 24,
    1 << 14,
    1 << 30,
)

# How many multi-token-prediction layers follow the main model's.
DRAFTS = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_layers", "mtp_num_layers")


def _one_line_repr(value: Any) -> str:
    """A value for an error message, cut to one readable line."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


class Reader:
    """One mapping of a config; ``field`` is where it stood in the request."""

    def __init__(self, config: Config, field: str) -> None:
        self.config, self.field = config, field

    def error(self, name: str, message: str, hint: str | None = None) -> ModelError:
        return ModelError(message, field=f"{self.field}.{name}", hint=hint)

    def has(self, *names: str) -> bool:
        """Return whether any of ``names`` is given and not zero, false or empty."""
        return any(self.config.get(n) for n in names)

    def whole(
        self, names: Sequence[str], maximum: int, *, default: int | None = None, minimum: int = 1
    ) -> int:
        """The first of ``names`` that is given, as a whole number within limits."""
        name = next((n for n in names if self.config.get(n) is not None), None)
        if name is None:
            if default is not None:
                return default
            raise self.error(
                names[0],
                "is missing.",
                f"A decoder-only language model's config.json has {' or '.join(names[:3])}.",
            )
        value = self.config[name]
        if isinstance(value, list) and value and all(item == value[0] for item in value):
            value = value[0]  # one number for every layer, all the same
        return self._checked(name, value, minimum, maximum)

    def _checked(self, name: str, value: Any, minimum: int, maximum: int) -> int:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not math.isfinite(value) or value != int(value):
            raise self.error(name, f"{_one_line_repr(value)} is not a whole number.")
        if not minimum <= value <= maximum:
            raise self.error(
                name, f"{_one_line_repr(value)} is not between {minimum:,} and {maximum:,}."
            )
        return int(value)

    def number(self, name: str, maximum: float) -> float:
        """A positive finite number."""
        value = self.config.get(name)
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not 0 < value <= maximum
        ):
            raise self.error(
                name, f"{_one_line_repr(value)} is not a number above 0 and up to {maximum:,}."
            )
        return float(value)

    def wholes(self, name: str, maximum: int, *, length: int | None = None) -> list[int]:
        """A list of whole numbers from 0; empty when the field is not given."""
        values = self._list(name, length)
        return [self._checked(name, value, 0, maximum) for value in values]

    def words(self, name: str, *, length: int | None = None) -> list[str]:
        """A list of strings; empty when the field is not given."""
        values = self._list(name, length)
        for value in values:
            if not isinstance(value, str):
                raise self.error(name, f"lists {_one_line_repr(value)}, which is not a string.")
        return [str(value) for value in values]

    def _list(self, name: str, length: int | None) -> list[Any]:
        values = self.config.get(name)
        if values is None or values == []:
            return []
        if not isinstance(values, list):
            raise self.error(name, f"{_one_line_repr(values)} is not a list.")
        drafts = self.whole(DRAFTS, MAX_LAYERS, default=0, minimum=0)
        if length is not None and len(values) == length + drafts:
            values = values[:length]  # some configs go on to list their draft layers
        if length is not None and len(values) != length:
            raise self.error(name, f"lists {len(values)} layers; the model has {length}.")
        return values

    def inside(self, name: str) -> Reader:
        """A reader of a nested object (empty when it is not given)."""
        value = self.config.get(name)
        if value is None:
            value = {}
        if not isinstance(value, Mapping):
            raise self.error(name, f"{_one_line_repr(value)} is not an object.")
        return Reader(cast("Config", value), f"{self.field}.{name}")
