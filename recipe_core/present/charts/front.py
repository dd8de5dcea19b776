"""What every split trades: two measures against each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

from recipe_core.base.arrays import Int
from recipe_core.base.units import significant
from recipe_core.present.charts.style import FRAME, Palette, palette
from recipe_core.search.plan import Plan

MAX_POINTS = 1500
"""Points of a kind drawn besides the front: more would overlap, and cost server and browser time.

They are SVG: without a GPU, which no page can count on, WebGL is slower even at this number.
"""
CELLS = (200, 120)
SMALL, LARGE = 8.0, 20.0


def tradeoff(
    plan: Plan, x: str, y: str, *, pins: Sequence[str] = (), dark: bool = False
) -> go.Figure:
    """One measure against another: size is the device count, the symbol says what a split is.

    Traces: front (with a step line), fits, over a limit alone, pinned. ``customdata[0]`` of a point
    is the split's key.
    """
    colours = palette(dark)
    figure = go.Figure()
    known = np.isfinite(plan.raw(x)) & np.isfinite(plan.raw(y))
    on_front = np.flatnonzero(plan.front(x, y))
    on_front = on_front[np.argsort(plan.raw(x)[on_front], kind="stable")]
    plain = plan.order[np.isin(plan.order, on_front, invert=True) & known[plan.order]]
    drawn = thinned(plan, plain, x, y)
    beyond = np.array([row for row in plan.beyond_limits() if known[row]], dtype=np.int64)
    some = "" if len(drawn) == len(plain) else f" ({len(drawn):,} of {len(plain):,} drawn)"
    shape = "vh" if plan.measures[x].more_is_better else "hv"
    figure.add_scatter(
        x=plan.values(x, on_front),
        y=plan.values(y, on_front),
        mode="lines",
        line={"shape": shape, "color": colours.series[0], "width": 1.5},
        hoverinfo="skip",
        showlegend=False,
    )
    axes = (x, y)
    figure.add_trace(
        _points(plan, thinned(plan, beyond, x, y), axes, "Over a limit", "x", colours.alarm).update(
            legendrank=1003
        )
    )
    figure.add_trace(
        _points(plan, drawn, axes, f"Fits{some}", "circle", colours.muted).update(legendrank=1002)
    )
    figure.add_trace(
        _points(plan, on_front, axes, "Best tradeoffs", "diamond", colours.series[0], 1.25).update(
            legendrank=1001
        )
    )
    _mark_pins(figure, plan, pins, axes, colours)
    _limit_lines(figure, plan, axes, colours)
    figure.update_xaxes(title=plan.measures[x].axis, rangemode="tozero", zeroline=False)
    figure.update_yaxes(title=plan.measures[y].axis, rangemode="tozero", zeroline=False)
    figure.update_layout(
        height=460, hovermode="closest", showlegend=True, clickmode="event+select", **FRAME
    )
    return figure


def thinned(plan: Plan, rows: Int, x: str, y: str) -> Int:
    """Rows, thinned to the best ranked of those that would overlap where there are too many."""
    if len(rows) <= MAX_POINTS:
        return rows
    places = []
    for name, cells in zip((x, y), CELLS, strict=True):
        values = plan.raw(name)[rows]
        span = float(np.ptp(values)) or 1.0
        places.append(((values - values.min()) / span * (cells - 1)).astype(np.int64))
    _, first = np.unique(places[0] * CELLS[1] + places[1], return_index=True)
    return np.asarray(rows[np.sort(first)][:MAX_POINTS], dtype=np.int64)


def _points(
    plan: Plan,
    rows: Int,
    axes: tuple[str, str],
    name: str,
    symbol: str,
    colour: str,
    larger: float = 1.0,
) -> Any:
    return go.Scatter(
        x=plan.values(axes[0], rows),
        y=plan.values(axes[1], rows),
        mode="markers",
        name=name,
        marker={
            "symbol": symbol,
            "color": colour,
            "size": _sizes(plan, rows) * larger,
            "line": {"width": 0},
        },
        customdata=_about(plan, rows),
        hovertemplate=_HOVER,
        selected={"marker": {"opacity": 1}},
        unselected={"marker": {"opacity": 1}},
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


def _about(plan: Plan, rows: Int) -> list[list[str]]:
    """What points carry, one list per row: key, name, and measures as hover text."""
    noun, basis = plan.device_title, f"<i>computed; device: {plan.basis}</i>"
    measures = [(name, plan.measures[name].title) for name in plan.listed if name != "gpus"]

    def lines(row: int) -> str:
        devices = int(plan.raw("gpus")[row])
        size = f"{devices:,} {noun}" if devices == 1 else f"{devices:,} {noun}s"
        figures = [f"{title} {plan.text(name, row)}" for name, title in measures]
        return "<br>".join([size, *figures, basis])

    return [[plan.key(row), plan.label(row), lines(row)] for row in map(int, rows)]


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
            legendrank=1004,
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
