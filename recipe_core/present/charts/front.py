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
"""Points of a kind drawn besides the front: more overlap, and cost time on both ends.

None is drawn by WebGL: without a GPU, which no page can count on, it is slower than SVG even at this number.
"""
CELLS = (200, 120)
SMALL, LARGE = 8.0, 20.0


def tradeoff(
    board: Plan, x: str, y: str, *, pins: Sequence[str] = (), dark: bool = False
) -> go.Figure:
    """One measure against another: size is the number of devices, symbol what a split is.

    Traces: front (with a step line), fits, over a limit alone, pinned. ``customdata[0]`` of a point is the split's key.
    """
    colours = palette(dark)
    figure = go.Figure()
    known = np.isfinite(board.raw(x)) & np.isfinite(board.raw(y))
    on_front = np.flatnonzero(board.front(x, y))
    on_front = on_front[np.argsort(board.raw(x)[on_front], kind="stable")]
    plain = board.order[np.isin(board.order, on_front, invert=True) & known[board.order]]
    drawn = thinned(board, plain, x, y)
    beyond = np.array([row for row in board.beyond_limits() if known[row]], dtype=np.int64)
    some = "" if len(drawn) == len(plain) else f" ({len(drawn):,} of {len(plain):,} drawn)"
    shape = "vh" if board.measures[x].more_is_better else "hv"
    figure.add_scatter(
        x=board.values(x, on_front),
        y=board.values(y, on_front),
        mode="lines",
        line={"shape": shape, "color": colours.series[0], "width": 1.5},
        hoverinfo="skip",
        showlegend=False,
    )
    axes = (x, y)
    figure.add_trace(
        _points(
            board, thinned(board, beyond, x, y), axes, "Over a limit", "x", colours.alarm
        ).update(legendrank=1003)
    )
    figure.add_trace(
        _points(board, drawn, axes, f"Fits{some}", "circle", colours.muted).update(legendrank=1002)
    )
    figure.add_trace(
        _points(board, on_front, axes, "Best tradeoffs", "diamond", colours.series[0], 1.25).update(
            legendrank=1001
        )
    )
    _mark_pins(figure, board, pins, axes, colours)
    _limit_lines(figure, board, axes, colours)
    figure.update_xaxes(title=board.measures[x].axis, rangemode="tozero", zeroline=False)
    figure.update_yaxes(title=board.measures[y].axis, rangemode="tozero", zeroline=False)
    figure.update_layout(
        height=460, hovermode="closest", showlegend=True, clickmode="event+select", **FRAME
    )
    return figure


def thinned(board: Plan, rows: Int, x: str, y: str) -> Int:
    """Of rows that would overlap only the first (the best ranked), where there are too many to draw."""
    if len(rows) <= MAX_POINTS:
        return rows
    places = []
    for name, cells in zip((x, y), CELLS, strict=True):
        values = board.raw(name)[rows]
        span = float(np.ptp(values)) or 1.0
        places.append(((values - values.min()) / span * (cells - 1)).astype(np.int64))
    _, first = np.unique(places[0] * CELLS[1] + places[1], return_index=True)
    return np.asarray(rows[np.sort(first)][:MAX_POINTS], dtype=np.int64)


def _points(
    board: Plan,
    rows: Int,
    axes: tuple[str, str],
    name: str,
    symbol: str,
    colour: str,
    larger: float = 1.0,
) -> Any:
    return go.Scatter(
        x=board.values(axes[0], rows),
        y=board.values(axes[1], rows),
        mode="markers",
        name=name,
        marker={
            "symbol": symbol,
            "color": colour,
            "size": _sizes(board, rows) * larger,
            "line": {"width": 0},
        },
        customdata=_told(board, rows),
        hovertemplate=_HOVER,
        selected={"marker": {"opacity": 1}},
        unselected={"marker": {"opacity": 1}},
    )


def _sizes(board: Plan, rows: Int) -> Any:
    """Diameters by the number of devices: areas that are in proportion, within what the eye can see."""
    most = float(board.raw("gpus").max()) if len(board) else 1.0
    return (
        SMALL
        + (LARGE - SMALL) * np.sqrt(board.raw("gpus")[rows] / most)
        - (LARGE - SMALL) * np.sqrt(1 / most)
    )


_HOVER = "<b>%{customdata[1]}</b><br>%{customdata[2]}<extra></extra>"


def _told(board: Plan, rows: Int) -> list[list[str]]:
    """What points carry: key, name, and measures with what they are."""
    noun, how = board.device_title, f"<i>computed; device: {board.basis}</i>"
    measures = [(name, board.measures[name].title) for name in board.listed if name != "gpus"]

    def lines(row: int) -> str:
        devices = int(board.raw("gpus")[row])
        said = [f"{devices:,} {noun}" if devices == 1 else f"{devices:,} {noun}s"]
        return "<br>".join(
            [*said, *(f"{title} {board.text(name, row)}" for name, title in measures), how]
        )

    return [[board.key(row), board.label(row), lines(row)] for row in map(int, rows)]


def _mark_pins(
    figure: go.Figure, board: Plan, pins: Sequence[str], axes: tuple[str, str], colours: Palette
) -> None:
    """Rings around pinned points with their names; splits refused for more than a limit have no place on the chart."""
    rows = [row for key in pins if (row := board.find(key)) is not None and board.feasible[row]]
    if rows:
        figure.add_scatter(
            x=board.values(axes[0], rows),
            y=board.values(axes[1], rows),
            mode="markers+text",
            name="Pinned",
            legendrank=1004,
            text=[board.label(row) for row in rows],
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


def _limit_lines(figure: go.Figure, board: Plan, axes: tuple[str, str], colours: Palette) -> None:
    """The objective's limits on either axis; the time per token also limits its inverse."""
    line = {"dash": "dash", "color": colours.alarm, "width": 2}
    for name, draw, key in ((axes[0], figure.add_vline, "x"), (axes[1], figure.add_hline, "y")):
        limit = board.limit(name)
        if name == "interactivity" and (tpot_ms := board.limit("tpot")) is not None:
            limit = 1e3 / tpot_ms
        if limit is not None:
            said = f" limit {significant(limit)} {board.measures[name].unit}"
            draw(
                **{key: limit},
                line=line,
                annotation={"text": said, "font": {"color": colours.alarm}},
            )
