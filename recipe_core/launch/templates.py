"""Templates as data: YAML whose texts name values in angle brackets.

``<name>`` alone becomes the value itself, within a longer text its words (``<name:g>`` in a
format). A field, an entry or a text that names None is left out, and so is what has nothing left.
A key ``<name>:`` without a value stands for the entries of a mapping; an entry of a list that is a
list itself for its entries. A mapping whose ``<when>`` names a value that is none is left out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from recipe_core.base.documents import read_shipped

_PLACE = re.compile(r"<([a-z][a-z0-9_]*)(?::([^<>]*))?>")
WHEN = "<when>"
Values = Mapping[str, Any]


@cache
def read_templates(path: Path) -> Any:
    """A shipped file of templates, parsed once."""
    return read_shipped(path)


def fill_template(template: Any, values: Values) -> Any:
    """The template with its values; None where nothing is left of it.

    Raises:
        KeyError: for a name without a value.
    """
    if isinstance(template, str):
        return _fill_text(template, values)
    if isinstance(template, dict):
        if not is_met(template.get(WHEN, ""), values):
            return None
        fields: dict[str, Any] = {}
        for key, item in template.items():
            if key == WHEN:
                continue
            if item is None and _PLACE.fullmatch(key):
                fields |= _fill_text(key, values) or {}
            elif item is None or (item := fill_template(item, values)) is not None:
                fields[_fill_text(key, values)] = item
        return fields if fields or not template else None
    if isinstance(template, list):
        entries: list[Any] = []
        filled = (fill_template(item, values) for item in template)
        for entry in filter(lambda entry: entry is not None, filled):
            entries += entry if isinstance(entry, list) else [entry]
        return entries if entries or not template else None
    return template


def _fill_text(text: str, values: Values) -> Any:
    if (place := _PLACE.fullmatch(text)) and not place[2]:
        return values[place[1]]
    if any(values[name] is None for name, _ in _PLACE.findall(text)):
        return None
    return _PLACE.sub(lambda place: format(values[place[1]], place[2] or ""), text)


def is_met(condition: str, facts: Mapping[str, object]) -> bool:
    """Return whether every word of a condition names a fact that is true, or false after ``!``."""
    return all(bool(facts[word.lstrip("!")]) != word.startswith("!") for word in condition.split())


def first_met(choices: Any, facts: Mapping[str, object]) -> Any:
    """Of a mapping from conditions the first choice that is met, at any depth; else the value."""
    while isinstance(choices, dict):
        choices = next((choice for met, choice in choices.items() if is_met(met, facts)), None)
    return choices


class Facts(dict[str, Any]):
    """Values by name for templates: those that are given, else worked out when they are asked for.

    ``computed``: what works a value out of ``subject``; ``texts``: templates that are values too.
    """

    def __init__(
        self,
        subject: Any,
        computed: Mapping[str, Callable[[Any], Any]],
        values: Values,
        texts: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(values)
        self.subject, self.computed, self.texts = subject, computed, texts or {}

    def __missing__(self, name: str) -> Any:
        if name in self.texts:
            return fill_template(first_met(self.texts[name], self), self)
        return self.computed[name](self.subject)

    def sentences(self, rows: list[tuple[str, str]]) -> list[str]:
        """The texts of rows of a condition and a text whose condition is met."""
        return [fill_template(text, self) for condition, text in rows if is_met(condition, self)]
