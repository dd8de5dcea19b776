"""Loads and traces as figures: rates, the hours of a week, lengths, reuse, starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

from recipe_core.base.arrays import Float
from recipe_core.base.units import long_duration
from recipe_core.request.over_time import HOUR_S
from recipe_core.views import over_time as view
from recipe_core.views.charts.over_time import over_week, part, stepped
from recipe_core.views.charts.style import FRAME, filled, palette

Json = Mapping[str, Any]
WEEK_H = 168


def rates_over_time(
    rates: Sequence[float], interval_s: float, start_hour: float = 0, *, dark: bool = False
) -> go.Figure:
    """Requests per second in one interval after the other, with their mean."""
    colours = palette(dark)
    window = (0.0, len(rates) * interval_s)
    seconds, values, step = part({"interval_s": interval_s, "rates": rates}, "rates", window)
    figure = go.Figure()
    figure.add_scatter(
        **stepped(seconds, values, step, start_hour),
        name="Load",
        fill="tozeroy",
        line={"color": colours.series[0], "width": 1.5},
        hovertemplate="%{y:.3g} requests/s<extra></extra>",
    )
    mean = float(np.mean(rates)) if len(rates) else 0.0
    over_week(figure, window, showlegend=False, margin={**FRAME["margin"], "t": 12})
    figure.add_hline(
        y=mean,
        line={"dash": "dash", "color": colours.ink, "width": 1.5},
        annotation={"text": f"mean {mean:.3g}/s", "font": {"color": colours.ink}},
        annotation_position="top right",
    )
    figure.update_yaxes(title="Requests/s")
    return figure


def hours_of_week(
    rates: Sequence[float], interval_s: float, start_hour: float = 0, *, dark: bool = False
) -> go.Figure:
    """Mean rate of each hour of each day of the week, as a heat map."""
    colours = palette(dark)
    means = weekly(np.asarray(rates, dtype=np.float64), interval_s, start_hour)
    figure = go.Figure(
        go.Heatmap(
            z=[[None if np.isnan(value) else float(value) for value in day] for day in means],
            x=list(range(24)),
            y=list(view.DAYS),
            colorscale=[[0.0, colours.paper], [1.0, colours.series[0]]],
            zmin=0,
            colorbar={"title": {"text": "req/s", "side": "right"}, "thickness": 12},
            xgap=1,
            ygap=1,
            hovertemplate="%{y} %{x}:00<br>%{z:.3g} requests/s<extra></extra>",
        )
    )
    figure.update_layout(height=250, margin={"l": 10, "r": 10, "t": 12, "b": 10})
    figure.update_xaxes(title="Hour of day", dtick=3, zeroline=False)
    figure.update_yaxes(autorange="reversed", title=None)
    return figure


def weekly(rates: Float, interval_s: float, start_hour: float) -> Float:
    """Mean rates by day of the week and hour, [7, 24]; NaN where nothing is known."""
    middle = (np.arange(len(rates)) + 0.5) * interval_s / HOUR_S + start_hour
    hour = middle.astype(np.int64) % WEEK_H
    total = np.bincount(hour, weights=rates, minlength=WEEK_H)
    times = np.bincount(hour, minlength=WEEK_H)
    means: Float = np.where(times, total / np.maximum(times, 1), np.nan).reshape(7, 24)
    return means


def start_phases(start: Json, *, dark: bool = False) -> go.Figure:
    """The phases of a cold start, one after the other, and the band of the whole."""
    colours, figure = palette(dark), go.Figure()
    for n, phase in enumerate(start["phases"]):
        name = phase["name"].replace("_", " ").capitalize()
        figure.add_bar(
            y=["Start"],
            x=[phase["seconds"]],
            orientation="h",
            name=name,
            marker=filled(colours, n),
            customdata=[[long_duration(phase["seconds"]), phase["basis"]]],
            hovertemplate=f"<b>{name}</b><br>%{{customdata[0]}}, %{{customdata[1]}}<extra></extra>",
        )
    figure.add_scatter(
        y=["Start"],
        x=[start["seconds"]],
        mode="markers",
        name="Whole, with its band",
        marker={"symbol": "line-ns-open", "color": colours.ink, "size": 18},
        error_x={
            "type": "data",
            "symmetric": False,
            "array": [start["high_s"] - start["seconds"]],
            "arrayminus": [start["seconds"] - start["low_s"]],
            "color": colours.ink,
        },
        hovertemplate="eight of ten starts lie within the line<extra></extra>",
    )
    figure.update_layout(
        barmode="stack",
        height=230,
        showlegend=True,
        hovermode="closest",
        margin={"l": 10, "r": 16, "t": 10, "b": 10},
        legend={"orientation": "h", "yanchor": "top", "y": -0.3, "x": 0, "traceorder": "normal"},
    )
    # no title: on a phone the legend has many rows, and stands where it would be
    figure.update_xaxes(ticksuffix=" s", rangemode="tozero", zeroline=False)
    figure.update_yaxes(visible=False)
    return figure
