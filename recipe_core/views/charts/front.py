"""Splits as tradeoffs: two measures against each other, one front for each group of splits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import plotly.graph_objects as go

from recipe_core.base.arrays import Float, Int
from recipe_core.base.units import plain_range_text, significant
from recipe_core.plans.evaluation import band_ends
from recipe_core.plans.plan import Plan
from recipe_core.plans.plan_json import (
    cluster_title,
    device_basis,
    measure_text,
    queue_text,
    row_load_text,
    split_labels,
)
from recipe_core.plans.rank import (
    NO_DIFFERENCE,
    front_of_measures,
    rows_beyond_limits,
    tied_rows,
)
from recipe_core.plans.splits import find_row, row_keys
from recipe_core.views.charts.style import (
    DASHES,
    Drawing,
    Palette,
    Style,
    axis,
    error_bars,
    translucent,
)
from recipe_core.views.plan_words import shown_limit, used_devices_text
from recipe_core.views.plans import GROUPS as TITLES
from recipe_core.views.verdict import starts_text

# Groups with a colour of their own; the others are drawn together.
COLOURED = 8
OTHERS = "Others"


@dataclass(frozen=True, slots=True)
class Groups:
    """The rows of a plan by a property. ``codes``: of every row, an index of ``titles``."""

    name: str
    titles: tuple[str, ...]
    codes: Int

    @property
    def several(self) -> bool:
        return len(self.titles) > 1


ALONE = "none"


def group_names(plan: Plan) -> list[str]:
    """Properties that the splits of a plan differ in, the most telling first; often none."""
    return [name for name in TITLES if name in plan.differs]


def first_grouping(plan: Plan) -> str:
    """The grouping that colours a chart unless the reader chooses."""
    names = group_names(plan)
    return names[0] if names else ALONE


def group_rows(plan: Plan, name: str, at_most: int | None = COLOURED) -> Groups:
    """The rows of a plan by one of ``group_names``; one group for anything else.

    Groups stand in the order in which the plan has them; of more than ``at_most`` those whose best
    row ranks first keep their titles, and the others are one group, the last.
    """
    if name not in group_names(plan):
        return Groups(ALONE, ("",), np.zeros(len(plan), dtype=np.int64))
    titles, codes = _codes(plan, name)
    if at_most is None or len(titles) <= at_most:
        return Groups(name, titles, codes)
    ranked = [*plan.order.tolist(), *rows_beyond_limits(plan), *range(len(plan))]
    leading = sorted(list(dict.fromkeys(codes[ranked].tolist()))[:at_most])
    places = np.full(len(titles), len(leading), dtype=np.int64)
    places[leading] = np.arange(len(leading))
    rest = f"{OTHERS} ({len(titles) - len(leading)})"
    return Groups(name, (*(titles[code] for code in leading), rest), places[codes])


def _codes(plan: Plan, name: str) -> tuple[tuple[str, ...], Int]:
    if name == "load":
        loads = np.asarray(plan.columns["load"], dtype=float)
        _, first, codes = np.unique(loads, return_index=True, return_inverse=True)
        return tuple(row_load_text(plan, int(row)) for row in first), codes.astype(np.int64)
    if name == "device":
        return _of_blocks(plan, lambda _block, row: cluster_title(plan, row))
    return _of_blocks(plan, lambda block, _row: plan.spec.titles_of(block.setting)[name])


def _of_blocks(plan: Plan, title: Callable[[Any, int], str]) -> tuple[tuple[str, ...], Int]:
    titles: dict[str, int] = {}
    codes, start = [], 0
    for block in plan.blocks:
        if len(block):
            code = titles.setdefault(title(block, start), len(titles))
            codes.append(np.full(len(block), code, dtype=np.int64))
        start += len(block)
    return tuple(titles), np.concatenate(codes)


# Points of a state drawn besides the front: more would overlap, and cost server and browser time.
#
# They are SVG: without a GPU, which no page can count on, WebGL is slower even at this number.
MAX_POINTS = 1500
CELLS = (200, 120)
SMALL, LARGE = 8.0, 20.0
FRONT = "front"
HOVER = "<b>%{customdata[1]}</b><br>%{customdata[2]}"


@dataclass(frozen=True, slots=True)
class State:
    """The state of a split, with its mark; ``rank`` orders the legend."""

    name: str
    title: str
    symbol: str
    rank: int
    larger: float = 1.0


def states(plan: Plan) -> dict[str, State]:
    """The states of a plan's splits by name, in the order of drawing."""
    holds = "Can run" if plan.kind == "training" else "Holds the load"
    return {
        state.name: state
        for state in (
            State("beyond", "Over a limit", "x", 1005),
            State("uncertain", "May not start", "triangle-up-open", 1004, 1.1),
            State("queues", "Starts, queues", "hourglass-open", 1003, 1.1),
            State("holds", holds, "circle", 1002),
            State(FRONT, "Best tradeoffs", "diamond", 1001, 1.25),
        )
    }


def tradeoff(
    plan: Plan,
    x: str,
    y: str,
    *,
    pins: Sequence[str] = (),
    by: str | None = None,
    bands: bool = True,
    dark: bool = False,
) -> go.Figure:
    """One measure against another: size is the device count, the symbol the state of a split.

    ``by``: the grouping that colours tell apart (``groups.group_names``); by default the first that
    the plan differs in. Each group has a front of its own. ``bands``: whether the front's points
    carry the ranges in which eight of ten measured runs are expected. ``customdata[0]`` of a point
    is the split's key.
    """
    groups = group_rows(plan, first_grouping(plan) if by is None else by)
    chart = _Tradeoff(Drawing(dark=dark), plan, (x, y), groups, bands)
    chart.add_fronts()
    chart.add_states()
    if groups.several:
        chart.add_legend()
    chart.add_pins(pins)
    chart.add_limits()
    across, up = (axis(plan.measures[name].axis, rangemode="tozero") for name in (x, y))
    look: Style = {"hovermode": "closest", "showlegend": True, "clickmode": "event+select"}
    return chart.draw.set_axes(across, up, 460, **look)


class _Tradeoff:
    """The rows that are drawn, by state, and their looks, by group."""

    def __init__(
        self, draw: Drawing, plan: Plan, axes: tuple[str, str], groups: Groups, bands: bool
    ) -> None:
        self.draw, self.plan, self.axes, self.groups = draw, plan, axes, groups
        self.bands = bands
        self.states = states(plan)
        by_state = self._rows_by_state()
        self.counts = {name: len(rows) for name, rows in by_state.items()}
        self.drawn = {
            name: rows if name == FRONT else thinned(plan, rows, *axes, groups.codes)
            for name, rows in by_state.items()
        }

    def _rows_by_state(self) -> dict[str, Int]:
        plan, (x, y) = self.plan, self.axes
        finite = np.isfinite(plan.raw(x)) & np.isfinite(plan.raw(y))
        on = np.zeros(len(plan), dtype=np.bool_)
        for group in range(len(self.groups.titles)):
            on |= front_of_measures(plan, x, y, among=self.groups.codes == group)
        front = np.flatnonzero(on)
        rest = plan.order[finite[plan.order] & ~on[plan.order]]
        return {
            "beyond": np.array([row for row in rows_beyond_limits(plan) if finite[row]], dtype=int),
            "uncertain": rest[plan.uncertain[rest]],
            "queues": rest[plan.queues[rest]],
            "holds": rest[~plan.queues[rest] & ~plan.uncertain[rest]],
            FRONT: front[np.argsort(plan.raw(x)[front], kind="stable")],
        }

    def _rows(self, state: str, group: int) -> Int:
        rows = self.drawn[state]
        return np.asarray(rows[self.groups.codes[rows] == group])

    def _places(self, rows: Sequence[int] | Int) -> tuple[Float, Float]:
        x, y = self.axes
        return self.plan.values(x, rows), self.plan.values(y, rows)

    def _state_title(self, state: State) -> str:
        shown, total = len(self.drawn[state.name]), self.counts[state.name]
        return state.title + ("" if shown == total else f" ({shown:,} of {total:,} drawn)")

    def _colour(self, group: int) -> str:
        colours = self.draw.colours
        if self.groups.several and self.groups.titles[group].startswith(OTHERS):
            return colours.muted
        return colours.groups[group % len(colours.groups)]

    def _line(self, group: int) -> dict[str, Any]:
        """The line of a group's front; the dash says again what the colour says."""
        dash = DASHES[group % len(DASHES)]
        return {"color": self._colour(group), "width": 1.5, "dash": dash}

    def add_fronts(self) -> None:
        shape = "vh" if self.plan.measures[self.axes[0]].more_is_better else "hv"
        for group, title in enumerate(self.groups.titles):
            line, legend = {"shape": shape, **self._line(group)}, title or None
            places = self._places(self._rows(FRONT, group))
            self.draw.curve(None, *places, line, legendgroup=legend, showlegend=False)

    def add_states(self) -> None:
        """The points of every state and group; of one group, states have colours of their own."""
        several = self.groups.several
        for state in self.states.values():
            for group, title in enumerate(self.groups.titles):
                rows = self._rows(state.name, group)
                if not len(rows) and (several or state.name in ("queues", "uncertain")):
                    continue
                colour = self._colour(group)
                legend = {"legendgroup": title, "showlegend": False}
                name = f"{title}, {state.title[0].lower()}{state.title[1:]}"
                if not several:
                    name = self._state_title(state)
                    colour = _state_colour(state.name, self.draw.colours)
                    legend = {"legendrank": state.rank, "showlegend": True}
                self._add_points(name, rows, state, colour, legend)

    def _add_points(
        self, name: str, rows: Int, state: State, colour: str, legend: dict[str, Any]
    ) -> None:
        front = state.name == FRONT
        bars: dict[str, Any] = {}
        if front and self.bands:
            bars = {
                error: self._error_bars(measure, rows, colour)
                for error, measure in zip(("error_x", "error_y"), self.axes, strict=True)
                if self.plan.measures[measure].band is not None
            }
        look = {
            "symbol": state.symbol,
            "color": colour,
            "opacity": 0.55 if self.groups.several and not front else 1.0,
            "size": _marker_diameters(self.plan, rows) * state.larger,
            "line": {"width": 1.5 if state.symbol.endswith("-open") else 0},
        }
        opaque = {"marker": {"opacity": 1}}
        about = _row_texts(self.plan, rows, ranges=front)
        more = {**legend, **bars, "selected": opaque, "unselected": opaque}
        self.draw.points(name, *self._places(rows), look, HOVER, about, **more)

    def _error_bars(self, name: str, rows: Int, colour: str) -> dict[str, Any]:
        """The 80 % band around each value, as bars without caps: they stand close together."""
        factor, values = self.plan.measures[name].factor, self.plan.values(name, rows)
        low, high = (end * factor for end in band_ends(self.plan, name, rows))
        return error_bars(values, low, high, translucent(colour), thickness=1.25, width=0)

    def add_legend(self) -> None:
        """Entries for groups by colour and dash, which hide a group, then for states by symbol."""
        for group, title in enumerate(self.groups.titles):
            if any((self.groups.codes[rows] == group).any() for rows in self.drawn.values()):
                marker = {"color": self._colour(group), "symbol": "circle", "size": 11}
                look = {"mode": "lines+markers", "line": self._line(group), "marker": marker}
                self._add_entry(title, 990 + group, legendgroup=title, **look)
        for state in self.states.values():
            if self.counts[state.name]:
                marker = {"color": self.draw.colours.muted, "symbol": state.symbol, "size": 11}
                self._add_entry(self._state_title(state), state.rank, mode="markers", marker=marker)

    def _add_entry(self, name: str, rank: int, **look: Any) -> None:
        self.draw.legend_entry(name, legendrank=rank, showlegend=True, hoverinfo="skip", **look)

    def add_pins(self, pins: Sequence[str]) -> None:
        """Rings around pinned splits that fit, with their names."""
        plan, colours = self.plan, self.draw.colours
        pinned = [find_row(plan, key) for key in pins]
        rows = [row for row in pinned if row is not None and plan.feasible[row]]
        if rows:
            ring = {"symbol": "circle-open", "size": 26, "color": colours.series[3]}
            ring["line"] = {"width": 3}
            names = self.draw.labels(split_labels(plan, rows), "bottom center")
            more = {"mode": "markers+text", "legendrank": 1006, **names}
            self.draw.points("Pinned", *self._places(rows), ring, **more)

    def add_limits(self) -> None:
        """The objective's limits on either axis; the time per token also limits its inverse."""
        plan = self.plan
        for key, name in zip("xy", self.axes, strict=True):
            limit = shown_limit(plan, name)
            if name == "interactivity" and (tpot_ms := shown_limit(plan, "tpot")) is not None:
                limit = 1e3 / tpot_ms
            if limit is not None:
                text = f" limit {significant(limit)} {plan.measures[name].unit.symbol}"
                place: Style = {key: limit}
                self.draw.limit(text, **place)


def thinned(plan: Plan, rows: Int, x: str, y: str, codes: Int | None = None) -> Int:
    """Rows, thinned to the best ranked of those that would overlap where there are too many.

    ``codes``: groups of all rows; a row hides none of another group.
    """
    if len(rows) <= MAX_POINTS:
        return rows
    cell = np.zeros(len(rows), dtype=np.int64) if codes is None else codes[rows]
    for name, cells in zip((x, y), CELLS, strict=True):
        values = plan.raw(name)[rows]
        span = float(np.ptp(values)) or 1.0
        cell = cell * cells + ((values - values.min()) / span * (cells - 1)).astype(np.int64)
    _, first = np.unique(cell, return_index=True)
    return np.asarray(rows[np.sort(first)][:MAX_POINTS], dtype=np.int64)


def _state_colour(state: str, colours: Palette) -> str:
    by_state = {"beyond": colours.alarm, "uncertain": colours.series[4]}
    by_state |= {"queues": colours.series[1], FRONT: colours.series[0]}
    return by_state.get(state, colours.muted)


def _marker_diameters(plan: Plan, rows: Int) -> Any:
    """Diameters by device count, areas in proportion, between ``SMALL`` and ``LARGE``."""
    largest = float(plan.raw("gpus").max()) if len(plan) else 1.0
    roots = np.sqrt(plan.raw("gpus")[rows] / largest) - np.sqrt(1 / largest)
    return SMALL + (LARGE - SMALL) * roots


def _row_texts(plan: Plan, rows: Int, *, ranges: bool = False) -> list[list[str]]:
    """Key, name, and measures as hover text, one list per row.

    ``ranges``: with the ranges in which measured runs are expected.
    """
    measures = [name for name in plan.shown.listed if name != "gpus"]
    ends = {}
    for name in measures if ranges else ():
        if plan.measures[name].band is not None:
            low, high = band_ends(plan, name, rows)
            if np.isfinite(low).all() and np.isfinite(high).all():
                ends[name] = (low, high)

    def figure(n: int, row: int, name: str) -> str:
        text = f"{plan.measures[name].title} {measure_text(plan, name, row)}"
        if name not in ends:
            return text
        low, high = (float(values[n]) for values in ends[name])
        return f"{text} ({plain_range_text((low, high), plan.measures[name].show)} likely)"

    basis = f"<i>computed; device: {device_basis(plan)}</i>"
    tied, tie = tied_rows(plan, rows), f"{NO_DIFFERENCE.capitalize()} from the best"

    def lines(n: int, row: int) -> str:
        states = [f"Queues: {queue_text(plan, row)}" if plan.queues[row] else ""]
        states += [starts_text(plan, row), tie if tied[n] else ""]
        figures = [figure(n, row, name) for name in measures]
        parts = [used_devices_text(plan, row), *states, *figures, basis]
        return "<br>".join(part for part in parts if part)

    texts = [lines(n, row) for n, row in enumerate(rows.tolist())]
    keys, labels = row_keys(plan, rows), split_labels(plan, rows)
    return [list(row) for row in zip(keys, labels, texts, strict=True)]
