"""Bars by part: a device's memory, and the time of a step or a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

from recipe_core.base.units import GIB, alike, count_text, gib, seconds_text, share_text
from recipe_core.estimates.serving.bottlenecks import BOTTLENECKS
from recipe_core.models.tensors import PART_TITLES
from recipe_core.plans.plan import Plan
from recipe_core.plans.plan_json import device_word, held_text, split_labels
from recipe_core.plans.splits import row_keys
from recipe_core.views.charts.style import (
    BELOW,
    PLAIN,
    Drawing,
    Style,
    axis,
    categories,
    part_marker,
)
from recipe_core.views.explanations.training_time import Task
from recipe_core.views.plan_words import capacity_bytes, row_usable_bytes

Parts = Mapping[str, float]
# Tasks up to which each bar carries the number of its micro-batch.
NUMBERED = 160
# Memory that differs by less is drawn as one line.
ALIKE_GIB = 0.05
# Names of parts as far as they are held.
HELD_TITLES = {"kv_needed_bytes": "KV cache"}


def _largest_first(parts: Parts) -> dict[str, float]:
    return dict(sorted(parts.items(), key=lambda item: -item[1]))


# Time


def _time_unit(seconds: float) -> tuple[float, str]:
    return (1.0, "s") if seconds >= 10 else (1e3, "ms")


def waterfall(parts: Parts, names: Mapping[str, str], *, dark: bool = False) -> go.Figure:
    """Parts of a time (seconds), largest first, each from where the last ended, and the total."""
    draw, ordered = Drawing(dark=dark), _largest_first(parts)
    values, total = list(ordered.values()), sum(parts.values())
    factor, unit = _time_unit(total)
    draw.figure.add_waterfall(
        orientation="h",
        y=[*(names.get(name, name) for name in ordered), "Total"],
        x=[*(seconds * factor for seconds in values), 0],
        measure=["relative"] * len(values) + ["total"],
        customdata=[*(share_text(seconds / total, 1) for seconds in values if total), "100 %"],
        hovertemplate="%{y}<br>%{text}, %{customdata}<extra></extra>",
        increasing={"marker": {"color": draw.colours.series[0]}},
        totals={"marker": {"color": draw.colours.series[4]}},
        connector={"line": {"color": draw.colours.muted, "width": 1}},
        **draw.labels([*alike(values, total), seconds_text(total)]),
    )
    across = axis(unit, range=[0, total * factor * 1.18 or 1])
    return draw.set_axes(across, categories(), 70 + 28 * (len(values) + 1), PLAIN)


def loss_bars(shares: Parts, names: Mapping[str, str], *, dark: bool = False) -> go.Figure:
    """Shares of a run's time (0 to 1), the largest first, as bars in percent."""
    draw, ordered = Drawing(dark=dark), _largest_first(shares)
    values = [share * 100 for share in ordered.values()]
    labels = [names.get(name, name) for name in ordered]
    texts = draw.labels([f"{value:.2f} %" for value in values])
    draw.bars(None, labels, values, 0, "%{y}<br>%{text}", **texts)
    across = axis("% of the run", range=[0, max(values, default=0.0) * 1.25 or 1])
    return draw.set_axes(across, categories(), 80 + 28 * len(values), PLAIN)


def causes_bars(splits: Sequence[tuple[str, Parts]], *, dark: bool = False) -> go.Figure:
    """Times of several splits (seconds by bottleneck), each stacked."""
    draw, names = Drawing(dark=dark), [name for name, _ in splits]
    factor, unit = _time_unit(max((sum(parts.values()) for _, parts in splits), default=0.0))
    for n, (cause, title) in enumerate(BOTTLENECKS.items()):
        seconds = np.array([parts.get(cause, 0.0) for _, parts in splits])
        hover = f"%{{y}}<br>{title} %{{customdata}}"
        draw.bars(title, names, seconds * factor, n, hover, [*map(seconds_text, seconds.tolist())])
    stack: Style = {"barmode": "stack", "bargap": 0.35, "legend_traceorder": "normal"}
    return draw.set_axes(axis(unit), categories(), 110 + 44 * len(splits), **stack)


def pipeline(tasks: Sequence[Task], *, dark: bool = False) -> go.Figure:
    """A pipeline's schedule: a row per stage, a bar per pass of a micro-batch; gaps are idle."""
    draw = Drawing(dark=dark)
    paper = draw.colours.paper
    factor, unit = _time_unit(max((task.end_s for task in tasks), default=0.0))
    stages = [f"Stage {stage}" for stage in sorted({task.stage for task in tasks})]
    chunks = len({task.chunk for task in tasks}) > 1
    inside = {"textposition": "inside", "insidetextanchor": "middle", "textangle": 0}
    inside |= {"textfont": {"color": paper}, "constraintext": "none"}
    for n, name in enumerate(("Forward", "Backward")):
        passes = [task for task in tasks if task.backward == bool(n)]
        numbers = [str(task.micro_batch + 1) for task in passes]
        draw.bars(
            name,
            [f"Stage {task.stage}" for task in passes],
            [(task.end_s - task.start_s) * factor for task in passes],
            part_marker(draw.colours, n) | {"line": {"color": paper, "width": 1}},
            f"{name} of %{{customdata}}<br>%{{y}}, from %{{base:.4g}} {unit} for %{{x:.4g}} {unit}",
            [
                f"micro-batch {task.micro_batch + 1}"
                + (f", chunk {task.chunk + 1}" if chunks else "")
                for task in passes
            ],
            base=[task.start_s * factor for task in passes],
            text=numbers if len(tasks) <= NUMBERED else None,
            **inside,
        )
    up, height = categories(categoryarray=stages), 120 + 34 * len(stages)
    return draw.set_axes(axis(unit), up, height, barmode="overlay", bargap=0.12)


# Memory


def memory_bars(plan: Plan, rows: Sequence[int], *, dark: bool = False) -> go.Figure:
    """Memory per device by part as it will be held, one bar a row, with limits and sums.

    The text behind a bar says how much the row needs beyond that, or lacks. Where devices differ
    in their memory, each bar has marks of its own instead of common lines.
    """
    draw, places = Drawing(dark=dark), list(range(len(rows)))
    usable = np.array([row_usable_bytes(plan, row) for row in rows]) / GIB
    capacity = np.array([capacity_bytes(plan, row) for row in rows]) / GIB
    common = not rows or bool(max(np.ptp(usable), np.ptp(capacity)) < ALIKE_GIB)
    memory = plan.spec.held_memory(plan, rows)
    totals = np.sum(list(memory.values()), axis=0) if rows else np.zeros(0)
    _add_parts(draw, plan, rows, memory)
    _add_capacity(draw, usable, capacity, common=common)
    texts = [
        _memory_total_text(plan, row, float(total), of_capacity=not common)
        for row, total in zip(rows, totals, strict=True)
    ]
    ends = np.nan_to_num(totals) / GIB
    beyond = np.array([not common or "needs" in text for text in texts], dtype=bool)
    starts = np.where(beyond, np.maximum(ends, capacity), ends)  # never across the lines
    draw.texts(starts, places, texts, textposition="middle right", cliponaxis=False)
    titles = {"tickvals": places, "ticktext": _bar_titles(plan, rows)}
    widest = float(max([*capacity, *ends], default=1.0))
    return draw.set_axes(
        axis(f"GiB per {device_word(plan)}", range=[0, widest * 1.34]),
        axis(None, range=[len(rows) - 0.5, -0.5], showgrid=False, **titles),
        150 + 36 * len(rows),
        BELOW,
        barmode="stack",
        bargap=0.35,
    )


def _add_parts(draw: Drawing, plan: Plan, rows: Sequence[int], memory: Mapping[str, Any]) -> None:
    """Bars by part, at places in place of names: two loads of a split must not stack."""
    keys, titles = row_keys(plan, rows), _bar_titles(plan, rows)
    for n, (part, title) in enumerate(plan.spec.parts.items()):
        if np.nan_to_num(memory[part]).any():
            name = HELD_TITLES.get(part, title)
            about = [
                [key, gib(float(value)), title]
                for key, title, value in zip(keys, titles, memory[part], strict=True)
            ]
            hover = f"%{{customdata[2]}}<br>{name} %{{customdata[1]}}"
            draw.bars(name, list(range(len(rows))), memory[part] / GIB, n, hover, about)


def _bar_titles(plan: Plan, rows: Sequence[int]) -> list[str]:
    return [
        label if plan.feasible[row] else f"{label} (refused)"
        for label, row in zip(split_labels(plan, rows), rows, strict=True)
    ]


def _add_capacity(draw: Drawing, usable: Any, capacity: Any, *, common: bool) -> None:
    """Usable memory and capacity: as lines across, or as marks on each bar where they differ."""
    ink, alarm = draw.colours.ink, draw.colours.alarm
    if common:
        usable, capacity = (float(max(values, default=0.0)) for values in (usable, capacity))
        draw.limit(x=usable, colour=ink, dash="dot")
        draw.limit(x=capacity, dash=None)
        top: Style = {"y": 1, "yref": "paper", "yanchor": "bottom"}
        draw.note(f"usable {usable:.1f} ", x=usable, xanchor="right", **top)
        draw.note(f" {capacity:.1f} GiB capacity", alarm, x=capacity, xanchor="left", **top)
        return
    marks = (("Usable", usable, ink, 1.5), ("Capacity", capacity, alarm, 3))
    for title, values, colour, width in marks:
        look = {"symbol": "line-ns-open", "size": 28, "color": colour}
        look["line"] = {"width": width, "color": colour}
        hover = f"{title} %{{x:,.1f}} GiB"
        draw.points(title, values, list(range(len(values))), look, hover, cliponaxis=False)


def _memory_total_text(plan: Plan, row: int, total: float, *, of_capacity: bool) -> str:
    """The bytes held, and in a line of its own those that a split lacks, or needs beyond them.

    Narrow screens cut long lines.
    """
    if not np.isfinite(total):
        return " not estimated"
    text = f" {total / GIB:,.1f}"
    if of_capacity:
        text += f" of {capacity_bytes(plan, row) / GIB:,.1f}"
    short = float(plan.columns["shortfall_bytes"][row])
    if short > 0 and not plan.feasible[row]:
        return f"{text}<br> {short / GIB:,.1f} short"
    needed = float(sum(values[0] for values in plan.spec.memory(plan, [row]).values()))
    if needed - total > ALIKE_GIB * GIB:
        holds = held_text(plan, row)
        return f"{text}<br> needs {needed / GIB:,.1f}" + (f", holds {holds}" if holds else "")
    return text


def stage_bars(
    stages: Sequence[Parts],
    names: Mapping[str, str],
    usable_bytes: float,
    capacity_bytes: float,
    *,
    dark: bool = False,
) -> go.Figure:
    """Memory of every pipeline stage. ``stages``: bytes by part; ``names``: of the parts."""
    draw, x = Drawing(dark=dark), [f"Stage {n}" for n in range(len(stages))]
    usable, capacity = usable_bytes / GIB, capacity_bytes / GIB
    for n, (part, name) in enumerate(names.items()):
        values = [stage.get(part, 0.0) for stage in stages]
        if any(values):
            sizes, hover = [value / GIB for value in values], f"%{{x}}<br>{name} %{{customdata}}"
            about = [gib(value) for value in values]
            draw.bars(name, sizes, x, n, hover, about, orientation="v")
    ink, tallest = draw.colours.ink, max(sum(stage.values()) for stage in stages) / GIB
    draw.limit(f"usable {usable:.1f}", y=usable, colour=ink, dash="dot", position="bottom right")
    draw.limit(f"{capacity:.1f} GiB capacity", y=capacity, dash="solid", position="top right")
    up = axis("GiB", range=[0, max(capacity, tallest) * 1.12])
    look = {"barmode": "stack", "bargap": 0.3}
    return draw.set_axes({"title": None, "type": "category"}, up, 380, BELOW, **look)


def parameter_bars(parts: Mapping[str, float], *, dark: bool = False) -> go.Figure:
    """Parameters by part of a model, largest first."""
    draw, ordered, total = Drawing(dark=dark), _largest_first(parts), sum(parts.values()) or 1.0
    values = list(ordered.values())
    draw.bars(
        None,
        [PART_TITLES.get(name, name) for name in ordered],
        values,
        {"color": draw.colours.series[0]},
        "%{y}<br>%{customdata[0]} parameters, %{customdata[1]}",
        [[f"{value:,}", share_text(value / total, 1)] for value in values],
        **draw.labels([count_text(value) for value in values]),
    )
    across = {"visible": False, "range": [0, max(values, default=1.0) * 1.25]}
    return draw.set_axes(across, categories(), 40 + 30 * len(values), PLAIN, bargap=0.35)
