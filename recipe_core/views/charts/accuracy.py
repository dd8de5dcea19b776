"""Accuracy as the third axis: costs and losses of one split's formats, and all splits by three."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import plotly.graph_objects as go

from recipe_core.base.arrays import Bool, Int
from recipe_core.base.units import accuracy_text, plain_range_text
from recipe_core.plans.plan import Plan
from recipe_core.plans.plan_json import measure_text, split_label
from recipe_core.plans.rank import front_with_accuracy
from recipe_core.plans.splits import is_known
from recipe_core.request.metrics import column_metric
from recipe_core.views.charts.figures import Drawing, Look, Style, axis, error_bars
from recipe_core.views.charts.front import thinned
from recipe_core.views.charts.style import BELOW, DASHES, SYMBOLS, translucent
from recipe_core.views.explanations.formats import FormatPoint

PERCENT = 100.0
MADE = "to be made"
# Not its name, which is the user's text.
OWN = "this one"
# Where names of points stand, of one cache format and the next.
PLACES = ("top right", "bottom left")
HOVER = "<b>%{customdata[0]}</b><br>%{customdata[1]}"
# Figures of a point beside its accuracy, by their columns.
FIGURES = ("tpot_s", "usd_per_million_output_tokens", "output_tokens_per_s_per_gpu")


def has_token_prices(points: Sequence[FormatPoint]) -> bool:
    return any(np.isfinite(point.usd_per_million_output_tokens) for point in points)


def cost_against_loss(
    of_splits: Mapping[str, Sequence[FormatPoint]], *, dark: bool = False
) -> go.Figure:
    """Cost of a token against the accuracy that is lost: one split, one point a pair of formats.

    Lines join the weight formats of one cache format, widest first; bars are the 80 % band of the
    loss. Without a price, output per device stands for cost.
    """
    draw, cost = Drawing(dark=dark), all(map(has_token_prices, of_splits.values()))
    field = "usd_per_million_output_tokens" if cost else "output_tokens_per_s_per_gpu"
    for n, (name, points) in enumerate(of_splits.items()):
        drawn = [
            p for p in points if p.runs and p.retained.known and np.isfinite(getattr(p, field))
        ]
        checkpoints = {point.checkpoint for point in points if point.planned}
        caches = list(dict.fromkeys(point.kv_dtype for point in drawn))
        for k, cache in enumerate(caches):
            title = f"{cache} cache" if len(of_splits) == 1 else f"{name}, {cache} cache"
            colour = draw.colours.groups[(n * len(caches) + k) % len(draw.colours.groups)]
            same = [point for point in drawn if point.kv_dtype == cache]
            _add_formats(draw, title, same, field, colour, k, checkpoints)
    up = column_metric(field).axis
    lost = axis("Accuracy lost (%)", zeroline=True, zerolinecolor=draw.colours.muted)
    return draw.between(lost, axis(up), 460, hovermode="closest", showlegend=True)


def _add_formats(
    draw: Drawing,
    title: str,
    points: Sequence[FormatPoint],
    field: str,
    colour: str,
    k: int,
    checkpoints: set[str | None],
) -> None:
    """The weight formats of the k-th cache format. ``checkpoints``: of the split as planned."""
    lost = np.array([PERCENT * point.lost for point in points])
    low = np.minimum([PERCENT * (1 - point.retained.high) for point in points], lost)
    high = np.maximum([PERCENT * (1 - point.retained.low) for point in points], lost)
    draw.curve(
        title,
        lost,
        [getattr(point, field) for point in points],
        {"color": colour, "dash": DASHES[k % len(DASHES)], "width": 1.5},
        HOVER,
        [[point.title, _format_text(point, checkpoints)] for point in points],
        mode="lines+markers+text",
        text=[point.weight_dtype for point in points],
        textposition=PLACES[k % len(PLACES)],
        marker={
            "color": colour,
            "size": [15 if point.planned else 11 for point in points],
            "symbol": ["diamond" if point.front else "circle" for point in points],
        },
        error_x=error_bars(lost, low, high, translucent(colour), thickness=1.25, width=0),
        cliponaxis=False,
    )


def _format_text(point: FormatPoint, checkpoints: set[str | None]) -> str:
    certain = point.retained.low == point.retained.high
    likely = "by definition" if certain else f"{accuracy_band_text(point)} likely"
    lines = [f"Keeps {column_metric('accuracy').phrase(point.retained.value)} ({likely})"]
    amounts = [(column_metric(name), getattr(point, name)) for name in FIGURES]
    lines += [metric.phrase(amount) for metric, amount in amounts if np.isfinite(amount)]
    planned = point.checkpoint in checkpoints
    lines.append(f"Checkpoint: {OWN if planned else point.checkpoint or MADE}")
    return "<br>".join(lines)


def accuracy_band_text(point: FormatPoint) -> str:
    """The ends of the 80 % band; empty where it is certain, or unknown."""
    if not point.retained.known or point.retained.low == point.retained.high:
        return ""
    return plain_range_text((point.retained.low, point.retained.high), accuracy_text)


def three_axes(plan: Plan, *, dark: bool = False) -> go.Figure:
    """Every split by time per token, cost and accuracy, which is the colour.

    The symbol says the weight format; rings are the front of all three. Without a price, output per
    device stands for cost.
    """
    draw, up = Drawing(dark=dark), "usd" if is_known(plan, "usd") else "per_gpu"
    colours = draw.colours
    rows, front = _accuracy_rows(plan, up)
    formats = np.array([plan.setting(int(row)).weight_dtype for row in rows], dtype=object)
    for n, name in enumerate(dict.fromkeys(formats.tolist())):
        symbol = SYMBOLS[n % len(SYMBOLS)]
        for on in (False, True):
            look: Style = {"size": 14 if on else 9, "opacity": 1.0 if on else 0.6, "symbol": symbol}
            look["line"] = {"width": 2 if on else 0, "color": colours.ink}
            _add_rows(draw, plan, rows[(formats == name) & (front[rows] == on)], up, look)
        _add_entry(draw, f"{name} weights", {"color": colours.muted, "symbol": symbol})
    ring, accuracy = {"width": 2, "color": colours.ink}, plan.measures["accuracy"]
    _add_entry(draw, "Best of all three", {"color": colours.paper, "line": ring})
    scale = {
        "colorscale": [[0, colours.series[1]], [1, colours.series[0]]],
        "cmin": float(np.min(plan.values("accuracy", rows), initial=PERCENT)),
        "cmax": PERCENT,
        "colorbar": {"title": {"text": accuracy.axis, "side": "right"}, "thickness": 12},
    }
    x, y = (axis(plan.measures[name].axis, rangemode="tozero") for name in ("tpot", up))
    return draw.between(x, y, 480, BELOW, hovermode="closest", coloraxis=scale)


def _accuracy_rows(plan: Plan, up: str) -> tuple[Int, Bool]:
    """Rows that are drawn, those on the front last, and which of all rows are on it."""
    rows = plan.order[plan.holds[plan.order]]
    finite = [np.isfinite(plan.raw(name)[rows]) for name in ("tpot", up, "accuracy")]
    rows, on = rows[np.all(finite, axis=0)], front_with_accuracy(plan)
    front = np.zeros(len(plan), dtype=np.bool_) if on is None else on
    return np.concatenate([thinned(plan, rows[~front[rows]], "tpot", up), rows[front[rows]]]), front


def _add_rows(draw: Drawing, plan: Plan, rows: Int, up: str, look: Look) -> None:
    titles = {name: plan.measures[name].title for name in ("accuracy", "tpot", up)}
    about = [
        [
            split_label(plan, row),
            "<br>".join(
                f"{title} {measure_text(plan, name, row)}" for name, title in titles.items()
            ),
        ]
        for row in rows.tolist()
    ]
    marker = {"color": plan.values("accuracy", rows), "coloraxis": "coloraxis", **look}
    x, y = (plan.values(name, rows) for name in ("tpot", up))
    draw.points(None, x, y, marker, HOVER, about, showlegend=False)


def _add_entry(draw: Drawing, name: str, marker: Look) -> None:
    draw.legend_entry(name, mode="markers", marker={"size": 11, **marker})
