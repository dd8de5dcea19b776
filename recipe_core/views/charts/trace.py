"""A trace of requests as figures: rates, gaps, lengths, what a prefix cache would hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import plotly.graph_objects as go

from recipe_core.base.units import significant
from recipe_core.scaling.traces.bursts import counts
from recipe_core.scaling.traces.rates import Rates
from recipe_core.scaling.traces.trace import Trace
from recipe_core.views.charts.style import FRAME, Palette, palette, stroke

POINTS = 2_000
"""Points of a curve: more cannot be told apart on a screen."""
BINS = 40
HEIGHT = 360
UNITS = ((2 * 86_400.0, 86_400.0, "days"), (2 * 3600.0, 3600.0, "hours"), (0.0, 60.0, "minutes"))


def requests_over_time(trace: Trace | Rates, *, dark: bool = False) -> go.Figure:
    """Requests per second: mean of each interval, and of a trace the most in one second of it."""
    colours = palette(dark)
    factor, unit = _unit(trace.span_s)
    figure = go.Figure()
    if isinstance(trace, Rates):
        step = trace.interval_s
        mean, most = trace.rates, None
    else:
        step = max(60.0, np.ceil(trace.span_s / POINTS / 60.0) * 60.0)
        mean = counts(trace, step) / step
        most = _busiest_second(trace, step, len(mean))
    at = np.arange(len(mean)) * step / factor
    if most is not None:
        figure.add_scatter(
            x=at,
            y=most,
            mode="lines",
            name="busiest second",
            line={"color": colours.muted, "width": 1, "dash": "dot", "shape": "hv"},
            hovertemplate=f"%{{x:.2f}} {unit}: %{{y:.0f}} in a second<extra></extra>",
        )
    figure.add_scatter(
        x=at,
        y=mean,
        mode="lines",
        name=f"mean of {_step_text(step)}",
        line={**stroke(colours, 0), "shape": "hv"},
        hovertemplate=f"%{{x:.2f}} {unit}: %{{y:.3g}} per second<extra></extra>",
    )
    figure.update_layout(height=HEIGHT, hovermode="closest", showlegend=most is not None, **FRAME)
    figure.update_xaxes(title=f"Time, {unit} from the first request", zeroline=False)
    figure.update_yaxes(title="Requests per second", rangemode="tozero", zeroline=False)
    return figure


def gaps(trace: Trace, *, dark: bool = False) -> go.Figure:
    """Share of gaps between requests that are longer, beside that of a Poisson process."""
    colours = palette(dark)
    between = np.sort(np.diff(trace.arrival_s))
    figure = go.Figure()
    positive = between[between > 0]
    if len(positive):
        mean = float(between.mean())
        chosen = np.unique(np.linspace(0, len(positive) - 1, POINTS).astype(int))
        longer = (len(positive) - 1 - chosen) / len(between)
        some = longer > 0
        figure.add_scatter(
            x=positive[chosen][some],
            y=longer[some],
            mode="lines",
            name="this trace",
            line=stroke(colours, 0),
            hovertemplate="%{y:.2%} of gaps are longer than %{x:.3g} s<extra></extra>",
        )
        at = np.geomspace(mean / 1000, mean * np.log(len(between) + 1), 200)
        figure.add_scatter(
            x=at,
            y=np.exp(-at / mean),
            mode="lines",
            name="Poisson of the same rate",
            line={**stroke(colours, 1), "color": colours.muted},
            hovertemplate="Poisson: %{y:.2%} longer than %{x:.3g} s<extra></extra>",
        )
    figure.update_layout(height=HEIGHT, hovermode="closest", showlegend=True, **FRAME)
    figure.update_xaxes(title="Gap between two requests, s", type="log", exponentformat="power")
    figure.update_yaxes(title="Share of gaps that are longer", type="log", tickformat=".0e")
    return figure


def lengths_density(trace: Trace, *, dark: bool = False) -> go.Figure:
    """Share of requests by the lengths of prompt and answer, both on logarithmic scales."""
    colours = palette(dark)
    inputs, outputs = np.maximum(trace.input_tokens, 1), np.maximum(trace.output_tokens, 1)
    edges = [
        np.geomspace(one.min() / 1.01, one.max() * 1.01, BINS + 1) for one in (inputs, outputs)
    ]
    share = np.histogram2d(inputs, outputs, bins=edges)[0].T / len(trace)
    middles = [np.sqrt(edge[1:] * edge[:-1]) for edge in edges]
    figure = go.Figure(
        go.Heatmap(
            x=middles[0],
            y=middles[1],
            z=np.where(share > 0, np.log10(np.maximum(share, 1e-12)), np.nan),
            customdata=share,
            colorscale=_scale(colours),
            colorbar={"title": "Share", **_ticks(share)},
            hovertemplate="prompt %{x:,.0f}, answer %{y:,.0f} tokens: %{customdata:.2%}"
            "<extra></extra>",
        )
    )
    figure.add_scatter(
        x=[float(inputs.mean())],
        y=[float(outputs.mean())],
        mode="markers",
        name="mean",
        marker={"symbol": "cross", "size": 12, "color": colours.alarm},
        hovertemplate="mean: prompt %{x:,.0f}, answer %{y:,.0f} tokens<extra></extra>",
    )
    figure.update_layout(height=HEIGHT + 40, hovermode="closest", showlegend=False, **FRAME)
    figure.update_xaxes(title="Prompt, tokens", type="log")
    figure.update_yaxes(title="Answer, tokens", type="log")
    return figure


def hits_by_cache(hit: Mapping[str, Any], *, dark: bool = False) -> go.Figure:
    """Share of prompt tokens that a cache holds, by its size; ``hit`` as a description has it."""
    colours = palette(dark)
    figure = go.Figure()
    figure.add_scatter(
        x=[float(size) for size in hit["by_cache_tokens"]],
        y=list(hit["by_cache_tokens"].values()),
        mode="lines",
        name="prompt tokens that hit",
        line=stroke(colours, 0),
        hovertemplate="a cache of %{x:,.0f} tokens holds %{y:.1%}<extra></extra>",
    )
    figure.add_hline(
        y=hit["unlimited"],
        line={"dash": "dash", "color": colours.muted, "width": 2},
        annotation={
            "text": f"without limit {hit['unlimited']:.1%}",
            "font": {"color": colours.muted},
        },
        annotation_position="top left",
    )
    figure.update_layout(height=HEIGHT, hovermode="closest", showlegend=False, **FRAME)
    figure.update_xaxes(title="Cache, tokens of all requests together", type="log", dtick=1)
    figure.update_yaxes(title="Share of prompt tokens", tickformat=".0%", rangemode="tozero")
    return figure


def alt_text(trace: Trace | Rates) -> str:
    """What ``requests_over_time`` shows, in a sentence."""
    return f"Requests per second over {significant(trace.span_s)} s"


def _unit(span_s: float) -> tuple[float, str]:
    return next((factor, unit) for least, factor, unit in UNITS if span_s >= least)


def _step_text(step_s: float) -> str:
    if step_s < 60:
        return f"{significant(step_s)} s"
    return "a minute" if step_s == 60 else f"{significant(step_s / 60)} minutes"


def _busiest_second(trace: Trace, step_s: float, intervals: int) -> np.ndarray:
    """The most requests in a second of each interval, which lasts whole seconds."""
    seconds = counts(trace, 1.0)
    whole = np.zeros(intervals * int(step_s))
    whole[: len(seconds)] = seconds[: len(whole)]
    return np.asarray(whole.reshape(intervals, -1).max(axis=1))


def _scale(colours: Palette) -> list[list[object]]:
    return [[0.0, colours.grid], [1.0, colours.series[0]]]


def _ticks(share: np.ndarray) -> dict[str, list[object]]:
    """Powers of ten between the least and the largest share, as percentages."""
    seen = share[share > 0]
    powers = np.arange(np.floor(np.log10(seen.min())), np.ceil(np.log10(seen.max())) + 1)
    return {
        "tickvals": [float(power) for power in powers],
        "ticktext": [f"{100 * 10.0**power:g}%" for power in powers],
    }
