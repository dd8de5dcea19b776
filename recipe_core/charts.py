"""A PlanTable as plotly figures; pages, report and notebooks share them.

Colours are set on every trace, so a figure looks the same under any template; text and grid are left to the page's theme.
A second channel (symbol, pattern) always says what the colour says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import plotly.graph_objects as go

from recipe_core.advice import refused_by_limits
from recipe_core.figures import MEMORY
from recipe_core.labels import CAUSES, PARTS, split_label, unit
from recipe_core.plan import PlanTable
from recipe_core.query import row_of, split_key
from recipe_core.units import GIB, count, duration, gib, rate, significant, usd

XAxis = Literal["tpot", "interactivity"]
MAX_POINTS = 4000
"""Feasible points drawn besides the front; a browser stays smooth and the eye cannot tell more apart."""


@dataclass(frozen=True, slots=True)
class Palette:
    """Colours that stay apart for colour-blind readers; ``series`` in the order of use."""

    series: tuple[str, ...]
    muted: str
    alarm: str
    ink: str
    paper: str


LIGHT = Palette(("#0B57D0", "#B96A00", "#00936A", "#C2189B", "#22313A"), "#7C8894", "#B3261E", "#1B2430", "#FFFFFF")
DARK = Palette(("#4C86F0", "#B98A2E", "#35E0A1", "#D65AA8", "#C6E3F9"), "#8593A1", "#FF8A80", "#E6EAEE", "#12171D")


def palette(dark: bool) -> Palette:
    """The colours for a dark or light page."""
    return DARK if dark else LIGHT


_PATTERNS = ("", "/", "x", ".", "\\")


def pareto(table: PlanTable, *, pins: Sequence[str] = (), x: XAxis = "tpot", dark: bool = False) -> go.Figure:
    """Time per output token (or its inverse) against tokens/s per device: what every split trades.

    Traces: feasible, front (with a step line), refused by a limit alone, pinned. ``customdata[0]`` of a point is the split's key.
    """
    colours = palette(dark)
    figure = go.Figure()
    feasible, front = table.columns["feasible"], table.front
    plain = [int(row) for row in np.flatnonzero(feasible & ~front)]
    drawn = plain[:: max(1, -(-len(plain) // MAX_POINTS))]
    on_front = sorted((int(row) for row in np.flatnonzero(front)), key=lambda row: _x(table, x, row))
    beyond = refused_by_limits(table)[:MAX_POINTS]
    figure.add_scatter(
        x=[_x(table, x, row) for row in on_front],
        y=[_y(table, row) for row in on_front],
        mode="lines",
        line={"shape": "hv" if x == "tpot" else "vh", "color": colours.series[0], "width": 1.5},
        hoverinfo="skip",
        showlegend=False,
    )
    some = "" if len(drawn) == len(plain) else f" ({len(drawn):,} of {len(plain):,} drawn)"
    figure.add_trace(_points(table, beyond, x, "Over a limit", "x", colours.alarm, 8).update(legendrank=1003))
    figure.add_trace(_points(table, drawn, x, f"Fits{some}", "circle", colours.muted, 9).update(legendrank=1002))
    figure.add_trace(_points(table, on_front, x, "Best tradeoffs", "diamond", colours.series[0], 12).update(legendrank=1001))
    _mark_pins(figure, table, pins, x, colours)
    _limit_line(figure, table, x, colours)
    title = "Time per output token (ms)" if x == "tpot" else "Tokens/s that one user sees"
    figure.update_xaxes(title=title, rangemode="tozero", zeroline=False)
    figure.update_yaxes(title=f"Output tokens/s per {unit(table)}", rangemode="tozero", zeroline=False)
    figure.update_layout(height=420, hovermode="closest", showlegend=True, **_FRAME)
    return figure


_FRAME: dict[str, Any] = {
    "margin": {"l": 10, "r": 16, "t": 40, "b": 10},
    "legend": {"orientation": "h", "yanchor": "bottom", "y": 1.02, "x": 0, "title": None},
}


def _x(table: PlanTable, axis: XAxis, row: int) -> float:
    seconds = float(table.columns["tpot_s"][row])
    return seconds * 1e3 if axis == "tpot" else 1 / seconds


def _y(table: PlanTable, row: int) -> float:
    return float(table.columns["output_tokens_per_s_per_gpu"][row])


def _points(table: PlanTable, rows: Sequence[int], axis: XAxis, name: str, symbol: str, colour: str, size: int) -> go.Scatter:
    return go.Scatter(
        x=[_x(table, axis, row) for row in rows],
        y=[_y(table, row) for row in rows],
        mode="markers",
        name=name,
        marker={"symbol": symbol, "color": colour, "size": size},
        customdata=[_told(table, row) for row in rows],
        hovertemplate=_HOVER,
        selected={"marker": {"opacity": 1}},
        unselected={"marker": {"opacity": 1}},
    )


_HOVER = (
    "<b>%{customdata[1]}</b> on %{customdata[2]}<br>"
    "Output %{customdata[3]}<br>Per output token %{customdata[4]}<br>First token %{customdata[5]}<br>"
    "Memory %{customdata[6]} each<br>%{customdata[7]}<extra></extra>"
)


def _counted(n: int, noun: str) -> str:
    return f"{n:,} {noun}" if n == 1 else f"{n:,} {noun}s"


def _told(table: PlanTable, row: int) -> list[Any]:
    """What a point carries: its key and what its tooltip says."""
    c = table.columns
    price = float(c["usd_per_million_output_tokens"][row])
    return [
        split_key(table.candidate(row)),
        split_label(table, row),
        _counted(int(c["gpus"][row]), unit(table)),
        rate(float(c["output_tokens_per_s"][row])),
        duration(float(c["tpot_s"][row])),
        duration(float(c["ttft_s"][row])),
        gib(float(c["total_bytes"][row])),
        f"{usd(price)} per million output tokens" if np.isfinite(price) else "Price unknown",
    ]


def _mark_pins(figure: go.Figure, table: PlanTable, pins: Sequence[str], axis: XAxis, colours: Palette) -> None:
    """Rings around pinned points with their names; splits refused for more than a limit have no place on the chart."""
    named = [(key, row) for key in pins if (row := row_of(table, key)) is not None]
    rows = [row for _, row in named if table.columns["feasible"][row]]
    if rows:
        figure.add_scatter(
            x=[_x(table, axis, row) for row in rows],
            y=[_y(table, row) for row in rows],
            mode="markers+text",
            name="Pinned",
            legendrank=1004,
            text=[split_label(table, row) for row in rows],
            textposition="bottom center",
            textfont={"color": colours.ink},
            marker={"symbol": "circle-open", "size": 22, "color": colours.series[3], "line": {"width": 3}},
            hoverinfo="skip",
            cliponaxis=False,
        )


def _limit_line(figure: go.Figure, table: PlanTable, axis: XAxis, colours: Palette) -> None:
    limit = table.request.objective.limits.tpot_ms
    if limit is not None:
        place = limit if axis == "tpot" else 1e3 / limit
        figure.add_vline(
            x=place,
            line={"dash": "dash", "color": colours.alarm, "width": 2},
            annotation={"text": f" limit {significant(limit)} ms", "font": {"color": colours.alarm}},
        )


def memory_bars(table: PlanTable, rows: Sequence[int], *, dark: bool = False) -> go.Figure:
    """Memory per device by part, one bar a split, with the usable share and the capacity; drawn also where it does not fit."""
    colours = palette(dark)
    c = table.columns
    labels = [_bar_label(table, row) for row in rows]
    figure = go.Figure()
    for n, (column, name) in enumerate(MEMORY.items()):
        figure.add_bar(
            y=labels,
            x=[float(c[column][row]) / GIB for row in rows],
            orientation="h",
            name=name,
            marker=_fill(colours, n),
            customdata=[[split_key(table.candidate(row)), gib(float(c[column][row]))] for row in rows],
            hovertemplate=f"%{{y}}<br>{name} %{{customdata[1]}}<extra></extra>",
        )
    totals = [float(c["total_bytes"][row]) for row in rows]
    figure.add_scatter(
        y=labels,
        x=[total / GIB for total in totals],
        mode="text",
        text=[_total_text(table, row) for row in rows],
        textposition="middle right",
        textfont={"color": colours.ink},
        hoverinfo="skip",
        showlegend=False,
        cliponaxis=False,
    )
    usable, capacity = (float(np.max(c[name][list(rows)])) / GIB if len(rows) else 0.0 for name in ("usable_bytes", "capacity_bytes"))
    figure.add_vline(x=usable, line={"dash": "dot", "color": colours.ink, "width": 2})
    figure.add_vline(x=capacity, line={"color": colours.alarm, "width": 2})
    figure.add_annotation(x=usable, y=1, yref="paper", yanchor="bottom", xanchor="right", showarrow=False, text=f"usable {usable:.1f} ")
    figure.add_annotation(
        x=capacity,
        y=1,
        yref="paper",
        yanchor="bottom",
        xanchor="left",
        showarrow=False,
        text=f" {capacity:.1f} GiB capacity",
        font={"color": colours.alarm},
    )
    widest = max([capacity, *(total / GIB for total in totals)])
    figure.update_layout(barmode="stack", height=150 + 36 * len(rows), bargap=0.35, **(_FRAME | _LEGEND_BELOW))
    figure.update_xaxes(title=f"GiB per {unit(table)}", range=[0, widest * 1.3], zeroline=False)
    figure.update_yaxes(autorange="reversed", type="category", title=None)
    return figure


_LEGEND_BELOW: dict[str, Any] = {
    "margin": {"l": 10, "r": 16, "t": 30, "b": 70},
    "legend": {"orientation": "h", "yref": "container", "yanchor": "bottom", "y": 0, "x": 0, "title": None, "traceorder": "normal"},
}


def _fill(colours: Palette, n: int) -> dict[str, Any]:
    return {
        "color": colours.series[n % len(colours.series)],
        "pattern": {
            "shape": _PATTERNS[n % len(_PATTERNS)],
            "fillmode": "overlay",
            "fgcolor": colours.paper,
            "fgopacity": 0.5,
            "size": 7,
            "solidity": 0.25,
        },
    }


def _bar_label(table: PlanTable, row: int) -> str:
    fits = table.columns["feasible"][row]
    return split_label(table, row) + ("" if fits else " (refused)")


def _total_text(table: PlanTable, row: int) -> str:
    """The total, and what is missing where the smallest start does not fit."""
    short = float(table.columns["shortfall_bytes"][row])
    total = float(table.columns["total_bytes"][row]) / GIB
    return f" {total:,.1f}, {short / GIB:,.1f} short" if short > 0 else f" {total:,.1f}"


def step_breakdown(found: Sequence[tuple[str, Mapping[str, float]]], *, dark: bool = False) -> go.Figure:
    """Seconds by cause, largest first, one bar a split; ``found`` pairs a split's name with its part of ``breakdown_s``."""
    colours = palette(dark)
    causes = sorted({cause for _, parts in found for cause in parts}, key=lambda cause: -max(parts.get(cause, 0.0) for _, parts in found))
    widest = max([parts.get(cause, 0.0) for _, parts in found for cause in causes], default=0.0)
    factor, shown = (1.0, "s") if widest >= 10 else (1e3, "ms")
    figure = go.Figure()
    for n, (name, parts) in enumerate(found):
        figure.add_bar(
            y=[CAUSES.get(cause, cause) for cause in causes],
            x=[parts.get(cause, 0.0) * factor for cause in causes],
            orientation="h",
            name=name,
            marker=_fill(colours, n),
            text=[duration(parts[cause]) if parts.get(cause) else "" for cause in causes],
            textposition="outside",
            textfont={"color": colours.ink},
            cliponaxis=False,
            customdata=[duration(parts.get(cause, 0.0)) for cause in causes],
            hovertemplate="%{y}<br>%{customdata}<extra>" + name + "</extra>",
        )
    figure.update_layout(barmode="group", height=90 + len(causes) * (16 + 14 * len(found)), bargap=0.3, showlegend=len(found) > 1, **_FRAME)
    figure.update_xaxes(title=shown, range=[0, widest * factor * 1.25 or 1], zeroline=False)
    figure.update_yaxes(autorange="reversed", type="category", title=None)
    return figure


def parts_bars(parts: Mapping[str, float], *, dark: bool = False) -> go.Figure:
    """Parameters by part of the model, largest first."""
    colours = palette(dark)
    ordered = sorted(parts.items(), key=lambda item: -item[1])
    figure = go.Figure()
    figure.add_bar(
        y=[PARTS.get(name, name) for name, _ in ordered],
        x=[value for _, value in ordered],
        orientation="h",
        marker={"color": colours.series[0]},
        text=[count(value) for _, value in ordered],
        textposition="outside",
        textfont={"color": colours.ink},
        cliponaxis=False,
        customdata=[f"{value:,}" for _, value in ordered],
        hovertemplate="%{y}<br>%{customdata} parameters<extra></extra>",
    )
    widest = max(parts.values(), default=1.0)
    figure.update_layout(height=40 + 30 * len(ordered), bargap=0.35, showlegend=False, margin={"l": 10, "r": 16, "t": 10, "b": 10})
    figure.update_xaxes(visible=False, range=[0, widest * 1.25])
    figure.update_yaxes(autorange="reversed", type="category", title=None)
    return figure
