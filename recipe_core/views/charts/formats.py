"""Accuracy beside costs: of one split's formats, of all splits, and of every technique."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

from recipe_core.accuracy.technique import technique
from recipe_core.base.arrays import Bool, Int
from recipe_core.base.units import accuracy_text, plain_range_text
from recipe_core.plans.plan import Plan
from recipe_core.plans.plan_json import measure_text, split_label
from recipe_core.plans.rank import front_with_accuracy
from recipe_core.plans.splits import is_known
from recipe_core.request.metrics import column_metric
from recipe_core.views.charts.front import thinned
from recipe_core.views.charts.labels import (
    Plane,
    Point,
    add_labels,
    edge_names,
    is_outside,
    range_without_outliers,
)
from recipe_core.views.charts.style import (
    BELOW,
    DASHES,
    SYMBOLS,
    Drawing,
    Look,
    Style,
    axis,
    error_bars,
    mix,
    translucent,
)
from recipe_core.views.explanations.formats import FormatPoint
from recipe_core.views.formats import (
    SPLITS,
    checkpoint_text,
    figure_metric,
    figure_ratio,
    kept_accuracy,
    ratio_text,
    speed_text,
)

PERCENT = 100.0
MADE = "to be made"
# Not its name, which is the user's text.
OWN = "this one"
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
            p for p in points if p.runs and p.retained.is_known and np.isfinite(getattr(p, field))
        ]
        checkpoints = {point.checkpoint for point in points if point.planned}
        caches = list(dict.fromkeys(point.kv_dtype for point in drawn))
        for k, cache in enumerate(caches):
            title = f"{cache} cache" if len(of_splits) == 1 else f"{name}, {cache} cache"
            colour = draw.colours.groups[(n * len(caches) + k) % len(draw.colours.groups)]
            same = [point for point in drawn if point.kv_dtype == cache]
            _add_formats(draw, title, same, field, colour, k, checkpoints)
    everywhere = [point for points in of_splits.values() for point in points]
    plane, names = _loss_names(draw, everywhere, field)
    add_labels(draw, plane, names, [places[0] for _, places, _ in names])
    look: Style = {"zeroline": True, "zerolinecolor": draw.colours.muted}
    lost = axis("Accuracy lost (%)", range=list(plane.x)) | look
    up = axis(column_metric(field).axis, range=list(plane.y))
    return draw.set_axes(lost, up, HEIGHT_PX, hovermode="closest", showlegend=True)


def _loss_names(
    draw: Drawing, points: Sequence[FormatPoint], field: str
) -> tuple[Plane, list[tuple[str, list[Point], str]]]:
    """The plot, and the formats of its points, one name a point: the outliers' at the edge."""
    places = {
        (PERCENT * point.lost, float(getattr(point, field))): point.weight_dtype
        for point in points
        if point.runs and point.retained.is_known and np.isfinite(getattr(point, field))
    }
    plane = Plane(
        range_without_outliers([x for x, _ in places], 0.0),
        range_without_outliers([y for _, y in places]),
        PLOT_HEIGHT_PX,
    )
    labelled = [(text, at) for at, text in places.items()]
    inside = [(text, [at], draw.colours.ink) for text, at in labelled if not is_outside(at, plane)]
    edge = [(text, [at], draw.colours.muted) for text, at in edge_names(plane, labelled)]
    return plane, [*edge, *inside]


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
        mode="lines+markers",
        marker={
            "color": colour,
            "size": [15 if point.planned else 11 for point in points],
            "symbol": ["diamond" if point.front else "circle" for point in points],
        },
        error_x=error_bars(lost, low, high, translucent(colour), thickness=1.25, width=0),
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
    if not point.retained.is_known or point.retained.low == point.retained.high:
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
    return draw.set_axes(x, y, 480, BELOW, hovermode="closest", coloraxis=scale)


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


Row = Mapping[str, Any]
# Groups of the legend by kind of technique.
KINDS: dict[str, tuple[str, ...]] = {
    "Weights": ("weights",),
    "Weights and activations": ("weights and activations",),
    "KV cache": ("kv cache",),
    "Fewer weights": ("sparsity", "pruning", "low rank", "distillation"),
}
# Height of the charts, and of their plots without titles, in pixels.
HEIGHT_PX, PLOT_HEIGHT_PX = 460, 350.0
# Upper end of the accuracy axis, in percent.
MOST_SHOWN = 102.5


def accuracy_against(
    rows: Sequence[Row],
    name: str,
    split: str = "same_split",
    *,
    limit: float | None = None,
    dark: bool = False,
) -> go.Figure:
    """Accuracy that is kept against a figure's ratio to the base, one point a technique.

    Bars are the 80 % bands of accuracy; hollow marks have a speed that was not measured on the
    device; the star is the base. Outliers are labelled at the edge. ``limit``: of
    accuracy.
    """
    draw = Drawing(dark=dark)
    drawn = [row for row in rows if row["accuracy"]["retained"] and figure_ratio(row, name, split)]
    points = {row["technique"]: _ratio_point(row, name, split) for row in drawn}
    plane = Plane(
        range_without_outliers([x for x, _ in points.values()], 1.0),
        _accuracy_range([y for _, y in points.values()], limit),
        PLOT_HEIGHT_PX,
    )
    inside = [row for row in drawn if not is_outside(points[row["technique"]], plane)]
    for n, (title, kinds) in enumerate(KINDS.items()):
        group = [row for row in inside if row["kind"] in kinds]
        if group:
            _add_techniques(draw, n, title, group, name, split)
    base, star = (1.0, 100.0), {"symbol": "star", "size": 14, "color": draw.colours.ink}
    draw.points("base", [base[0]], [base[1]], star, "the model in its own format")
    if limit is not None:
        text = f"least accuracy {limit * 100:g} %"
        draw.limit(text, y=limit * 100, width=1, position="bottom right")
    outliers = [(technique(key).label, point) for key, point in points.items()]
    ink, muted = draw.colours.ink, draw.colours.muted
    names = [(text, [point], muted) for text, point in edge_names(plane, outliers)]
    first = sorted(inside, key=lambda row: (not row["recommended"], row["rank"] or len(rows)))
    names += [(_point_name(row), [points[row["technique"]]], ink) for row in first]
    add_labels(draw, plane, names, [base, *points.values()])
    across = axis(
        f"{figure_metric(name).title} over the base's ({SPLITS[split].lower()})",
        range=list(plane.x),
    )
    up = axis(figure_metric("accuracy").axis, range=list(plane.y))
    return draw.set_axes(across, up, HEIGHT_PX, hovermode="closest")


def _ratio_point(row: Row, name: str, split: str) -> tuple[float, float]:
    return figure_ratio(row, name, split) or 1.0, row["accuracy"]["retained"]["value"] * 100


def _accuracy_range(values: Sequence[float], limit: float | None) -> tuple[float, float]:
    """The axis of accuracy in percent: no lower than what is drawn needs."""
    limits = [] if limit is None else [limit * 100]
    return range_without_outliers(values, 99.0, *limits)[0], MOST_SHOWN


def _point_name(row: Row) -> str:
    return f"{technique(row['technique']).label}{' ★' if row['recommended'] else ''}"


def _add_techniques(
    draw: Drawing, n: int, title: str, rows: Sequence[Row], name: str, split: str
) -> None:
    colour, paper = draw.colours.series[n], draw.colours.paper
    low, high, y = (
        [row["accuracy"]["retained"][end] * 100 for row in rows] for end in ("low", "high", "value")
    )
    x = [figure_ratio(row, name, split) for row in rows]
    about = [
        [
            row["technique"],
            row["title"],
            kept_accuracy(row),
            ratio_text(change),
            f"{checkpoint_text(row)}; speed {speed_text(row)}",
        ]
        for row, change in zip(rows, x, strict=True)
    ]
    symbols = [SYMBOLS[n] + ("" if row["speed"] == "fitted" else "-open") for row in rows]
    look = {"color": colour, "symbol": symbols, "size": 11, "line": {"width": 2, "color": colour}}
    hover = "%{customdata[1]} (%{customdata[4]})<br>accuracy kept %{customdata[2]}"
    hover += f"<br>{figure_metric(name).label}: %{{customdata[3]}}"
    bars = error_bars(y, low, high, mix(colour, paper, 0.6), thickness=1.5, width=0)
    draw.points(title, x, y, look, hover, about, error_y=bars)
