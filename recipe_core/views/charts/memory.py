"""Memory of a device by part, against what it has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

from recipe_core.base.units import GIB, gib
from recipe_core.plans.plan import Plan
from recipe_core.views.charts.style import BELOW, Palette, filled, palette


def memory_bars(plan: Plan, rows: Sequence[int], *, dark: bool = False) -> go.Figure:
    """Memory per device by part as it will be held, one bar a row, with what is usable and there.

    The text behind a bar says what the row needs beyond that, or lacks. Where devices differ in
    their memory, each bar has marks of its own instead of common lines.
    """
    colours = palette(dark)
    parts = plan.held_memory(rows)
    places = list(range(len(rows)))  # bars of one name (two loads of a split) never stack
    figure = go.Figure()
    for n, (part, name) in enumerate(plan.parts.items()):
        if not np.nan_to_num(parts[part]).any():
            continue
        figure.add_bar(
            y=places,
            x=parts[part] / GIB,
            orientation="h",
            name=_HELD.get(part, name),
            marker=filled(colours, n),
            customdata=[
                [plan.key(row), gib(float(value)), _row_title(plan, row)]
                for row, value in zip(rows, parts[part], strict=True)
            ],
            hovertemplate=(
                f"%{{customdata[2]}}<br>{_HELD.get(part, name)} %{{customdata[1]}}<extra></extra>"
            ),
        )
    totals = np.sum(list(parts.values()), axis=0) if len(rows) else np.zeros(0)
    limits = {
        "usable": np.array([plan.usable_bytes(row) for row in rows]) / GIB,
        "capacity": np.array([plan.capacity_bytes(row) for row in rows]) / GIB,
    }
    alike = all(np.ptp(values) < ALIKE_GIB for values in limits.values()) if len(rows) else True
    if alike:
        usable, capacity = (float(max(values, default=0.0)) for values in limits.values())
        _capacity_lines(figure, usable, capacity, colours)
    else:
        _capacity_marks(figure, places, limits, colours)
    ends = np.nan_to_num(totals) / GIB
    texts = [
        _total_text(plan, row, float(total), of_capacity=not alike)
        for row, total in zip(rows, totals, strict=True)
    ]
    beyond = np.array([not alike or "needs" in text for text in texts], dtype=bool)
    figure.add_scatter(
        y=places,
        x=np.where(beyond, np.maximum(ends, limits["capacity"]), ends),  # never across the lines
        mode="text",
        text=texts,
        textposition="middle right",
        textfont={"color": colours.ink},
        hoverinfo="skip",
        showlegend=False,
        cliponaxis=False,
    )
    widest = float(max([*limits["capacity"], *ends], default=1.0))
    figure.update_layout(barmode="stack", height=150 + 36 * len(rows), bargap=0.35, **BELOW)
    figure.update_xaxes(
        title=f"GiB per {plan.device_title}", range=[0, widest * 1.34], zeroline=False
    )
    figure.update_yaxes(
        range=[len(rows) - 0.5, -0.5],
        tickvals=places,
        ticktext=[_row_title(plan, row) for row in rows],
        showgrid=False,
        zeroline=False,
        title=None,
    )
    return figure


ALIKE_GIB = 0.05
"""Memory that differs by less is drawn as one line."""
_HELD = {"kv_needed_bytes": "KV cache"}
"""What a part is called as far as it is held."""


def _row_title(plan: Plan, row: int) -> str:
    """A row's name, and that it cannot run."""
    return plan.label(row) + ("" if plan.feasible[row] else " (refused)")


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


def _capacity_marks(
    figure: go.Figure, places: Sequence[int], limits: Mapping[str, Any], colours: Palette
) -> None:
    """A mark of usable memory and one of capacity on each bar."""
    for name, title, colour, width in (
        ("usable", "Usable", colours.ink, 1.5),
        ("capacity", "Capacity", colours.alarm, 3),
    ):
        figure.add_scatter(
            y=places,
            x=limits[name],
            mode="markers",
            name=title,
            marker={
                "symbol": "line-ns-open",
                "size": 28,
                "color": colour,
                "line": {"width": width, "color": colour},
            },
            hovertemplate=f"{title} %{{x:,.1f}} GiB<extra></extra>",
            cliponaxis=False,
        )


def _total_text(plan: Plan, row: int, total: float, *, of_capacity: bool) -> str:
    """What is held, and in a line of its own what a split lacks, or needs beyond it and holds.

    Narrow screens cut long lines.
    """
    if not np.isfinite(total):
        return " not estimated"
    text = f" {total / GIB:,.1f}"
    if of_capacity:
        text += f" of {plan.capacity_bytes(row) / GIB:,.1f}"
    short = plan.short_bytes(row)
    if short > 0 and not plan.feasible[row]:
        return f"{text}<br> {short / GIB:,.1f} short"
    needed = float(sum(values[0] for values in plan.memory([row]).values()))
    if needed - total > ALIKE_GIB * GIB:
        return f"{text}<br> needs {needed / GIB:,.1f}{_held_text(plan, row)}"
    return text


def _held_text(plan: Plan, row: int) -> str:
    held = plan.held_text(row)
    return f", holds {held}" if held else ""


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
