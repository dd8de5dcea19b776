"""Memory of a device by part, against what it has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

from recipe_core.base.units import GIB, gib
from recipe_core.present.charts.style import BELOW, Palette, filled, palette
from recipe_core.search.plan import Plan


def memory_bars(plan: Plan, rows: Sequence[int], *, dark: bool = False) -> go.Figure:
    """Memory per device by part, one bar per split, with usable memory and capacity."""
    colours = palette(dark)
    labels = [plan.label(row) + ("" if plan.feasible[row] else " (refused)") for row in rows]
    parts = plan.memory(rows)
    figure = go.Figure()
    for n, (part, name) in enumerate(plan.parts.items()):
        if not np.nan_to_num(parts[part]).any():
            continue
        figure.add_bar(
            y=labels,
            x=parts[part] / GIB,
            orientation="h",
            name=name,
            marker=filled(colours, n),
            customdata=[
                [plan.key(row), gib(float(value))]
                for row, value in zip(rows, parts[part], strict=True)
            ],
            hovertemplate=f"%{{y}}<br>{name} %{{customdata[1]}}<extra></extra>",
        )
    totals = np.sum(list(parts.values()), axis=0) if len(rows) else np.zeros(0)
    figure.add_scatter(
        y=labels,
        x=totals / GIB,
        mode="text",
        text=[
            _total_text(plan, row, float(total)) for row, total in zip(rows, totals, strict=True)
        ],
        textposition="middle right",
        textfont={"color": colours.ink},
        hoverinfo="skip",
        showlegend=False,
        cliponaxis=False,
    )
    usable, capacity = (
        max((get(row) for row in rows), default=0.0) / GIB
        for get in (plan.usable_bytes, plan.capacity_bytes)
    )
    _capacity_lines(figure, usable, capacity, colours)
    widest = max([capacity, *(float(total) / GIB for total in totals if np.isfinite(total))])
    figure.update_layout(barmode="stack", height=150 + 36 * len(rows), bargap=0.35, **BELOW)
    figure.update_xaxes(
        title=f"GiB per {plan.device_title}", range=[0, widest * 1.3], zeroline=False
    )
    figure.update_yaxes(autorange="reversed", type="category", title=None)
    return figure


def _capacity_lines(figure: go.Figure, usable: float, capacity: float, colours: Palette) -> None:
    figure.add_vline(x=usable, line={"dash": "dot", "color": colours.ink, "width": 2})
    figure.add_vline(x=capacity, line={"color": colours.alarm, "width": 2})
    place = {"y": 1, "yref": "paper", "yanchor": "bottom", "showarrow": False}
    figure.add_annotation(x=usable, xanchor="right", text=f"usable {usable:.1f} ", **place)
    figure.add_annotation(
        x=capacity,
        xanchor="left",
        text=f" {capacity:.1f} GiB capacity",
        font={"color": colours.alarm},
        **place,
    )


def _total_text(plan: Plan, row: int, total: float) -> str:
    """The total, and what is missing where the split does not fit."""
    short = plan.short_bytes(row)
    text = f" {total / GIB:,.1f}" if np.isfinite(total) else " not estimated"
    if short > 0 and not plan.feasible[row]:
        text += f"<br> {short / GIB:,.1f} short"  # a line of its own: narrow screens cut long ones
    return text


def stage_bars(
    stages: Sequence[Mapping[str, float]],
    names: Mapping[str, str],
    usable_bytes: float,
    capacity_bytes: float,
    *,
    dark: bool = False,
) -> go.Figure:
    """Memory of every pipeline stage. ``stages``: bytes by part; ``names``: of the parts."""
    colours = palette(dark)
    figure = go.Figure()
    x = [f"Stage {n}" for n in range(len(stages))]
    for n, (part, name) in enumerate(names.items()):
        values = [stage.get(part, 0.0) for stage in stages]
        if any(values):
            hover: dict[str, Any] = {
                "customdata": [gib(value) for value in values],
                "hovertemplate": f"%{{x}}<br>{name} %{{customdata}}<extra></extra>",
            }
            figure.add_bar(
                x=x,
                y=[value / GIB for value in values],
                name=name,
                marker=filled(colours, n),
                **hover,
            )
    for value, dash, colour, text in (
        (usable_bytes, "dot", colours.ink, f"usable {usable_bytes / GIB:.1f}"),
        (capacity_bytes, "solid", colours.alarm, f"{capacity_bytes / GIB:.1f} GiB capacity"),
    ):
        place = "bottom right" if dash == "dot" else "top right"
        line = {"dash": dash, "color": colour, "width": 2}
        figure.add_hline(
            y=value / GIB,
            line=line,
            annotation={"text": text, "font": {"color": colour}},
            annotation_position=place,
        )
    tallest = max([capacity_bytes, *(sum(stage.values()) for stage in stages)]) / GIB
    figure.update_layout(barmode="stack", height=380, bargap=0.3, **BELOW)
    figure.update_yaxes(title="GiB", range=[0, tallest * 1.12], zeroline=False)
    figure.update_xaxes(title=None, type="category")
    return figure
