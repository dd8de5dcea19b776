"""A model's parameters by part."""

from __future__ import annotations

from collections.abc import Mapping

import plotly.graph_objects as go

from recipe_core.base.labels import PARTS
from recipe_core.base.units import count
from recipe_core.views.charts.style import palette


def parts_bars(parts: Mapping[str, float], *, dark: bool = False) -> go.Figure:
    """Parameters by part of the model, largest first."""
    colours = palette(dark)
    ordered = sorted(parts.items(), key=lambda item: -item[1])
    total = sum(parts.values()) or 1.0
    figure = go.Figure()
    figure.add_bar(
        y=[PARTS.get(name, name) for name, _ in ordered],
        x=[value for _, value in ordered],
        orientation="h",
        marker={"color": colours.series[0]},
        text=[count(value) for _, value in ordered],
        textposition="outside",
        textfont={"color": colours.ink},
        cliponaxis=False,
        customdata=[[f"{value:,}", f"{value / total:.1%}"] for _, value in ordered],
        hovertemplate="%{y}<br>%{customdata[0]} parameters, %{customdata[1]}<extra></extra>",
    )
    widest = max(parts.values(), default=1.0)
    figure.update_layout(
        height=40 + 30 * len(ordered),
        bargap=0.35,
        showlegend=False,
        margin={"l": 10, "r": 16, "t": 10, "b": 10},
    )
    figure.update_xaxes(visible=False, range=[0, widest * 1.25])
    figure.update_yaxes(autorange="reversed", type="category", title=None)
    return figure
