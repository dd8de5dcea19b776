"""Answers as text: macros of Jinja templates, in which units and figures are filters.

``templates/NAME.j2`` has a macro for each text that ``Phrases("NAME")`` writes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recipe_core.base import units
from recipe_core.request.metrics import column_metric
from recipe_core.request.split_key import split_name

if TYPE_CHECKING:
    from jinja2 import Template

FOLDER = Path(__file__).parent / "templates"


class Block(str):
    """Text of several lines, such as a table; of all else a line break is written as a space."""

    __slots__ = ()


# Stands for a bar in a value: only bars of a template part cells.
_BAR = "\ue000"


def _finalize(value: Any) -> Any:
    if isinstance(value, Block):
        return value
    return " ".join(str(value).splitlines()).replace("|", _BAR)


class Phrases:
    """The texts of one template. ``filters``: what it may apply beside units and figures."""

    def __init__(self, name: str, **filters: Callable[..., Any]) -> None:
        self.name, self.filters = name, filters

    @cached_property
    def _macros(self) -> Any:
        # imported here: most plans are told without it
        from jinja2 import Environment, FileSystemLoader, StrictUndefined

        environment = Environment(  # noqa: S701 - text, not HTML
            loader=FileSystemLoader(FOLDER),
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            finalize=_finalize,
        )
        environment.filters |= FILTERS | self.filters
        return environment.get_template(f"{self.name}.j2").module

    def lines(self, macro: str, *values: Any) -> Iterator[str]:
        """Write the lines of a macro, without empty ones."""
        return (line.replace(_BAR, "|") for line in self._raw_lines(macro, *values))

    def rows(self, macro: str, *values: Any) -> Iterator[tuple[str, ...]]:
        """Write the lines of a macro as cells, which bars of the template part."""
        for line in self._raw_lines(macro, *values):
            yield tuple(cell.replace(_BAR, "|") for cell in line.split(" | "))

    def _raw_lines(self, macro: str, *values: Any) -> list[str]:
        text: str = getattr(self._macros, macro)(*values)
        return [line for line in text.split("\n") if line]

    def text(self, macro: str, *values: Any) -> str:
        return "\n".join(self.lines(macro, *values))

    def sentence(self, macro: str, *values: Any) -> str:
        return " ".join(self.text(macro, *values).split())

    def facts(self, macro: str, *values: Any) -> dict[str, str]:
        """Read lines of ``title: text``."""
        pairs = (line.strip().partition(": ") for line in self.lines(macro, *values))
        return {title: text for title, _, text in pairs}


@cache
def read_html_template(name: str) -> Template:
    """Read a template of ``templates/`` that escapes every text; undefined names are errors."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    return Environment(
        loader=FileSystemLoader(FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    ).get_template(name)


def _metric_text(value: float, column: str) -> str:
    return column_metric(column).show(value)


def _metric_phrase(value: float, column: str) -> str:
    return column_metric(column).phrase(value)


def _noun_of(number: float, singular: str, several: str = "") -> str:
    """Write the noun of a number: ``replica``, ``replicas``."""
    return singular if number == 1 else several or f"{singular}s"


FILTERS: dict[str, Callable[..., Any]] = {
    "block": Block,
    "gib": units.gib,
    "usd": units.usd,
    "seconds": units.seconds_text,
    "duration": units.long_duration,
    "days": units.days,
    "short": units.significant,
    "trimmed": units.trimmed,
    "count": units.count_text,
    "token_rate": units.token_rate_text,
    "chance": units.chance_text,
    "percent": units.percent_text,
    "signed": partial(units.share_text, signed=True),
    "share": units.share_text,
    "split": split_name,
    "accuracy": units.accuracy_text,
    "utilisation": units.utilisation,
    "metric": _metric_text,
    "phrase": _metric_phrase,
    "noun": _noun_of,
    "number": "{:,.0f}".format,
    "as": lambda value, form: format(value, form),
}
