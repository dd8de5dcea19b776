"""What every split trades: two measures against each other, one front for each group of splits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import plotly.graph_objects as go

from recipe_core.base.arrays import Float, Int
from recipe_core.base.units import range_text, significant
from recipe_core.plans.plan import Plan
from recipe_core.views.charts.groups import OTHERS, Groups, first_grouping, grouped
from recipe_core.views.charts.style import DASHES, FRAME, Palette, palette
from recipe_core.views.verdict import starts_text

MAX_POINTS = 1500
"""Points of a state drawn besides the front: more would overlap, and cost server and browser time.

They are SVG: without a GPU, which no page can count on, WebGL is slower even at this number.
"""
CELLS = (200, 120)
SMALL, LARGE = 8.0, 20.0
FRONT = "front"


@dataclass(frozen=True, slots=True)
class State:
    """What a split is, with its mark; ``rank`` orders the legend."""

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
    """One measure against another: size is the device count, the symbol says what a split is.

    ``by``: what colours tell apart (``groups.group_names``); by default what the plan differs in
    first. Each group has a front of its own. ``bands``: whether the front's points carry the ranges
    in which eight of ten measured runs are expected. ``customdata[0]`` of a point is the split's
    key.
    """
    colours = palette(dark)
    figure = go.Figure()
    groups = grouped(plan, first_grouping(plan) if by is None else by)
    drawn = _drawn(plan, groups, (x, y))
    looks = _looks(groups, colours)
    for group in range(len(groups.titles)):
        _add_front_line(figure, plan, drawn.front(group), (x, y), looks[group])
    titles = {state.name: state for state in states(plan).values()}
    for state in titles.values():
        for group in range(len(groups.titles)):
            rows = drawn.rows(state.name, group)
            if not len(rows) and (groups.several or state.name in ("queues", "uncertain")):
                continue
            look = looks[group]
            if not groups.several:
                title = f"{state.title}{drawn.left_out(state.name)}"
                look = _Look(title, _state_colour(state.name, colours), look.dash, several=False)
            figure.add_trace(_points(plan, rows, (x, y), state, look, bands=bands))
    if groups.several:
        _add_legend(figure, titles, drawn, groups, looks, colours)
    _mark_pins(figure, plan, pins, (x, y), colours)
    _limit_lines(figure, plan, (x, y), colours)
    figure.update_xaxes(title=plan.measures[x].axis, rangemode="tozero", zeroline=False)
    figure.update_yaxes(title=plan.measures[y].axis, rangemode="tozero", zeroline=False)
    figure.update_layout(
        height=460, hovermode="closest", showlegend=True, clickmode="event+select", **FRAME
    )
    return figure


# What is drawn


@dataclass(frozen=True, slots=True)
class _Drawn:
    """Rows that are drawn, by state; ``every``: how many there are of each."""

    by_state: dict[str, Int]
    every: dict[str, int]
    groups: Groups

    def rows(self, state: str, group: int) -> Int:
        rows = self.by_state[state]
        return np.asarray(rows[self.groups.codes[rows] == group])

    def front(self, group: int) -> Int:
        """The front of a group, from left to right."""
        return self.rows(FRONT, group)

    def left_out(self, state: str) -> str:
        """How many of a state's splits are drawn, where not all are."""
        shown, every = len(self.by_state[state]), self.every[state]
        return "" if shown == every else f" ({shown:,} of {every:,} drawn)"


def _drawn(plan: Plan, groups: Groups, axes: tuple[str, str]) -> _Drawn:
    x, y = axes
    known = np.isfinite(plan.raw(x)) & np.isfinite(plan.raw(y))
    on = np.zeros(len(plan), dtype=np.bool_)
    for group in range(len(groups.titles)):
        on |= plan.front(x, y, among=groups.among(group))
    on_front = np.flatnonzero(on)
    on_front = on_front[np.argsort(plan.raw(x)[on_front], kind="stable")]
    rest = plan.order[known[plan.order] & ~on[plan.order]]
    beyond = np.array([row for row in plan.beyond_limits() if known[row]], dtype=np.int64)
    whole = {
        "beyond": beyond,
        "uncertain": rest[plan.uncertain[rest]],
        "queues": rest[plan.queues[rest]],
        "holds": rest[~plan.queues[rest] & ~plan.uncertain[rest]],
    }
    shown = {name: thinned(plan, rows, x, y, groups.codes) for name, rows in whole.items()}
    counts = {name: len(rows) for name, rows in whole.items()}
    return _Drawn(shown | {FRONT: on_front}, counts | {FRONT: len(on_front)}, groups)


def thinned(plan: Plan, rows: Int, x: str, y: str, codes: Int | None = None) -> Int:
    """Rows, thinned to the best ranked of those that would overlap where there are too many.

    ``codes``: groups of all rows; a row hides none of another group.
    """
    if len(rows) <= MAX_POINTS:
        return rows
    places = []
    for name, cells in zip((x, y), CELLS, strict=True):
        values = plan.raw(name)[rows]
        span = float(np.ptp(values)) or 1.0
        places.append(((values - values.min()) / span * (cells - 1)).astype(np.int64))
    cell = places[0] * CELLS[1] + places[1]
    if codes is not None:
        cell = cell + codes[rows] * CELLS[0] * CELLS[1]
    _, first = np.unique(cell, return_index=True)
    return np.asarray(rows[np.sort(first)][:MAX_POINTS], dtype=np.int64)


# How it looks


@dataclass(frozen=True, slots=True)
class _Look:
    """Title, colour and dash of a group; the dash says again what the colour says."""

    title: str
    colour: str
    dash: str
    several: bool


def _looks(groups: Groups, colours: Palette) -> list[_Look]:
    looks = []
    for n, title in enumerate(groups.titles):
        others = groups.several and title.startswith(OTHERS)
        colour = colours.muted if others else colours.groups[n % len(colours.groups)]
        looks.append(_Look(title, colour, DASHES[n % len(DASHES)], groups.several))
    return looks


def _state_colour(state: str, colours: Palette) -> str:
    by_state = {"beyond": colours.alarm, "uncertain": colours.series[4]}
    by_state |= {"queues": colours.series[1], FRONT: colours.series[0]}
    return by_state.get(state, colours.muted)


def _add_front_line(
    figure: go.Figure, plan: Plan, rows: Int, axes: tuple[str, str], look: _Look
) -> None:
    shape = "vh" if plan.measures[axes[0]].more_is_better else "hv"
    figure.add_scatter(
        x=plan.values(axes[0], rows),
        y=plan.values(axes[1], rows),
        mode="lines",
        line={"shape": shape, "color": look.colour, "width": 1.5, "dash": look.dash},
        legendgroup=look.title or None,
        hoverinfo="skip",
        showlegend=False,
    )


def _points(
    plan: Plan, rows: Int, axes: tuple[str, str], state: State, look: _Look, *, bands: bool
) -> Any:
    on_front = state.name == FRONT
    bars: dict[str, Any] = {}
    if on_front and bands:
        bars = {
            axis: _error_bars(plan, name, rows, look.colour)
            for axis, name in zip(("error_x", "error_y"), axes, strict=True)
            if plan.has_band(name)
        }
    named: dict[str, Any] = {"name": look.title, "legendrank": state.rank, "showlegend": True}
    if look.several:
        words = f"{look.title}, {state.title[0].lower()}{state.title[1:]}"
        named = {"name": words, "legendgroup": look.title, "showlegend": False}
    return go.Scatter(
        x=plan.values(axes[0], rows),
        y=plan.values(axes[1], rows),
        mode="markers",
        **named,
        **bars,
        marker={
            "symbol": state.symbol,
            "color": look.colour,
            "opacity": 0.55 if look.several and not on_front else 1.0,
            "size": _sizes(plan, rows) * state.larger,
            "line": {"width": 1.5 if state.symbol.endswith("-open") else 0},
        },
        customdata=_about(plan, rows, ranges=on_front),
        hovertemplate=_HOVER,
        selected={"marker": {"opacity": 1}},
        unselected={"marker": {"opacity": 1}},
    )


def _error_bars(plan: Plan, name: str, rows: Int, colour: str) -> dict[str, Any]:
    """The 80 % band around each value, as bars without caps: they stand close together."""
    factor, values = plan.measures[name].factor, plan.values(name, rows)
    low, high = (end * factor for end in plan.band_ends(name, rows))
    return {
        "type": "data",
        "symmetric": False,
        "array": np.nan_to_num(high - values),
        "arrayminus": np.nan_to_num(values - low),
        "color": faint(colour),
        "thickness": 1.25,
        "width": 0,
    }


def faint(colour: str) -> str:
    """A colour, given as #RRGGBB, with most of what is behind it to be seen."""
    red, green, blue = (int(colour[n : n + 2], 16) for n in (1, 3, 5))
    return f"rgba({red}, {green}, {blue}, 0.4)"


def _add_legend(
    figure: go.Figure,
    titles: dict[str, State],
    drawn: _Drawn,
    groups: Groups,
    looks: Sequence[_Look],
    colours: Palette,
) -> None:
    """Entries for groups by colour and dash, which hide a group, then for states by symbol."""
    for n, look in enumerate(looks):
        if any((groups.codes[rows] == n).any() for rows in drawn.by_state.values()):
            figure.add_trace(
                _entry(
                    look.title,
                    990 + n,
                    legendgroup=look.title,
                    mode="lines+markers",
                    line={"color": look.colour, "dash": look.dash, "width": 1.5},
                    marker={"color": look.colour, "symbol": "circle", "size": 11},
                )
            )
    for state in titles.values():
        if drawn.every[state.name]:
            marker = {"color": colours.muted, "symbol": state.symbol, "size": 11}
            name = f"{state.title}{drawn.left_out(state.name)}"
            figure.add_trace(_entry(name, state.rank, mode="markers", marker=marker))


def _entry(name: str, rank: int, **look: Any) -> Any:
    """A line of the legend alone."""
    return go.Scatter(
        x=[None], y=[None], name=name, legendrank=rank, showlegend=True, hoverinfo="skip", **look
    )


def _sizes(plan: Plan, rows: Int) -> Any:
    """Diameters by device count, areas in proportion, between ``SMALL`` and ``LARGE``."""
    largest = float(plan.raw("gpus").max()) if len(plan) else 1.0
    return (
        SMALL
        + (LARGE - SMALL) * np.sqrt(plan.raw("gpus")[rows] / largest)
        - (LARGE - SMALL) * np.sqrt(1 / largest)
    )


_HOVER = "<b>%{customdata[1]}</b><br>%{customdata[2]}<extra></extra>"


def _about(plan: Plan, rows: Int, *, ranges: bool = False) -> list[list[str]]:
    """What points carry, one list per row: key, name, and measures as hover text.

    ``ranges``: with the ranges in which measured runs are expected.
    """
    basis = f"<i>computed; device: {plan.basis}</i>"
    measures = [(name, plan.measures[name].title) for name in plan.listed if name != "gpus"]
    ends = dict(_ends(plan, rows)) if ranges else {}

    def figure(n: int, row: int, name: str, title: str) -> str:
        text = f"{title} {plan.text(name, row)}"
        if name not in ends:
            return text
        low, high = ends[name]
        return f"{text} ({range_text((low[n], high[n]), plan.measures[name].show)} likely)"

    def lines(n: int, row: int) -> str:
        figures = [figure(n, row, name, title) for name, title in measures]
        waiting = [f"Queues: {plan.queue_text(row)}"] if plan.queues[row] else []
        waiting += [said] if (said := starts_text(plan, row)) else []
        return "<br>".join([plan.devices_text(row), *waiting, *figures, basis])

    return [[plan.key(row), plan.label(row), lines(n, row)] for n, row in enumerate(map(int, rows))]


def _ends(plan: Plan, rows: Int) -> Iterator[tuple[str, tuple[Float, Float]]]:
    """The bands of the listed measures that have one, by name."""
    for name in plan.listed:
        if plan.has_band(name):
            low, high = plan.band_ends(name, rows)
            if np.isfinite(low).all() and np.isfinite(high).all():
                yield name, (low, high)


def _mark_pins(
    figure: go.Figure, plan: Plan, pins: Sequence[str], axes: tuple[str, str], colours: Palette
) -> None:
    """Rings around pinned splits that fit, with their names."""
    rows = [row for key in pins if (row := plan.find(key)) is not None and plan.feasible[row]]
    if rows:
        figure.add_scatter(
            x=plan.values(axes[0], rows),
            y=plan.values(axes[1], rows),
            mode="markers+text",
            name="Pinned",
            legendrank=1006,
            text=[plan.label(row) for row in rows],
            textposition="bottom center",
            textfont={"color": colours.ink},
            marker={
                "symbol": "circle-open",
                "size": 26,
                "color": colours.series[3],
                "line": {"width": 3},
            },
            hoverinfo="skip",
            cliponaxis=False,
        )


def _limit_lines(figure: go.Figure, plan: Plan, axes: tuple[str, str], colours: Palette) -> None:
    """The objective's limits on either axis; the time per token also limits its inverse."""
    line = {"dash": "dash", "color": colours.alarm, "width": 2}
    for name, draw, key in ((axes[0], figure.add_vline, "x"), (axes[1], figure.add_hline, "y")):
        limit = plan.limit(name)
        if name == "interactivity" and (tpot_ms := plan.limit("tpot")) is not None:
            limit = 1e3 / tpot_ms
        if limit is not None:
            text = f" limit {significant(limit)} {plan.measures[name].unit}"
            draw(
                **{key: limit},
                line=line,
                annotation={"text": text, "font": {"color": colours.alarm}},
            )
