"""``shapes.csv`` and ``shapes.yaml``: rates of the hours of a week, as published services had."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from recipe_core.base.arrays import Float
from recipe_core.base.data_files import DataFile, DataRow
from recipe_core.base.errors import InputError, unknown
from recipe_core.base.provenance import Quantity, Sourced
from recipe_core.base.resources import PACKAGE
from recipe_core.base.types import Text

HOURS = 168
FIELD = "workload.over_time.shape"
FILE = DataFile(PACKAGE / "scaling" / "traces" / "shapes.yaml", FIELD)
RATES = PACKAGE / "scaling" / "traces" / "shapes.csv"


class ShapeFacts(DataRow):
    """What a shape is of, and how far it can be trusted.

    clock: whose hours. weekdays: whether hour 0 is a Monday; else it is some midnight. error: of an
    hour's rate, as a share; None where the rates are exact.
    """

    title: Text
    clock: Literal["UTC", "local"]
    weekdays: bool
    error: Quantity | None = None
    requests: Quantity | None = None
    clients: Quantity | None = None
    note: Text


class _File(Sourced):
    shapes: Annotated[dict[str, ShapeFacts], Field(min_length=1)]


@dataclass(frozen=True, slots=True)
class Shape:
    """A week: ``rates`` of its 168 hours, from Monday at midnight, with a mean of 1."""

    name: str
    rates: Float
    facts: ShapeFacts
    source: str

    def to_json(self) -> dict[str, Any]:
        """The shape with its source, and what it comes to."""
        days = self.rates.reshape(7, 24).mean(axis=1)
        return {
            "name": self.name,
            "title": self.facts.title,
            "clock": self.facts.clock,
            "weekdays": self.facts.weekdays,
            "error": self.facts.error.value if self.facts.error else None,
            "busiest_hour": float(self.rates.max()),
            "quietest_hour": float(self.rates.min()),
            "weekday_to_weekend": float(days[:5].mean() / days[5:].mean())
            if self.facts.weekdays
            else None,
            "note": self.facts.note,
            "source": self.source,
            "relative_rates": [float(rate) for rate in self.rates],
        }


def shape_names() -> list[str]:
    return list(_load_week_shapes())


def shape_rates(name: str) -> Float:
    """Rates of the 168 hours of a week relative to their mean, by the name of a shape.

    Raises:
        InputError: for an unknown name.
    """
    return find_shape(name).rates


def find_shape(name: str) -> Shape:
    """A shape with what is known of it.

    Raises:
        InputError: for an unknown name.
    """
    shapes = _load_week_shapes()
    if name not in shapes:
        message, hint = unknown("shape", name, list(shapes))
        raise InputError(message, field=FIELD, hint=hint)
    return shapes[name]


@cache
def _load_week_shapes() -> dict[str, Shape]:
    file = FILE.read_as(_File)
    with RATES.open(encoding="utf-8", newline="") as lines:
        rows = list(csv.DictReader(lines))
    if [row["hour_of_week"] for row in rows] != [str(hour) for hour in range(HOURS)]:
        raise FILE.problem("shapes.csv", "does not have the hours 0 to 167 in order", "Sort it.")
    shapes = {}
    for name, facts in file.shapes.items():
        if name not in rows[0]:
            raise FILE.problem(f"shapes.{name}", "is no column of shapes.csv", "Add it.")
        rates = np.asarray([float(row[name]) for row in rows])
        rates = rates / rates.mean()
        rates.setflags(write=False)
        shapes[name] = Shape(name, rates, facts, file.sources[_source_of(facts)].title)
    return shapes


def _source_of(facts: ShapeFacts) -> str:
    cited = (facts.error, facts.requests, facts.clients)
    return next(figure.source for figure in cited if figure is not None)
