"""The registry of views: what a closer look at one split shows, on the page and in the report.

A view is one function under ``@view`` in ``split_views.py``. It yields charts, tables and notes;
page, report and tests go through the registry, so a new view needs no other edit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

import plotly.graph_objects as go

from recipe_core.plans.plan import Plan
from recipe_core.plans.plan_json import split_label
from recipe_core.plans.splits import find_row

P = TypeVar("P", bound=Plan)
Kind = Literal["serving", "training"]
BOTH: tuple[Kind, ...] = ("serving", "training")
Boxes = Sequence[Mapping[str, Sequence[float]]]


@dataclass(frozen=True, slots=True)
class Chart:
    """A figure. ``key`` is its own among all charts, ``alt`` describes it where it is not seen.

    ``half``: it stands beside its neighbour where there is room. ``passing``: rows of the plan that
    boxes drawn on the figure mark.
    """

    key: str
    title: str
    figure: go.Figure
    alt: str
    note: str = ""
    half: bool = False
    passing: Callable[[Boxes], list[int]] | None = None


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of text under a head. ``strong``: the column that is read first."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    strong: str = ""

    @staticmethod
    def of(rows: Sequence[Mapping[str, str]], title: str = "") -> Table:
        """From mappings that all have the same keys."""
        head = tuple(rows[0]) if rows else ()
        return Table(title, head, tuple(tuple(row.values()) for row in rows))


@dataclass(frozen=True, slots=True)
class Note:
    """Why a view has nothing to draw, or what else to know; the report leaves it out."""

    text: str


@dataclass(frozen=True, slots=True)
class Focus(Generic[P]):
    """The split that is looked at: a row of a plan, and what it is compared with.

    ``pins`` are keys of other splits. ``origin`` is the plan that the split was chosen from where
    ``plan`` holds only that split. ``measure``: the reader's choice in views that offer one.
    """

    plan: P
    row: int
    pins: tuple[str, ...] = ()
    origin: P | None = None
    measure: str = ""
    dark: bool = False

    @property
    def searched(self) -> P:
        return self.plan if self.origin is None else self.origin

    @property
    def compared(self) -> dict[str, int]:
        """Rows by name: the split that is looked at, then the pinned ones that fit."""
        rows = [find_row(self.plan, key) for key in self.pins]
        fitting = [row for row in rows if row is not None and self.plan.feasible[row]]
        return {split_label(self.plan, row): row for row in (self.row, *fitting)}


Item = Chart | Table | Note
Draw = Callable[[Focus[Any]], Iterable[Item]]


@dataclass(frozen=True, slots=True)
class View:
    """A tab of the page and a chapter of the report.

    ``needs_fit``: it needs a split that fits. ``measures``: names of measures that the reader
    chooses from, of which ``preferred`` is drawn first.
    """

    name: str
    title: str
    kinds: tuple[Kind, ...]
    draw: Draw
    needs_fit: bool = True
    in_report: bool = True
    measures: Callable[[Plan], list[str]] | None = None
    preferred: int = 0

    def offered(self, plan: Plan) -> list[str]:
        """Measures to choose from, empty where the view offers none."""
        return self.measures(plan) if self.measures else []

    def first_measure(self, plan: Plan) -> str:
        """The measure that is drawn before the reader chooses one; empty where none is offered."""
        names = self.offered(plan)
        return names[min(self.preferred, len(names) - 1)] if names else ""


# Every view by name, in the order in which pages and reports show them.
VIEWS: dict[str, View] = {}


def view(
    name: str,
    title: str,
    kinds: tuple[Kind, ...] = BOTH,
    *,
    needs_fit: bool = True,
    in_report: bool = True,
    measures: Callable[[Plan], list[str]] | None = None,
    preferred: int = 0,
) -> Callable[[Draw], Draw]:
    """Register a function as a view; what is said of ``View`` holds for the arguments.

    Raises:
        ValueError: where the name is taken.
    """

    def register(draw: Draw) -> Draw:
        if name in VIEWS:
            raise ValueError(f"there is a view {name} already")
        VIEWS[name] = View(name, title, kinds, draw, needs_fit, in_report, measures, preferred)
        return draw

    return register


def views_of(plan: Plan) -> list[View]:
    """The views of a plan's kind; where nothing fits only those that do without."""
    some_fit = plan.best_row is not None
    return [
        view
        for view in VIEWS.values()
        if plan.kind in view.kinds and (some_fit or not view.needs_fit)
    ]
