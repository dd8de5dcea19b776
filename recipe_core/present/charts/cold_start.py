"""What changes of a cold start save, as a figure; ``start_phases`` draws the start itself."""

from __future__ import annotations

import plotly.graph_objects as go

from recipe_core.physics.serving.cold_start import ColdStart
from recipe_core.present.charts.style import palette


def start_savings(start: ColdStart, *, dark: bool = False) -> go.Figure:
    """Seconds that single changes of a start save, the largest first, beside what remains."""
    colours = palette(dark)
    figure = go.Figure()
    texts = [saving.text for saving in start.savings]
    saved = [saving.seconds_saved for saving in start.savings]
    figure.add_bar(
        y=texts,
        x=[start.seconds - seconds for seconds in saved],
        orientation="h",
        name="remains",
        marker={"color": colours.muted},
        hovertemplate="%{y}<br>then %{x:.0f} s<extra></extra>",
    )
    figure.add_bar(
        y=texts,
        x=saved,
        orientation="h",
        name="saved",
        marker={"color": colours.series[2], "pattern": {"shape": "/", "fgcolor": colours.paper}},
        customdata=[[saving.change] for saving in start.savings],
        hovertemplate="%{y}<br>saves %{x:.0f} s (%{customdata[0]})<extra></extra>",
    )
    figure.update_layout(
        barmode="stack",
        height=90 + 30 * max(1, len(texts)),
        bargap=0.35,
        margin={"l": 10, "r": 16, "t": 40, "b": 10},
        legend={"orientation": "h", "yanchor": "bottom", "y": 1.05, "x": 0, "title": None},
    )
    figure.update_xaxes(title="Seconds", rangemode="tozero", gridcolor=colours.grid)
    figure.update_yaxes(autorange="reversed", type="category", title=None)
    return figure
