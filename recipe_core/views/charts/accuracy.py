"""Accuracy as the third axis: what formats of one split cost and lose, and all splits by three."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

from recipe_core.base.arrays import Bool, Int
from recipe_core.base.units import duration, range_text, rate, usd
from recipe_core.plans.measures import kept
from recipe_core.plans.serving_plan import ServingPlan
from recipe_core.views.charts.front import faint, thinned
from recipe_core.views.charts.style import BELOW, DASHES, FRAME, SYMBOLS, Palette, palette
from recipe_core.views.charts.views import Table
from recipe_core.views.explanations.formats import FormatPoint

PERCENT = 100.0
MADE = "to be made"
OWN = "this one"
"""Not its name, which is the user's text."""
PLACES = ("top right", "bottom left")
"""Where names of points stand, of one cache format and the next."""
_HOVER = "<b>%{customdata[0]}</b><br>%{customdata[1]}<extra></extra>"


def priced(points: Sequence[FormatPoint]) -> bool:
    """Whether a price is known, so that cost can be drawn."""
    return any(np.isfinite(point.usd_per_million_output_tokens) for point in points)


def _up(point: FormatPoint, *, cost: bool) -> float:
    return point.usd_per_million_output_tokens if cost else point.output_tokens_per_s_per_gpu


def cost_against_loss(
    of_splits: Mapping[str, Sequence[FormatPoint]], *, dark: bool = False
) -> go.Figure:
    """Cost of a token against the accuracy that is lost: one split, one point a pair of formats.

    Lines join the weight formats of one cache format, widest first; bars are the 80 % band of the
    loss. Without a price, output per device stands for cost.
    """
    colours, figure = palette(dark), go.Figure()
    cost = all(map(priced, of_splits.values()))
    for n, (name, points) in enumerate(of_splits.items()):
        drawn = [p for p in points if p.runs and p.kept.known and np.isfinite(_up(p, cost=cost))]
        own = {p.checkpoint for p in points if p.own}
        caches = list(dict.fromkeys(p.kv_dtype for p in drawn))
        for k, cache in enumerate(caches):
            line = [p for p in drawn if p.kv_dtype == cache]
            title = f"{cache} cache" if len(of_splits) == 1 else f"{name}, {cache} cache"
            look = n * len(caches) + k
            colour = colours.groups[look % len(colours.groups)]
            hovers = [[p.title, _hover(p, own=p.checkpoint in own)] for p in line]
            dash = DASHES[k % len(DASHES)]
            figure.add_trace(_line(line, title, colour, dash, hovers, cost=cost, k=k))
    up = "Cost per million output tokens ($)" if cost else "Output per device (tok/s)"
    figure.update_xaxes(title="Accuracy lost (%)", zeroline=True, zerolinecolor=colours.muted)
    figure.update_yaxes(title=up, zeroline=False)
    figure.update_layout(height=460, hovermode="closest", showlegend=True, **FRAME)
    return figure


def _line(
    points: Sequence[FormatPoint],
    title: str,
    colour: str,
    dash: str,
    hovers: Sequence[Sequence[str]],
    *,
    cost: bool,
    k: int,
) -> Any:
    lost = [PERCENT * point.lost for point in points]
    ends = [(PERCENT * (1 - p.kept.high), PERCENT * (1 - p.kept.low)) for p in points]
    return go.Scatter(
        x=lost,
        y=[_up(point, cost=cost) for point in points],
        mode="lines+markers+text",
        name=title,
        text=[point.weight_dtype for point in points],
        textposition=PLACES[k % len(PLACES)],
        line={"color": colour, "dash": dash, "width": 1.5},
        marker={
            "color": colour,
            "size": [15 if point.own else 11 for point in points],
            "symbol": ["diamond" if point.front else "circle" for point in points],
        },
        error_x={
            "type": "data",
            "symmetric": False,
            "array": [max(high - x, 0.0) for x, (_, high) in zip(lost, ends, strict=True)],
            "arrayminus": [max(x - low, 0.0) for x, (low, _) in zip(lost, ends, strict=True)],
            "color": faint(colour),
            "thickness": 1.25,
            "width": 0,
        },
        customdata=hovers,
        hovertemplate=_HOVER,
        cliponaxis=False,
    )


def _hover(point: FormatPoint, *, own: bool) -> str:
    lines = [
        f"Keeps {kept(point.kept.value)} of the accuracy ({_likely(point)})",
        f"{duration(point.tpot_s)} per token",
        f"{rate(point.output_tokens_per_s_per_gpu)} per device",
    ]
    if np.isfinite(point.usd_per_million_output_tokens):
        lines.append(f"{usd(point.usd_per_million_output_tokens)} per million tokens")
    lines.append(f"Checkpoint: {OWN if own else point.checkpoint or MADE}")
    return "<br>".join(lines)


def _likely(point: FormatPoint) -> str:
    certain = point.kept.low == point.kept.high
    return "by definition" if certain else f"{_band(point)} likely"


def _band(point: FormatPoint) -> str:
    """The ends of the 80 % band; empty where it is certain, or unknown."""
    if not point.kept.known or point.kept.low == point.kept.high:
        return ""
    return range_text((point.kept.low, point.kept.high), kept)


def three_axes(plan: ServingPlan, *, dark: bool = False) -> go.Figure:
    """Every split by time per token, cost and accuracy: the colour is what is kept.

    The symbol says the weight format; rings are the front of all three. Without a price, output per
    device stands for cost.
    """
    colours, figure = palette(dark), go.Figure()
    up = "usd" if plan.known("usd") else "per_gpu"
    rows, front = _rows_of(plan, up)
    formats = np.array([plan.setting(int(row)).weight_dtype for row in rows], dtype=object)
    names = list(dict.fromkeys(formats.tolist()))
    for n, name in enumerate(names):
        symbol = SYMBOLS[n % len(SYMBOLS)]
        for on in (False, True):
            some = rows[(formats == name) & (front[rows] == on)]
            ring = {"width": 2 if on else 0, "color": colours.ink}
            figure.add_trace(_marks(plan, some, up, symbol, ring))
        figure.add_trace(_entry(f"{name} weights", {"color": colours.muted, "symbol": symbol}))
    ring = {"width": 2, "color": colours.ink}
    figure.add_trace(_entry("Best of all three", {"color": colours.paper, "line": ring}))
    figure.update_xaxes(title=plan.measures["tpot"].axis, rangemode="tozero", zeroline=False)
    figure.update_yaxes(title=plan.measures[up].axis, rangemode="tozero", zeroline=False)
    least = float(np.min(plan.values("accuracy", rows), initial=PERCENT))
    figure.update_layout(height=480, hovermode="closest", **BELOW)
    figure.update_layout(coloraxis=_scale(least, colours))
    return figure


def _rows_of(plan: ServingPlan, up: str) -> tuple[Int, Bool]:
    """Rows that are drawn, those on the front last, and which of all rows are on it."""
    rows = plan.order[plan.holds[plan.order]]
    known = [np.isfinite(plan.raw(name)[rows]) for name in ("tpot", up, "accuracy")]
    rows, on = rows[np.all(known, axis=0)], plan.accuracy_front
    front = np.zeros(len(plan), dtype=np.bool_) if on is None else on
    return np.concatenate([thinned(plan, rows[~front[rows]], "tpot", up), rows[front[rows]]]), front


def _marks(plan: ServingPlan, rows: Int, up: str, symbol: str, ring: dict[str, Any]) -> Any:
    on = bool(ring["width"])
    return go.Scatter(
        x=plan.values("tpot", rows),
        y=plan.values(up, rows),
        mode="markers",
        showlegend=False,
        marker={
            "color": plan.values("accuracy", rows),
            "coloraxis": "coloraxis",
            "size": 14 if on else 9,
            "opacity": 1.0 if on else 0.6,
            "symbol": symbol,
            "line": ring,
        },
        customdata=[[plan.label(int(row)), _about(plan, int(row), up)] for row in rows],
        hovertemplate=_HOVER,
    )


def _entry(name: str, marker: dict[str, Any]) -> Any:
    """A line of the legend alone."""
    return go.Scatter(x=[None], y=[None], mode="markers", name=name, marker={"size": 11, **marker})


def _scale(least: float, colours: Palette) -> dict[str, Any]:
    title = {"text": "Accuracy kept (%)", "side": "right"}
    return {
        "colorscale": [[0, colours.series[1]], [1, colours.series[0]]],
        "cmin": least,
        "cmax": PERCENT,
        "colorbar": {"title": title, "thickness": 12},
    }


def _about(plan: ServingPlan, row: int, up: str) -> str:
    names = ("accuracy", "tpot", up)
    return "<br>".join(f"{plan.measures[name].title} {plan.text(name, row)}" for name in names)


def formats_table(points: Sequence[FormatPoint], title: str) -> Table:
    """The formats of a split with what each keeps, costs and needs."""
    cost = priced(points)
    rows = []
    for point in points:
        cells = {
            "Weights": f"{point.weight_dtype}{' (this)' if point.own else ''}",
            "Cache": point.kv_dtype,
            "Accuracy kept": kept(point.kept.value) if point.kept.known else "unknown",
            "Likely": _band(point),
        }
        cells["Per token"] = duration(point.tpot_s) if point.runs else "–"
        if cost:
            cells["Per M tokens"] = usd(point.usd_per_million_output_tokens) if point.runs else "–"
        cells["Per device"] = rate(point.output_tokens_per_s_per_gpu) if point.runs else "–"
        cells["Best tradeoff"] = "◆" if point.front else ""
        cells["Checkpoint"] = point.checkpoint or MADE
        if not point.runs:
            cells["Checkpoint"] = f"does not run: {point.reasons[0]}"
        rows.append(cells)
    return Table.of(rows, title)
