"""Reading logs line by line: patterns with one figure each, and which ranks' figure counts."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from recipe_core.base.errors import InputError
from recipe_core.calibration.importers.content import LONGEST_LINE, Content, parse_number

NUMBER = r"([\d.,]{1,40}(?:[eE][+-]?\d{1,4})?)"

# Between a line's words and its figure: bounded, for lines that strangers may write.
GAP = r".{0,300}?"


@dataclass(frozen=True)
class Pattern:
    """A figure of a log: its name, where it stands, and what makes one of several ranks' values."""

    name: str
    expression: str
    scale: float = 1.0
    among: Callable[[Iterable[float]], float] = max

    def compiled(self) -> re.Pattern[str]:
        """The expression, whose first group is the number."""
        return re.compile(self.expression)


def read_log_figures(content: Content, patterns: Sequence[Pattern]) -> dict[str, float]:
    """The figures that a log's lines state, of the last start in it.

    Raises:
        InputError: naming the line whose figure is no number.
    """
    compiled = [(pattern, pattern.compiled()) for pattern in patterns]
    values: dict[str, list[float]] = {}
    for number, line in enumerate(content.log, 1):
        for pattern, expression in compiled:
            match = expression.search(line[:LONGEST_LINE])
            if match:
                value = _parse_log_number(match[1], content, number, pattern.name)
                values.setdefault(pattern.name, []).append(value * pattern.scale)
    reducers = {pattern.name: pattern.among for pattern in patterns}
    return {name: reducers[name](rank_values) for name, rank_values in values.items()}


def _parse_log_number(text: str, content: Content, line: int, name: str) -> float:
    try:
        return parse_number(text.rstrip(".,"))
    except ValueError as error:
        raise InputError(f"{content.name}, line {line}: {name}: {error}.", field=name) from None


def match_log_texts(content: Content, expressions: Mapping[str, str]) -> dict[str, str]:
    """The first match of each expression in a log's start."""
    matches = {name: re.search(text, content.head) for name, text in expressions.items()}
    return {name: match[1] for name, match in matches.items() if match}


def last_value(values: Iterable[float]) -> float:
    return list(values)[-1]


def round_figures(figures: Mapping[str, float], names: Iterable[str]) -> dict[str, int]:
    return {name: round(figures[name]) for name in names if name in figures}
