"""Splits by their degrees: the best of each tp × pp, and every split as a line along its axes.

Plain lines: plotly's own parallel coordinates use WebGL, which takes two seconds of processor time
without a GPU, and do not say which split a line is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import plotly.graph_objects as go

from recipe_core.base.arrays import Bool, Float, Int
from recipe_core.base.units import significant
from recipe_core.plans.plan import Plan
from recipe_core.plans.plan_json import measure_text, split_label
from recipe_core.plans.splits import broken_rules
from recipe_core.views.charts.style import Drawing, Style, mix
from recipe_core.views.plan_words import rule_titles

# Splits that are drawn, the best ranked.
LINES = 400
SHADES = 5
DEGREES = ("tp", "pp", "dp", "ep", "cp")


def heatmap(plan: Plan, measure: str, *, dark: bool = False) -> go.Figure:
    """The best of a measure at each tp × pp over all other degrees; a cross where none fits."""
    draw, quantity = Drawing(dark=dark), plan.measures[measure]
    shown = plan.feasible | _has_power_degrees(plan)
    tps, pps = (np.unique(plan.columns[name][shown]).tolist() for name in ("tp", "pp"))
    best = _best_cells(plan, measure)
    cells = [[best.get((tp, pp)) for tp in tps] for pp in pps]
    z = [
        [None if row is None else float(plan.values(measure, [row])[0]) for row in line]
        for line in cells
    ]
    x, y = [f"tp {tp}" for tp in tps], [f"pp {pp}" for pp in pps]
    draw.matrix(
        z,
        x,
        y,
        "%{x}, %{y}<br>%{customdata}",
        [[_degree_cell_text(plan, measure, best, tp, pp) for tp in tps] for pp in pps],
        text=[["" if value is None else significant(value) for value in line] for line in z],
        texttemplate="%{text}",
        hoverongaps=True,
        colorscale="Cividis",
        reversescale=not quantity.more_is_better,
        xgap=2,
        ygap=2,
        colorbar={"title": {"text": quantity.unit.symbol}, "thickness": 12},
    )
    # the cell below a cross has the hover text
    empty = [
        (tp, pp)
        for pp, line in zip(y, z, strict=True)
        for tp, v in zip(x, line, strict=True)
        if v is None
    ]
    crosses = ["✕"] * len(empty)
    draw.texts([tp for tp, _ in empty], [pp for _, pp in empty], crosses, draw.colours.muted)
    names = {"title": None, "type": "category", "showgrid": False}
    frame = {"margin": {"l": 10, "r": 10, "t": 10, "b": 10}}
    return draw.set_axes(names, {**names, "autorange": "reversed"}, 130 + 40 * len(pps), frame)


def _has_power_degrees(plan: Plan) -> Bool:
    """Rows whose degrees are powers of two: of the refused ones only these are worth a cell."""
    tp, pp = plan.columns["tp"], plan.columns["pp"]
    return np.asarray(((tp & (tp - 1)) == 0) & ((pp & (pp - 1)) == 0))


def _best_cells(plan: Plan, measure: str) -> dict[tuple[int, int], int]:
    values = plan.raw(measure) * (-1 if plan.measures[measure].more_is_better else 1)
    rows = plan.order[np.isfinite(values[plan.order])]
    cells: dict[tuple[int, int], int] = {}
    for row in rows[np.argsort(values[rows], kind="stable")].tolist():
        cells.setdefault((int(plan.columns["tp"][row]), int(plan.columns["pp"][row])), row)
    return cells


def _degree_cell_text(
    plan: Plan, measure: str, best: Mapping[tuple[int, int], int], tp: int, pp: int
) -> str:
    row = best.get((tp, pp))
    if row is not None:
        title, text = plan.measures[measure].title, measure_text(plan, measure, row)
        return f"{split_label(plan, row)}<br>{title} {text}"
    refused = np.flatnonzero((plan.columns["tp"] == tp) & (plan.columns["pp"] == pp))
    if len(refused):
        return rule_titles(broken_rules(plan, int(refused[0])))
    return "these devices allow no such split"


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis: where each split crosses it (0 to 1), the hover text there, ticks by place."""

    title: str
    places: Float
    texts: list[str]
    ticks: dict[float, str]


def parallel(plan: Plan, measures: Sequence[str], *, dark: bool = False) -> go.Figure:
    """Splits that fit along degrees and measures; a better first measure makes a stronger line."""
    draw = Drawing(dark=dark)
    muted, ink = draw.colours.muted, draw.colours.ink
    rows, axes = _axes_of(plan, measures)
    sign = -1 if plan.measures[measures[0]].more_is_better else 1
    ranked = np.argsort(plan.raw(measures[0])[rows] * sign, kind="stable")
    for n, lines in reversed([*enumerate(np.array_split(ranked, SHADES))]):  # the best on top
        share = 1 - n / (SHADES - 1)
        x, y, texts = _join_lines(plan, rows, axes, lines)
        look = {"color": mix(muted, draw.colours.series[0], share), "width": 1 + share}
        draw.curve(None, x, y, look, "%{text}", text=texts)
    marks = [(n, place, text) for n, axis in enumerate(axes) for place, text in axis.ticks.items()]
    draw.texts(
        [n for n, _, _ in marks],
        [place for _, place, _ in marks],
        [f" {text}" for _, _, text in marks],
        textposition="middle right",
        unselected={"textfont": {"color": ink}},
    )
    across: Style = {"title": None, "showgrid": True, "gridcolor": muted, "zeroline": False}
    across |= {"range": [-0.3, len(axes) - 0.4], "tickvals": list(range(len(axes)))}
    across |= {"ticktext": [axis.title for axis in axes], "tickfont": {"color": ink}}
    up = {"title": None, "visible": False, "range": [-0.05, 1.05]}
    frame = {"margin": {"l": 20, "r": 20, "t": 30, "b": 40}, "showlegend": False}
    return draw.set_axes(across, up, 420, frame, hovermode="closest")


def passing(
    plan: Plan, measures: Sequence[str], boxes: Sequence[Mapping[str, Sequence[float]]]
) -> list[int]:
    """Rows of the chart whose lines pass through boxes that were drawn on it, best ranked first.

    A box is the two ``x`` and two ``y`` of its corners. A line passes one of the boxes on each axis
    that has any.
    """
    rows, axes = _axes_of(plan, measures)
    inside = np.ones(len(rows), dtype=bool)
    for n, axis in enumerate(axes):
        spans = [sorted(box["y"]) for box in boxes if min(box["x"]) <= n <= max(box["x"])]
        hits = [(low <= axis.places) & (axis.places <= high) for low, high in spans]
        if hits:
            inside &= np.any(hits, axis=0)
    return [int(row) for row in rows[inside]]


def _axes_of(plan: Plan, measures: Sequence[str]) -> tuple[Int, list[Axis]]:
    """The rows that are drawn, and their axes: degrees in which they differ, then measures."""
    rows = plan.order[:LINES]
    rows = rows[np.all([np.isfinite(plan.raw(name)[rows]) for name in measures], axis=0)]
    degrees = [_degree_axis(name, plan.columns[name][rows]) for name in DEGREES]
    differing = [axis for axis in degrees if len(axis.ticks) > 1]
    return rows, [*differing, *(_measure_axis(plan, name, rows) for name in measures)]


def _degree_axis(name: str, values: Int) -> Axis:
    levels = np.unique(values)
    step = 1.0 / max(len(levels) - 1, 1)
    places = np.searchsorted(levels, values).astype(np.float64) * step
    ticks = {n * step: str(level) for n, level in enumerate(levels)}
    return Axis(name, places, [f"{name} {value}" for value in values], ticks)


def _measure_axis(plan: Plan, name: str, rows: Int) -> Axis:
    measure, values = plan.measures[name], plan.values(name, rows)
    low, high = (float(values.min()), float(values.max())) if len(rows) else (0.0, 0.0)
    places, ticks = np.full(len(rows), 0.5), {0.5: significant(low)}
    if high != low:
        places = (values - low) / (high - low)
        ticks = {share: significant(low + share * (high - low)) for share in (0.0, 0.5, 1.0)}
    texts = [f"{measure.title} {measure_text(plan, name, int(row))}" for row in rows]
    return Axis(measure.head, places, texts, ticks)


def _join_lines(
    plan: Plan, rows: Int, axes: Sequence[Axis], lines: Int
) -> tuple[Float, Float, list[str]]:
    """Lines end to end, with a gap after each: places along, places up, hover texts."""
    gap = np.full((len(lines), 1), np.nan)
    places = np.hstack([*(axis.places[lines][:, None] for axis in axes), gap])
    texts = []
    for n in lines.tolist():
        name = split_label(plan, int(rows[n]))
        texts += [*(f"<b>{name}</b><br>{axis.texts[n]}" for axis in axes), ""]
    return np.tile(np.arange(len(axes) + 1.0), len(lines)), places.ravel(), texts
