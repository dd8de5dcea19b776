"""Every split as a line along its degrees and measures.

Plain lines: plotly's own parallel coordinates use WebGL, which takes two seconds of processor time
without a GPU, and do not say which split a line is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import plotly.graph_objects as go

from recipe_core.base.arrays import Float, Int
from recipe_core.base.units import significant
from recipe_core.plans.plan import Plan
from recipe_core.views.charts.style import mixed, palette

LINES = 400
"""Splits that are drawn, the best ranked."""
SHADES = 5
DEGREES = ("tp", "pp", "dp", "ep", "cp")


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis: where each split crosses it (0 to 1), the hover text there, ticks by place."""

    title: str
    places: Float
    texts: list[str]
    ticks: dict[float, str]


def parallel(plan: Plan, measures: Sequence[str], *, dark: bool = False) -> go.Figure:
    """Splits that fit along degrees and measures; a better first measure makes a stronger line."""
    colours = palette(dark)
    rows, axes = _laid_out(plan, measures)
    first = plan.measures[measures[0]]
    best_first = np.argsort(
        plan.raw(measures[0])[rows] * (-1 if first.more_is_better else 1), kind="stable"
    )
    figure = go.Figure()
    for n, some in reversed([*enumerate(np.array_split(best_first, SHADES))]):  # the best on top
        share = 1 - n / (SHADES - 1)
        figure.add_scatter(
            **_lines(plan, rows, axes, some),
            mode="lines",
            line={"color": mixed(colours.muted, colours.series[0], share), "width": 1 + share},
            hovertemplate="%{text}<extra></extra>",
        )
    marks = [(n, place, text) for n, axis in enumerate(axes) for place, text in axis.ticks.items()]
    x, y, text = zip(*marks, strict=True) if marks else ((), (), ())
    figure.add_scatter(
        x=x,
        y=y,
        mode="text",
        text=[f" {tick}" for tick in text],
        textposition="middle right",
        textfont={"color": colours.ink},
        unselected={"textfont": {"color": colours.ink}},
        hoverinfo="skip",
    )
    figure.update_layout(
        height=420,
        hovermode="closest",
        showlegend=False,
        margin={"l": 20, "r": 20, "t": 30, "b": 40},
    )
    shown = {
        "tickvals": list(range(len(axes))),
        "ticktext": [axis.title for axis in axes],
        "tickfont": {"color": colours.ink},
    }
    figure.update_xaxes(
        title=None,
        showgrid=True,
        gridcolor=colours.muted,
        zeroline=False,
        range=[-0.3, len(axes) - 0.4],
        **shown,
    )
    figure.update_yaxes(title=None, visible=False, range=[-0.05, 1.05])
    return figure


def passing(
    plan: Plan, measures: Sequence[str], boxes: Sequence[Mapping[str, Sequence[float]]]
) -> list[int]:
    """Rows of the chart whose lines pass through boxes that were drawn on it, best ranked first.

    A box is the two ``x`` and two ``y`` of its corners. A line passes one of the boxes on each axis
    that has any.
    """
    rows, axes = _laid_out(plan, measures)
    inside = np.ones(len(rows), dtype=bool)
    for n, axis in enumerate(axes):
        spans = [sorted(box["y"]) for box in boxes if min(box["x"]) <= n <= max(box["x"])]
        if spans:
            inside &= np.any(
                [(low <= axis.places) & (axis.places <= high) for low, high in spans], axis=0
            )
    return [int(row) for row in rows[inside]]


def _laid_out(plan: Plan, measures: Sequence[str]) -> tuple[Int, list[Axis]]:
    """The rows that are drawn, and their axes: degrees in which they differ, then measures."""
    rows = plan.order[:LINES]
    rows = rows[np.all([np.isfinite(plan.raw(name)[rows]) for name in measures], axis=0)]
    degrees = [_of_degree(name, plan.degree(name)[rows]) for name in DEGREES]
    return rows, [
        *(axis for axis in degrees if len(axis.ticks) > 1),
        *(_of_measure(plan, name, rows) for name in measures),
    ]


def _of_degree(name: str, values: Int) -> Axis:
    """A degree's levels, evenly spaced."""
    levels = np.unique(values)
    step = 1.0 / max(len(levels) - 1, 1)
    ticks = {n * step: str(level) for n, level in enumerate(levels)}
    return Axis(
        name,
        np.searchsorted(levels, values).astype(np.float64) * step,
        [f"{name} {value}" for value in values],
        ticks,
    )


def _of_measure(plan: Plan, name: str, rows: Int) -> Axis:
    """A measure from its least value to its largest."""
    measure, values = plan.measures[name], plan.values(name, rows)
    low, high = (float(values.min()), float(values.max())) if len(rows) else (0.0, 0.0)
    if high == low:
        places, ticks = np.full(len(rows), 0.5), {0.5: significant(low)}
    else:
        places, ticks = (
            (values - low) / (high - low),
            {share: significant(low + share * (high - low)) for share in (0.0, 0.5, 1.0)},
        )
    return Axis(
        measure.head,
        places,
        [f"{measure.title} {plan.text(name, int(row))}" for row in rows],
        ticks,
    )


def _lines(plan: Plan, rows: Int, axes: Sequence[Axis], some: Int) -> dict[str, Any]:
    """The lines of some of the rows, end to end with a gap after each."""
    gap = np.full((len(some), 1), np.nan)
    places = np.hstack([*(axis.places[some][:, None] for axis in axes), gap])
    names = {int(n): plan.label(int(rows[n])) for n in some}
    texts = []
    for n in some:
        texts += [f"<b>{names[int(n)]}</b><br>{axis.texts[n]}" for axis in axes]
        texts.append("")
    return {
        "x": np.tile(np.arange(len(axes) + 1), len(some)),
        "y": places.ravel(),
        "text": texts,
    }
