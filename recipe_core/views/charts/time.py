"""Where the time goes: parts of a step, their bottlenecks, and the schedule of a pipeline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import plotly.graph_objects as go

from recipe_core.base.labels import WHY
from recipe_core.base.units import alike, duration
from recipe_core.views.charts.style import FRAME, filled, palette
from recipe_core.views.explanations.timeline import Task

NUMBERED = 160
"""Tasks up to which each bar carries the number of its micro-batch."""


def _scale(seconds: float) -> tuple[float, str]:
    """What to multiply seconds by, and what that is called."""
    return (1.0, "s") if seconds >= 10 else (1e3, "ms")


def waterfall(
    parts: Mapping[str, float], names: Mapping[str, str], *, dark: bool = False
) -> go.Figure:
    """Parts of a time (seconds), largest first, each from where the last ended, and the total."""
    colours = palette(dark)
    ordered = sorted(parts.items(), key=lambda item: -item[1])
    total = sum(parts.values())
    factor, unit = _scale(total)
    texts = alike([seconds for _, seconds in ordered], total)
    shares = [f"{seconds / total:.1%}" for _, seconds in ordered] if total else []
    figure = go.Figure(
        go.Waterfall(
            orientation="h",
            y=[*(names.get(name, name) for name, _ in ordered), "Total"],
            x=[*(seconds * factor for _, seconds in ordered), 0],
            measure=["relative"] * len(ordered) + ["total"],
            text=[*texts, duration(total)],
            textposition="outside",
            textfont={"color": colours.ink},
            customdata=[*shares, "100%"],
            hovertemplate="%{y}<br>%{text}, %{customdata}<extra></extra>",
            increasing={"marker": {"color": colours.series[0]}},
            totals={"marker": {"color": colours.series[4]}},
            connector={"line": {"color": colours.muted, "width": 1}},
            cliponaxis=False,
        )
    )
    figure.update_layout(
        height=70 + 28 * (len(ordered) + 1),
        showlegend=False,
        margin={"l": 10, "r": 16, "t": 10, "b": 10},
    )
    figure.update_xaxes(title=unit, range=[0, total * factor * 1.18 or 1], zeroline=False)
    figure.update_yaxes(autorange="reversed", type="category", title=None)
    return figure


def loss_bars(
    shares: Mapping[str, float], names: Mapping[str, str], *, dark: bool = False
) -> go.Figure:
    """Shares of a run's time (0 to 1), the largest first, as bars in percent."""
    colours = palette(dark)
    ordered = sorted(shares.items(), key=lambda item: -item[1])
    values = [share * 100 for _, share in ordered]
    figure = go.Figure(
        go.Bar(
            orientation="h",
            y=[names.get(name, name) for name, _ in ordered],
            x=values,
            text=[f"{value:.2f}%" for value in values],
            textposition="outside",
            textfont={"color": colours.ink},
            marker=filled(colours, 0),
            hovertemplate="%{y}<br>%{text}<extra></extra>",
            cliponaxis=False,
        )
    )
    figure.update_layout(
        height=80 + 28 * len(ordered),
        showlegend=False,
        margin={"l": 10, "r": 16, "t": 10, "b": 10},
    )
    most = max(values, default=0.0) * 1.25 or 1
    figure.update_xaxes(title="% of the run", range=[0, most], zeroline=False)
    figure.update_yaxes(autorange="reversed", type="category", title=None)
    return figure


def causes_bars(
    splits: Sequence[tuple[str, Mapping[str, float]]], *, dark: bool = False
) -> go.Figure:
    """Times of several splits (seconds by bottleneck), each stacked."""
    colours = palette(dark)
    factor, unit = _scale(max((sum(parts.values()) for _, parts in splits), default=0.0))
    figure = go.Figure()
    for n, (cause, title) in enumerate(WHY.items()):
        figure.add_bar(
            y=[name for name, _ in splits],
            x=[parts.get(cause, 0.0) * factor for _, parts in splits],
            orientation="h",
            name=title,
            marker=filled(colours, n),
            customdata=[duration(parts.get(cause, 0.0)) for _, parts in splits],
            hovertemplate=f"%{{y}}<br>{title} %{{customdata}}<extra></extra>",
        )
    figure.update_layout(barmode="stack", height=110 + 44 * len(splits), bargap=0.35, **FRAME)
    figure.update_layout(legend_traceorder="normal")
    figure.update_xaxes(title=unit, zeroline=False)
    figure.update_yaxes(autorange="reversed", type="category", title=None)
    return figure


def pipeline(tasks: Sequence[Task], *, dark: bool = False) -> go.Figure:
    """A pipeline's schedule: a row per stage, a bar per pass of a micro-batch; gaps are idle."""
    colours = palette(dark)
    factor, unit = _scale(max((task.end_s for task in tasks), default=0.0))
    stages = sorted({task.stage for task in tasks})
    figure = go.Figure()
    for n, (backward, name) in enumerate(((False, "Forward"), (True, "Backward"))):
        passes = [task for task in tasks if task.backward is backward]
        chunks = len({task.chunk for task in tasks}) > 1
        figure.add_bar(
            y=[f"Stage {task.stage}" for task in passes],
            x=[(task.end_s - task.start_s) * factor for task in passes],
            base=[task.start_s * factor for task in passes],
            orientation="h",
            name=name,
            marker=filled(colours, n) | {"line": {"color": colours.paper, "width": 1}},
            text=[str(task.micro_batch + 1) for task in passes] if len(tasks) <= NUMBERED else None,
            textposition="inside",
            insidetextanchor="middle",
            textangle=0,
            textfont={"color": "#FFFFFF" if not dark else colours.paper},
            constraintext="none",
            customdata=[
                f"micro-batch {task.micro_batch + 1}"
                + (f", chunk {task.chunk + 1}" if chunks else "")
                for task in passes
            ],
            hovertemplate=f"{name} of %{{customdata}}<br>%{{y}}, from %{{base:.4g}} {unit} "
            f"for %{{x:.4g}} {unit}<extra></extra>",
        )
    figure.update_layout(barmode="overlay", height=120 + 34 * len(stages), bargap=0.12, **FRAME)
    figure.update_xaxes(title=unit, zeroline=False)
    figure.update_yaxes(
        autorange="reversed",
        type="category",
        title=None,
        categoryarray=[f"Stage {stage}" for stage in stages],
    )
    return figure
