"""Accuracy beside costs: of one split's formats, of all splits, and of every technique.

And who supports each technique, as a matrix.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

from recipe_core.accuracy.technique import technique, techniques
from recipe_core.base.arrays import Bool, Int
from recipe_core.base.units import accuracy_text, plain_range_text
from recipe_core.plans.plan import Plan
from recipe_core.plans.plan_json import measure_text, split_label
from recipe_core.plans.rank import front_with_accuracy
from recipe_core.plans.splits import is_known
from recipe_core.request.metrics import column_metric
from recipe_core.views.charts.front import thinned
from recipe_core.views.charts.style import (
    BELOW,
    DASHES,
    SYMBOLS,
    Drawing,
    Look,
    Palette,
    Style,
    axis,
    error_bars,
    mix,
    translucent,
)
from recipe_core.views.explanations.formats import FormatPoint
from recipe_core.views.formats import (
    LETTERS,
    MEANINGS,
    SPLITS,
    figure_metric,
    figure_ratio,
    kept_accuracy,
    ratio_text,
    support_title,
)

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
            p for p in points if p.runs and p.retained.is_known and np.isfinite(getattr(p, field))
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
    return draw.set_axes(lost, axis(up), 460, hovermode="closest", showlegend=True)


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
# Points that carry their name; the rest say it when pointed at.
LABELS = 4
# Distance of names: a share of the width, or points of accuracy.
APART = (0.6, 3.5)
# Lower end of the accuracy axis.
LEAST_SHOWN = 0.8
# Characters of a line that is shown when pointing.
WRAPPED = 62


def accuracy_against(
    rows: Sequence[Row],
    name: str,
    split: str = "same_split",
    *,
    limit: float | None = None,
    dark: bool = False,
) -> go.Figure:
    """Accuracy that is kept against a figure's ratio to the base, one point a technique.

    Lines are the 80 % bands of accuracy; the star is the base. ``limit``: least accuracy allowed.
    """
    draw = Drawing(dark=dark)
    drawn = [row for row in rows if row["accuracy"]["retained"] and figure_ratio(row, name, split)]
    for n, (title, kinds) in enumerate(KINDS.items()):
        group = [row for row in drawn if row["kind"] in kinds]
        if group:
            _add_techniques(draw, n, title, group, name, split)
    star = {"symbol": "star", "size": 14, "color": draw.colours.ink}
    draw.points("base", [1.0], [100.0], star, "the model in its own format")
    if limit is not None:
        text = f"least accuracy {limit * 100:g} %"
        draw.limit(text, y=limit * 100, width=1, position="bottom right")
    _add_names(draw, drawn, name, split)
    across = {"title": f"{figure_metric(name).title} over the base's ({SPLITS[split].lower()})"}
    up = {"title": figure_metric("accuracy").axis, "range": [LEAST_SHOWN * 100, 106]}
    return draw.set_axes(across, up, 460)


def _add_techniques(
    draw: Drawing, n: int, title: str, rows: Sequence[Row], name: str, split: str
) -> None:
    colour, paper = draw.colours.series[n], draw.colours.paper
    low, high, y = (
        [row["accuracy"]["retained"][end] * 100 for row in rows] for end in ("low", "high", "value")
    )
    x = [figure_ratio(row, name, split) for row in rows]
    about = [
        [row["technique"], row["title"], kept_accuracy(row), ratio_text(change), row["verdict"]]
        for row, change in zip(rows, x, strict=True)
    ]
    look = {"color": colour, "symbol": SYMBOLS[n], "size": 10, "line": {"width": 1, "color": paper}}
    hover = "%{customdata[1]} (%{customdata[4]})<br>accuracy kept %{customdata[2]}"
    hover += f"<br>{figure_metric(name).label}: %{{customdata[3]}}"
    bars = error_bars(y, low, high, mix(colour, paper, 0.45), thickness=1.5, width=0)
    draw.points(title, x, y, look, hover, about, error_y=bars)


def _add_names(draw: Drawing, rows: Sequence[Row], name: str, split: str) -> None:
    """Names beside the points that are the best at something, and those that no point is near."""
    labels: list[tuple[float, float]] = [(1.0, 100.0)]  # the base
    spans = [figure_ratio(row, name, split) or 1.0 for row in rows]
    width = max(max(spans, default=1.0) - min(spans, default=0.0), 1e-6)
    for row in sorted(rows, key=lambda row: (not row["best_at"], row["rank"] or 999)):
        x, y = figure_ratio(row, name, split) or 1.0, row["accuracy"]["retained"]["value"] * 100
        if y < LEAST_SHOWN * 100 or len(labels) >= LABELS:
            continue
        if any(abs(x - a) / width < APART[0] and abs(y - b) < APART[1] for a, b in labels):
            continue
        labels.append((x, y))
        place = {"x": x, "y": y, "xanchor": "left", "xshift": 9}
        draw.note(technique(row["technique"]).label, draw.colours.ink, 11, **place)


def hidden_count(rows: Sequence[Row], name: str, split: str) -> int:
    return sum(
        figure_ratio(row, name, split) is not None
        and row["accuracy"]["retained"] is not None
        and row["accuracy"]["retained"]["value"] < LEAST_SHOWN
        for row in rows
    )


def support_matrix(cells: Mapping[str, Row], *, dark: bool = False) -> go.Figure:
    """Verdicts of techniques (rows) by engine or hardware (columns): a letter and a shade each.

    Letters say what shades say, so that no colour has to be told from another.
    """
    draw, verdicts, titles = Drawing(dark=dark), list(LETTERS), techniques()
    columns = list(next(iter(cells.values()), {}))
    lines = [[row[column] for column in columns] for row in cells.values()]
    shades = _shades(draw.colours)
    steps = [edge / len(shades) for edge in range(len(shades) + 1)]
    draw.matrix(
        [[verdicts.index(cell["verdict"]) for cell in line] for line in lines],
        [support_title(column) for column in columns],
        [titles[name].label for name in cells],
        "%{customdata}",
        [
            [
                _verdict_cell_text(titles[name].title, support_title(column), cell)
                for column, cell in row.items()
            ]
            for name, row in cells.items()
        ],
        text=[[LETTERS[cell["verdict"]] for cell in line] for line in lines],
        texttemplate="%{text}",
        textfont={"size": 12},
        colorscale=[(steps[n + end], shade) for n, shade in enumerate(shades) for end in (0, 1)],
        zmin=-0.5,
        zmax=len(verdicts) - 0.5,
        showscale=False,
        xgap=2,
        ygap=2,
    )
    frame = {"margin": {"l": 10, "r": 16, "t": 100, "b": 10}, "showlegend": False}
    names = {"title": None, "showgrid": False, "type": "category", "dtick": 1}
    across, up = {"side": "top", "tickangle": -50, **names}, {"autorange": "reversed", **names}
    return draw.set_axes(across, up, 120 + 23 * len(cells), frame)


def _shades(colours: Palette) -> list[str]:
    """One shade a verdict, from the strongest for native to the page's own for unknown."""
    blue, orange, grey = colours.series[0], colours.series[1], colours.muted
    mixtures = ((blue, 0.35), (orange, 0.55), (orange, 0.78), (grey, 0.55), (grey, 0.9))
    return [blue, *(mix(colour, colours.paper, share) for colour, share in mixtures)]


def _verdict_cell_text(title: str, column: str, cell: Row) -> str:
    verdict = cell["verdict"]
    lines = [f"<b>{title} · {column}</b>", f"{verdict}: {MEANINGS[verdict]}"]
    if cell["min_version"]:
        lines.append(f"from {cell['min_version']}")
    if cell["words"]:
        lines += _wrap(cell["words"])[:5]
    if cell["source"]:
        lines += _wrap(f"Source: {cell['source']}, {cell['date'] or ''}")[:2]
    return "<br>".join(lines)


def _wrap(text: str) -> list[str]:
    return textwrap.wrap(text.replace("<", "‹").replace(">", "›"), WRAPPED)
