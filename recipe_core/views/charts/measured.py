"""Runs of one's own against their predictions: all figures, ratios by group, and one by parts."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Literal

import plotly.graph_objects as go

from recipe_core.base.labels import CAUSES
from recipe_core.base.units import figure_amount
from recipe_core.calibration.comparison import ComparedFigure, Prediction
from recipe_core.views.charts.style import FRAME, SYMBOLS, Palette, filled, palette

Which = Literal["formulas", "corrected"]
PREDICTED_BY: dict[Which, str] = {"formulas": "Formulas alone", "corrected": "With the other runs"}
UNITS = {
    "tpot_s": ("ms", 1e3),
    "ttft_s": ("ms", 1e3),
    "request_latency_s": ("s", 1.0),
    "output_tokens_per_s": ("tokens/s", 1.0),
    "step_s": ("s", 1.0),
}
"""Units of the axes of a figure, and factors to them from SI units."""
LARGEST = 5
"""Parts that are shown one by one; a legend has no room for all."""


def _predicted(row: ComparedFigure, which: Which) -> Prediction:
    return row.corrected if which == "corrected" else row.formulas


def measured_against(
    rows: Sequence[ComparedFigure], which: Which, *, dark: bool = False
) -> go.Figure:
    """Predicted against measured values of one figure on two log axes, with the 80 % bands.

    Filled marks lie in their band, open ones outside of it.
    """
    colours = palette(dark)
    unit, scale = UNITS[rows[0].figure]
    ends = [
        value * scale
        for row in rows
        for value in (row.measured, _predicted(row, which).low, _predicted(row, which).high)
    ]
    low, high = min(ends) / 1.3, max(ends) * 1.3
    figure = go.Figure()
    figure.add_scatter(
        x=[low, high],
        y=[low, high],
        mode="lines",
        line={"color": colours.muted, "dash": "dot", "width": 1},
        name="measured as predicted",
        hoverinfo="skip",
    )
    for inside in (True, False):
        chosen = [row for row in rows if _predicted(row, which).holds(row.measured) == inside]
        figure.add_scatter(**_marks(chosen, which, colours, inside=inside))
    figure.update_layout(height=460, **FRAME)
    figure.update_xaxes(title=f"Predicted ({unit})", type="log")
    figure.update_yaxes(title=f"Measured ({unit})", type="log")
    return figure


def _marks(
    rows: Sequence[ComparedFigure], which: Which, colours: Palette, *, inside: bool
) -> dict[str, object]:
    scale = UNITS[rows[0].figure][1] if rows else 1.0
    predicted = [_predicted(row, which) for row in rows]
    colour = colours.series[0] if inside else colours.alarm
    return {
        "x": [one.value * scale for one in predicted],
        "y": [row.measured * scale for row in rows],
        "mode": "markers",
        "name": "in its band" if inside else "outside its band",
        "marker": {
            "color": colour,
            "size": 9,
            "symbol": "circle" if inside else "circle-open",
            "line": {"width": 1 if inside else 2, "color": colour},
        },
        "error_x": {
            "type": "data",
            "symmetric": False,
            "array": [(one.high - one.value) * scale for one in predicted],
            "arrayminus": [(one.value - one.low) * scale for one in predicted],
            "color": colour,
            "thickness": 1,
            "width": 0,
        },
        "customdata": [
            [
                row.run,
                f"{row.model} on {row.device}, {row.engine} {row.version}".rstrip(),
                figure_amount(row.figure, row.measured),
                figure_amount(row.figure, one.value),
                f"{figure_amount(row.figure, one.low)} to {figure_amount(row.figure, one.high)}",
            ]
            for row, one in zip(rows, predicted, strict=True)
        ],
        "hovertemplate": (
            "%{customdata[1]}<br>measured %{customdata[2]}, predicted %{customdata[3]} "
            "(%{customdata[4]})<br>run %{customdata[0]}<extra></extra>"
        ),
    }


def ratios_by_group(
    rows: Sequence[ComparedFigure], groups: Sequence[str], *, dark: bool = False
) -> go.Figure:
    """Measured over predicted by group, before and after; ``groups``: that of each row.

    The line of a group and prediction is its median.
    """
    colours = palette(dark)
    figure = go.Figure()
    names = sorted(set(groups))
    for n, (which, title) in enumerate(PREDICTED_BY.items()):
        ratios = [row.measured / _predicted(row, which).value for row in rows]
        figure.add_scatter(
            x=ratios,
            y=list(groups),
            mode="markers",
            name=title,
            marker={"color": colours.series[n], "symbol": SYMBOLS[n], "size": 8, "opacity": 0.7},
            customdata=[row.run for row in rows],
            hovertemplate="%{y}: %{x:.2f} × predicted<br>run %{customdata}<extra></extra>",
        )
        middles = [
            median(ratio for ratio, group in zip(ratios, groups, strict=True) if group == name)
            for name in names
        ]
        figure.add_scatter(
            x=middles,
            y=names,
            mode="markers",
            name=f"median, {title[0].lower()}{title[1:]}",
            marker={
                "symbol": "line-ns-open",
                "size": 26,
                "color": colours.series[n],
                "line": {"width": 3},
            },
            hovertemplate="%{y}: median %{x:.2f} × predicted<extra></extra>",
        )
    figure.add_vline(x=1, line={"color": colours.muted, "dash": "dot", "width": 1})
    figure.update_layout(height=150 + 46 * len(names), **FRAME)
    figure.update_xaxes(title="Measured / predicted", type="log")
    figure.update_yaxes(type="category", title=None)
    return figure


def parts_against(row: ComparedFigure, *, dark: bool = False) -> go.Figure:
    """The parts that a predicted time is made of, above the measured whole; both in ms."""
    colours = palette(dark)
    figure = go.Figure()
    ordered = sorted(row.parts.items(), key=lambda part: -part[1])
    parts = [(CAUSES.get(name, name.replace("_", " ")), value) for name, value in ordered[:LARGEST]]
    if rest := ordered[LARGEST:]:
        parts.append(("Other parts", sum(seconds for _, seconds in rest)))
    for n, (label, seconds) in enumerate(parts):
        figure.add_bar(
            y=["predicted"],
            x=[seconds * 1e3],
            orientation="h",
            name=label,
            marker=filled(colours, n),
            hovertemplate=f"{label}: %{{x:.3g}} ms<extra></extra>",
        )
    figure.add_bar(
        y=["measured"],
        x=[row.measured * 1e3],
        orientation="h",
        marker={"color": colours.muted},
        showlegend=False,
        hovertemplate="measured: %{x:.3g} ms<extra></extra>",
    )
    figure.update_layout(barmode="stack", height=230, bargap=0.35, **FRAME)
    figure.update_xaxes(title="ms", zeroline=False)
    figure.update_yaxes(autorange="reversed", type="category", title=None)
    return figure
