"""The registry of views: what a closer look at one split shows, and the tables in it.

A view is one function under ``@view`` in ``split_views.py``. It yields charts, tables and notes;
page, report and tests go through the registry, so a new view needs no other edit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any, Generic, Literal, TypeVar

import plotly.graph_objects as go

from recipe_core.base.units import share_text, significant, token_rate_text
from recipe_core.estimates.serving.accuracy import NearFigure
from recipe_core.estimates.serving.feature_results import KvTier
from recipe_core.estimates.serving.results import ServingEstimate
from recipe_core.estimates.training.results import TrainingPhase
from recipe_core.plans.plan import Plan
from recipe_core.plans.plan_json import measure_text, split_label
from recipe_core.plans.splits import find_row, is_known
from recipe_core.request.metrics import column_metric
from recipe_core.views.charts.formats import FIGURES, MADE, accuracy_band_text, has_token_prices
from recipe_core.views.explanations.arithmetic import TIERS
from recipe_core.views.explanations.curves import INTERACTIVITIES, Crossing, Frontier, Scaling
from recipe_core.views.explanations.formats import FormatPoint
from recipe_core.views.explanations.operators import Times, Working, time_text
from recipe_core.views.texts import Phrases

P = TypeVar("P", bound=Plan)
Kind = Literal["serving", "training"]
BOTH: tuple[Kind, ...] = ("serving", "training")


@dataclass(frozen=True, slots=True)
class Chart:
    """A figure. ``key`` is its own among all charts, ``alt`` describes it where it is not seen.

    ``half``: it stands beside its neighbour where there is room.
    """

    key: str
    title: str
    figure: go.Figure
    alt: str
    note: str = ""
    half: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of text under a head. ``strong``: the column that is read first."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    strong: str = ""

    @staticmethod
    def of_rows(title: str, cells: Iterable[tuple[str, ...]], strong: str = "") -> Table:
        """From rows of cells, of which the first is the head."""
        head, *rows = cells
        return Table(title, head, tuple(rows), strong)

    @staticmethod
    def of(rows: Sequence[Mapping[str, str]], title: str = "") -> Table:
        """From mappings that all have the same keys."""
        head = tuple(rows[0]) if rows else ()
        return Table(title, head, tuple(tuple(row.values()) for row in rows))


@dataclass(frozen=True, slots=True)
class Note:
    """The reason a view draws nothing, or what else to know; the report leaves it out."""

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
    def label(self) -> str:
        return split_label(self.plan, self.row)

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
    chooses from, of which the first is drawn first. ``offered``: whether there is something to draw
    for a plan; for any by default.
    """

    name: str
    title: str
    kinds: tuple[Kind, ...]
    draw: Draw
    needs_fit: bool = True
    measures: Callable[[Plan], list[str]] | None = None
    offered: Callable[[Plan], bool] | None = None

    def choices(self, plan: Plan) -> list[str]:
        return self.measures(plan) if self.measures else []

    def first_measure(self, plan: Plan) -> str:
        """The measure that is drawn before the reader chooses one; empty where none is offered."""
        names = self.choices(plan)
        return names[0] if names else ""


# Every view by name, in the order in which pages and reports show them.
VIEWS: dict[str, View] = {}


def view(
    name: str,
    title: str,
    kinds: tuple[Kind, ...] = BOTH,
    *,
    needs_fit: bool = True,
    measures: Callable[[Plan], list[str]] | None = None,
    offered: Callable[[Plan], bool] | None = None,
) -> Callable[[Draw], Draw]:
    """Register a function as a view; what is said of ``View`` holds for the arguments.

    Raises:
        ValueError: where the name is taken.
    """

    def register(draw: Draw) -> Draw:
        if name in VIEWS:
            raise ValueError(f"there is a view {name} already")
        VIEWS[name] = View(name, title, kinds, draw, needs_fit, measures, offered)
        return draw

    return register


def views_of(plan: Plan, searched: Plan | None = None) -> list[View]:
    """The views of a plan's kind that have something to draw for it.

    ``searched``: all splits, where ``plan`` holds one of them alone.
    """
    some_fit = plan.best_row is not None
    return [
        view
        for view in VIEWS.values()
        if plan.kind in view.kinds
        and (some_fit or not view.needs_fit)
        and (view.offered is None or view.offered(plan if searched is None else searched))
    ]


def formats_table(points: Sequence[FormatPoint], title: str) -> Table:
    """The formats of a split: accuracy kept, figures and checkpoints."""
    accuracy, rows = column_metric("accuracy"), []
    measures = [
        metric
        for metric in map(column_metric, FIGURES)
        if metric.name != "usd" or has_token_prices(points)
    ]
    for point in points:
        retained = point.retained
        cells = {
            "Weights": f"{point.weight_dtype}{' (this)' if point.planned else ''}",
            "Cache": point.kv_dtype,
            accuracy.title: accuracy.show(retained.value) if retained.is_known else "unknown",
            "Likely": accuracy_band_text(point),
        }
        for metric in measures:
            cells[metric.head] = metric.show(getattr(point, metric.column)) if point.runs else "–"
        cells["Best tradeoff"] = "◆" if point.front else ""
        cells["Checkpoint"] = point.checkpoint or MADE
        if not point.runs:
            cells["Checkpoint"] = f"does not run: {point.reasons[0]}"
        rows.append(cells)
    return Table.of(rows, title)


def published_table(figures: Sequence[NearFigure]) -> Table:
    return Table.of_rows("Nearest published figures", PHRASES.rows("published", figures))


def frontier_table(frontier: Frontier) -> Table:
    """The highest output per device at round interactivities, and the gains over the first device.

    Of one device also the split and its load.
    """
    envelopes = frontier.envelopes
    rows = []
    for interactivity in INTERACTIVITIES:
        best = [
            None if (k := envelope.at(interactivity)) is None else float(envelope.per_gpu[k])
            for envelope in envelopes
        ]
        if all(value is None for value in best):
            continue
        cells = {"At least": f"{interactivity:,.0f} tok/s a user"}
        for envelope, value in zip(envelopes, best, strict=True):
            text, place = "–", envelope.at(interactivity)
            if value is not None and place is not None:
                split = split_label(frontier.plan, int(envelope.rows[place]), device=False)
                text = f"{token_rate_text(value)} ({split})"
            cells[f"{envelope.title}, per GPU"] = text
        for envelope, value in zip(envelopes[1:], best[1:], strict=True):
            cells[f"{envelope.title} over {envelopes[0].title}"] = _gain_text(value, best[0])
        rows.append(cells)
    return Table.of(rows, "Most output per GPU at an interactivity")


def _gain_text(value: float | None, first: float | None) -> str:
    if value is None or first is None:
        return "–"
    text = share_text(value / first - 1, signed=True)
    return "0 %" if text in ("+0 %", "-0 %") else text


def device_table(estimate: ServingEstimate, stated_hit: float) -> Table:
    """The devices' cache of a replica, and its hits; ``stated_hit``: by the workload."""
    holds = (estimate.memory.prefill or estimate.memory).kv_cache_tokens
    rows = PHRASES.rows("device", holds, estimate.prefix_cache, stated_hit)
    return Table.of_rows("", rows)


def tier_table(tiers: Sequence[KvTier]) -> Table:
    """The gains and costs of each tier, and the verdict on it."""
    heads = (column_metric("ttft_s").head, column_metric("output_tokens_per_s").title)
    rows = PHRASES.rows("tiers", tiers, TIERS, heads)
    return Table.of_rows("Tiers below the devices' cache", rows)


def phase_table(phases: Sequence[TrainingPhase]) -> Table:
    heads = [column_metric(name).head for name in ("step_s", "peak_memory_bytes")]
    return Table.of_rows("Phases of the run", PHRASES.rows("phases", phases, heads))


def scaling_table(plan: Plan, best: Scaling, title: str) -> Table:
    """The best split on each number of devices, with its measures."""
    names = [name for name in ("output", "wall", "usd_run", "usd") if is_known(plan, name)]
    rows = [
        {
            plan.measures["gpus"].head: measure_text(plan, "gpus", row),
            "Layout": split_label(plan, row),
            **{plan.measures[name].title: measure_text(plan, name, row) for name in names},
        }
        for row in best.rows
    ]
    return Table.of(rows, title)


def arithmetic_items(times: Times, causes: Mapping[str, str]) -> Iterator[Item]:
    """Formulas with the numbers in them, down to operators, and the sources of these."""
    if not times.lines:
        yield Note("The layout breaks a rule, so nothing was estimated.")
    for title, lines in times.lines.items():
        head = ("Figure", "Formula", "With your numbers", "Value")
        yield Table(title, head, tuple(map(astuple, lines)), "Value")
    for work in times.workings:
        yield _operator_table(work, causes)
    if times.constants:
        head = ("Number", "Value", "Status", "Source")
        sources = tuple(map(astuple, times.constants))
        yield Table("Where these numbers are from", head, sources, "Value")


def _operator_table(work: Working, causes: Mapping[str, str]) -> Table:
    together = time_text(sum(row.time_s for row in work.rows))
    rows = PHRASES.rows("operators", work.rows, causes, together)
    return Table.of_rows(work.title, rows, "Time")


def crossing_text(at: Crossing, load_unit: str) -> str:
    """The load and the output at a crossing: ``96 users at once, 2,810 tok/s``."""
    return f"{plain_load_text(at.load)} {load_unit}, {token_rate_text(at.output_tokens_per_s)}"


def plain_load_text(load: float) -> str:
    return f"{load:,.0f}" if load == round(load) else significant(load)


PHRASES = Phrases("split", crossing=crossing_text)


def chart_of(
    key: str,
    figure: go.Figure,
    *values: Any,
    half: bool = False,
) -> Chart:
    """A chart with the texts of its macro in ``templates/split.j2``, told of ``values``."""
    title, alt, *note = PHRASES.lines(key.replace("-", "_"), *values)
    return Chart(key, title, figure, alt, "".join(note), half)
