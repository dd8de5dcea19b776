"""A trace of requests as figures: rates, gaps, lengths, and hits by the size of a prefix cache."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import plotly.graph_objects as go

from recipe_core.base.units import significant
from recipe_core.scaling.traces.describe import count_by_window
from recipe_core.scaling.traces.trace import Rates, Trace
from recipe_core.views.charts.figures import Drawing, axis
from recipe_core.views.charts.style import stroke

# Points of a curve: more cannot be told apart on a screen.
POINTS = 2_000
BINS = 40
HEIGHT = 360
UNITS = ((2 * 86_400.0, 86_400.0, "days"), (2 * 3600.0, 3600.0, "hours"), (0.0, 60.0, "minutes"))


def requests_over_time(trace: Trace | Rates, *, dark: bool = False) -> go.Figure:
    """Requests per second: mean of each interval, and of a trace the busiest second of each."""
    draw = Drawing(dark=dark)
    factor, unit = next((factor, unit) for low, factor, unit in UNITS if trace.span_s >= low)
    if isinstance(trace, Rates):
        step, mean = trace.interval_s, trace.rates
    else:
        step = max(60.0, np.ceil(trace.span_s / POINTS / 60.0) * 60.0)
        mean = count_by_window(trace, step) / step
    x = np.arange(len(mean)) * step / factor
    if not isinstance(trace, Rates):
        look = {"color": draw.colours.muted, "width": 1, "dash": "dot", "shape": "hv"}
        hover = f"%{{x:.2f}} {unit}: %{{y:.0f}} in a second"
        draw.curve("busiest second", x, _busiest_second(trace, step, len(mean)), look, hover)
    hover = f"%{{x:.2f}} {unit}: %{{y:.3g}} per second"
    look = {**stroke(draw.colours, 0), "shape": "hv"}
    draw.curve(f"mean of {_step_text(step)}", x, mean, look, hover)
    across = axis(f"Time, {unit} from the first request")
    up = axis("Requests per second", rangemode="tozero")
    return draw.between(
        across, up, HEIGHT, hovermode="closest", showlegend=not isinstance(trace, Rates)
    )


def _step_text(step_s: float) -> str:
    if step_s < 60:
        return f"{significant(step_s)} s"
    return "a minute" if step_s == 60 else f"{significant(step_s / 60)} minutes"


def _busiest_second(trace: Trace, step_s: float, intervals: int) -> np.ndarray:
    """The highest count of a second in each interval, which lasts whole seconds."""
    seconds = count_by_window(trace, 1.0)
    padded = np.zeros(intervals * int(step_s))
    padded[: len(seconds)] = seconds[: len(padded)]
    return np.asarray(padded.reshape(intervals, -1).max(axis=1))


def arrival_gaps(trace: Trace, *, dark: bool = False) -> go.Figure:
    """Share of gaps between requests that are longer, beside that of a Poisson process."""
    draw, between = Drawing(dark=dark), np.sort(np.diff(trace.arrival_s))
    positive = between[between > 0]
    if len(positive):
        mean = float(between.mean())
        places = np.unique(np.linspace(0, len(positive) - 1, POINTS).astype(int))
        longer = (len(positive) - 1 - places) / len(between)
        some = longer > 0
        hover = "%{y:.2%} of gaps are longer than %{x:.3g} s"
        draw.curve("this trace", positive[places][some], longer[some], 0, hover)
        x = np.geomspace(mean / 1000, mean * np.log(len(between) + 1), 200)
        grey = {**stroke(draw.colours, 1), "color": draw.colours.muted}
        hover = "Poisson: %{y:.2%} longer than %{x:.3g} s"
        draw.curve("Poisson of the same rate", x, np.exp(-x / mean), grey, hover)
    across = {"title": "Gap between two requests, s", "type": "log", "exponentformat": "power"}
    up = {"title": "Share of gaps that are longer", "type": "log", "tickformat": ".0e"}
    return draw.between(across, up, HEIGHT, hovermode="closest", showlegend=True)


def lengths_density(trace: Trace, *, dark: bool = False) -> go.Figure:
    """Share of requests by the lengths of prompt and answer, both on logarithmic scales."""
    draw = Drawing(dark=dark)
    inputs, outputs = np.maximum(trace.input_tokens, 1), np.maximum(trace.output_tokens, 1)
    edges = [
        np.geomspace(lengths.min() / 1.01, lengths.max() * 1.01, BINS + 1)
        for lengths in (inputs, outputs)
    ]
    share = np.histogram2d(inputs, outputs, bins=edges)[0].T / len(trace)
    x, y = (np.sqrt(edge[1:] * edge[:-1]) for edge in edges)
    draw.matrix(
        np.where(share > 0, np.log10(np.maximum(share, 1e-12)), np.nan),
        x,
        y,
        "prompt %{x:,.0f}, answer %{y:,.0f} tokens: %{customdata:.2%}",
        share,
        colorscale=[[0.0, draw.colours.grid], [1.0, draw.colours.series[0]]],
        colorbar={"title": "Share", **_share_ticks(share)},
    )
    look = {"symbol": "cross", "size": 12, "color": draw.colours.alarm}
    hover = "mean: prompt %{x:,.0f}, answer %{y:,.0f} tokens"
    draw.points("mean", [float(inputs.mean())], [float(outputs.mean())], look, hover)
    across, up = ({"title": title, "type": "log"} for title in ("Prompt, tokens", "Answer, tokens"))
    return draw.between(across, up, HEIGHT + 40, hovermode="closest", showlegend=False)


def _share_ticks(share: np.ndarray) -> dict[str, list[object]]:
    """Powers of ten between the least and the largest share, as percentages."""
    ends = np.log10([share[share > 0].min(), share.max()])
    powers = np.arange(np.floor(ends[0]), np.ceil(ends[1]) + 1).tolist()
    return {"tickvals": powers, "ticktext": [f"{100 * 10.0**power:g}%" for power in powers]}


def hits_by_cache(hit: Mapping[str, Any], *, dark: bool = False) -> go.Figure:
    """Share of prompt tokens that a cache holds, by its size; ``hit`` as a description has it."""
    draw, hits = Drawing(dark=dark), hit["by_cache_tokens"]
    hover = "a cache of %{x:,.0f} tokens holds %{y:.1%}"
    draw.curve("prompt tokens that hit", [*map(float, hits)], list(hits.values()), 0, hover)
    text, grey = f"without limit {hit['unlimited']:.1%}", draw.colours.muted
    draw.limit(text, y=hit["unlimited"], colour=grey, position="top left")
    across = {"title": "Cache, tokens of all requests together", "type": "log", "dtick": 1}
    up = {"title": "Share of prompt tokens", "tickformat": ".0%", "rangemode": "tozero"}
    return draw.between(across, up, HEIGHT, hovermode="closest", showlegend=False)


def alt_text(trace: Trace | Rates) -> str:
    """``requests_over_time`` in a sentence."""
    return f"Requests per second over {significant(trace.span_s)} s"
