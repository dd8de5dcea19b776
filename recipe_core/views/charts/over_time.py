"""A load and a trace of requests through time, and one policy under it, as figures.

Policies are those of ``OverTimeAnswer.to_json``; ``window``: seconds from and to. The horizontal
axis is a time of the week, as dates of a week that begins on a Monday.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

from recipe_core.base.arrays import Float
from recipe_core.base.units import share_text, significant
from recipe_core.request.over_time import DAY_S, HOUR_S, WEEK_S
from recipe_core.scaling.traces.describe import count_by_window
from recipe_core.scaling.traces.trace import Rates, Trace
from recipe_core.views import over_time as view
from recipe_core.views.charts.style import FRAME, PATTERNS, Drawing, Look, Style, axis, stroke

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
    return draw.set_axes(
        across, up, HEIGHT, hovermode="closest", showlegend=not isinstance(trace, Rates)
    )


def _step_text(step_s: float) -> str:
    if step_s < 60:
        return f"{significant(step_s)} s"
    return "a minute" if step_s == 60 else f"{significant(step_s / 60)} minutes"


def _busiest_second(trace: Trace, step_s: float, intervals: int) -> np.ndarray:
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
    return draw.set_axes(across, up, HEIGHT, hovermode="closest", showlegend=True)


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
    return draw.set_axes(across, up, HEIGHT + 40, hovermode="closest", showlegend=False)


def _share_ticks(share: np.ndarray) -> dict[str, list[object]]:
    ends = np.log10([share[share > 0].min(), share.max()])
    powers = np.arange(np.floor(ends[0]), np.ceil(ends[1]) + 1).tolist()
    return {"tickvals": powers, "ticktext": [f"{100 * 10.0**power:g} %" for power in powers]}


def hits_by_cache(hit: Mapping[str, Any], *, dark: bool = False) -> go.Figure:
    """Share of prompt tokens that a cache holds, by its size; ``hit`` as a description has it."""
    draw, hits = Drawing(dark=dark), hit["by_cache_tokens"]
    hover = "a cache of %{x:,.0f} tokens holds %{y:.1%}"
    draw.curve("prompt tokens that hit", [*map(float, hits)], list(hits.values()), 0, hover)
    text, grey = f"without limit {share_text(hit['unlimited'], 1)}", draw.colours.muted
    draw.limit(text, y=hit["unlimited"], colour=grey, position="top left")
    across = {"title": "Cache, tokens of all requests together", "type": "log", "dtick": 1}
    up = {"title": "Share of prompt tokens", "tickformat": ".0%", "rangemode": "tozero"}
    return draw.set_axes(across, up, HEIGHT, hovermode="closest", showlegend=False)


def alt_text(trace: Trace | Rates) -> str:
    """``requests_over_time`` in a sentence."""
    return f"Requests per second over {significant(trace.span_s)} s"


Json = Mapping[str, Any]
Window = tuple[float, float]
# Any Monday: second 0 of a load that starts at hour 0 of the week.
MONDAY = np.datetime64("2024-01-01T00:00:00", "ms")
# Points of a curve; more are drawn as means of several.
MOST_POINTS = 1_500
HEIGHT_PX = 270
WEEK_H = 168
BARE = {"showlegend": False, "margin": {**FRAME["margin"], "t": 12}}
# Ticks of an axis of times.
STEPS_S = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60, 120, 300, 600, 1800, 3600)


def week_dates(seconds: Float, start_hour: float) -> list[str]:
    """Seconds of a load as dates of a week that begins on a Monday."""
    ms = np.round((start_hour * HOUR_S + seconds) * 1e3).astype("timedelta64[ms]")
    return [str(time) for time in MONDAY + ms]


def part(series: Json, name: str, window: Window) -> tuple[Float, Float, float]:
    """Second and value of each interval of a window, and the length of an interval.

    Several intervals are one where they are too many to draw: counts are summed, the rest is the
    mean of those that are known.
    """
    step = float(series["interval_s"])
    values = np.array([np.nan if v is None else v for v in series[name]], dtype=np.float64)
    first, last = (int(np.clip(round(end / step), 0, len(values))) for end in window)
    values = values[first:last]
    together = max(1, -(-len(values) // MOST_POINTS))
    if together > 1:
        padded = np.full(-(-len(values) // together) * together, np.nan)
        padded[: len(values)] = values
        blocks = padded.reshape(-1, together)
        finite = np.isfinite(blocks).sum(axis=1)
        total = np.nansum(blocks, axis=1)
        mean = np.where(finite, total / np.maximum(finite, 1), np.nan)
        values = total if name in ("arrived", "kept") else mean
    seconds = np.asarray(first * step + np.arange(len(values)) * step * together, dtype=np.float64)
    return seconds, np.asarray(values, dtype=np.float64), step * together


def _add_steps(
    draw: Drawing,
    name: str,
    series: tuple[Float, Float, float],
    start_hour: float,
    line: Look,
    hover: str,
    **more: Any,
) -> None:
    """Add a value for each interval as steps, the last one to its end."""
    seconds, values, step = series
    ends = np.append(seconds, seconds[-1] + step) if len(seconds) else seconds
    steps = np.append(values, values[-1]) if len(values) else values
    y = [None if np.isnan(value) else float(value) for value in steps]
    draw.curve(name, week_dates(ends, start_hour), y, {"shape": "hv", **line}, hover, **more)


def _over_week(draw: Drawing, window: Window, up: Look, **layout: Any) -> go.Figure:
    days = (window[1] - window[0]) / DAY_S
    ticks = "%a%n%-d" if window[1] > WEEK_S + DAY_S else "%a"
    across = {
        "title": None,
        "type": "date",
        "showgrid": True,
        "tickformat": "%H:%M" if days <= 1.5 else ticks,
        "hoverformat": "%a %H:%M",
        "ticklabelmode": "instant" if days <= 1.5 else "period",
        "dtick": None if days <= 1.5 or days > 21 else DAY_S * 1e3,
    }
    up = axis(**{"rangemode": "tozero", **up})
    return draw.set_axes(across, up, HEIGHT_PX, hovermode="x unified", **layout)


# A load


def rates_over_time(
    rates: Sequence[float], interval_s: float, start_hour: float = 0, *, dark: bool = False
) -> go.Figure:
    """Requests per second in one interval after the other, with their mean."""
    draw, window = Drawing(dark=dark), (0.0, len(rates) * interval_s)
    series = part({"interval_s": interval_s, "rates": rates}, "rates", window)
    line = {"color": draw.colours.series[0], "width": 1.5}
    hover = "%{y:.3g} requests/s"
    _add_steps(draw, "Load", series, start_hour, line, hover, fill="tozeroy")
    mean, ink = float(np.mean(rates)) if len(rates) else 0.0, draw.colours.ink
    draw.limit(f"mean {mean:.3g}/s", y=mean, colour=ink, width=1.5, position="top right")
    return _over_week(draw, window, {"title": "Requests/s"}, **BARE)


def hours_of_week(
    rates: Sequence[float], interval_s: float, start_hour: float = 0, *, dark: bool = False
) -> go.Figure:
    """Mean rate of each hour of each day of the week, as a heat map."""
    draw = Drawing(dark=dark)
    means = weekly(np.asarray(rates, dtype=np.float64), interval_s, start_hour)
    draw.matrix(
        [[None if np.isnan(value) else float(value) for value in day] for day in means],
        list(range(24)),
        list(view.DAYS),
        "%{y} %{x}:00<br>%{z:.3g} requests/s",
        colorscale=[[0.0, draw.colours.paper], [1.0, draw.colours.series[0]]],
        zmin=0,
        colorbar={"title": {"text": "req/s", "side": "right"}, "thickness": 12},
        xgap=1,
        ygap=1,
    )
    frame = {"margin": {"l": 10, "r": 10, "t": 12, "b": 10}}
    up = {"autorange": "reversed", "title": None}
    return draw.set_axes(axis("Hour of day", dtick=3), up, 250, frame)


def weekly(rates: Float, interval_s: float, start_hour: float) -> Float:
    """Mean rates by day of the week and hour, [7, 24]; NaN where nothing is known."""
    middle = (np.arange(len(rates)) + 0.5) * interval_s / HOUR_S + start_hour
    hour = middle.astype(np.int64) % WEEK_H
    total = np.bincount(hour, weights=rates, minlength=WEEK_H)
    counts = np.bincount(hour, minlength=WEEK_H)
    means: Float = np.where(counts, total / np.maximum(counts, 1), np.nan).reshape(7, 24)
    return means


# A policy under a load


def load_and_capacity(
    answer: Json, policy: Json, window: Window, *, dark: bool = False
) -> go.Figure:
    """Requests per second that arrive, and the rate that ready replicas serve within limits."""
    draw, hour = Drawing(dark=dark), answer["load"]["start_hour"]
    seconds, arrived, step = part(policy["series"], "arrived", window)
    _, ready, _ = part(policy["series"], "ready", window)
    capacity = ready * answer["service"]["requests_per_s"]
    grey, blue = (
        {"color": draw.colours.muted, "width": 1},
        {"color": draw.colours.series[0], "width": 2},
    )
    load = (seconds, arrived / step, step)
    _add_steps(draw, "Load", load, hour, grey, "load %{y:.3g}/s", fill="tozeroy")
    name, hover = "Capacity within the limits", "capacity %{y:.3g}/s"
    _add_steps(draw, name, (seconds, capacity, step), hour, blue, hover)
    return _over_week(draw, window, {"title": "Requests/s"}, showlegend=True)


def replicas_over_time(
    answer: Json, policy: Json, window: Window, *, dark: bool = False
) -> go.Figure:
    """Replicas that answer and that start, one on the other, and the policy's target."""
    draw, hour = Drawing(dark=dark), answer["load"]["start_hour"]
    for n, name in enumerate(("ready", "starting")):
        colour = draw.colours.series[n]
        hatch = {"fillpattern": {"shape": PATTERNS[1], "fgcolor": colour}} if n else {}
        series = part(policy["series"], name, window)
        look, hover = {"color": colour, "width": 1}, f"{name} %{{y:.3g}}"
        _add_steps(draw, name.capitalize(), series, hour, look, hover, stackgroup="there", **hatch)
    target = part(policy["series"], "wanted", window)
    look = {"color": draw.colours.ink, "width": 1.5, "dash": "dot"}
    _add_steps(draw, "Wanted", target, hour, look, "wanted %{y:.3g}")
    legend = {**FRAME["legend"], "traceorder": "normal"}
    return _over_week(draw, window, {"title": "Replicas"}, showlegend=True, legend=legend)


def first_tokens(answer: Json, policy: Json, window: Window, *, dark: bool = False) -> go.Figure:
    """Mean time to first token, with its limit."""
    draw, hour = Drawing(dark=dark), answer["load"]["start_hour"]
    series, limit = part(policy["series"], "ttft_s", window), answer["limits"].get("ttft_s")
    look = {"color": draw.colours.series[2], "width": 2}
    _add_steps(draw, "First token", series, hour, look, "first token %{y:.3g} s")
    shown = [float(value) for value in series[1] if np.isfinite(value) and value > 0]
    shown += [limit] if limit else []
    low, high = min(shown, default=1.0) / 1.5, max(shown, default=1.0) * 1.8
    ticks = [tick for tick in STEPS_S if low <= tick <= high]
    up = {"title": "First token (s)", "type": "log", "tickvals": ticks}
    up |= {"ticktext": [f"{tick:g}" for tick in ticks]}
    up |= {"range": [float(np.log10(low)), float(np.log10(high))]}
    if limit:
        draw.limit(y=limit)
        # a note of its own: that of a limit takes no logarithm of its place
        place: Style = {"x": 1, "xref": "paper", "xanchor": "right", "yanchor": "bottom"}
        text = f"limit {significant(limit)} s"
        draw.note(text, draw.colours.alarm, y=float(np.log10(limit)), **place)
    return _over_week(draw, window, up, **BARE)


def within_limits(answer: Json, policy: Json, window: Window, *, dark: bool = False) -> go.Figure:
    """Share of the requests of each interval that kept the limits, and the target share."""
    draw, hour = Drawing(dark=dark), answer["load"]["start_hour"]
    seconds, arrived, step = part(policy["series"], "arrived", window)
    _, good, _ = part(policy["series"], "kept", window)
    with np.errstate(invalid="ignore", divide="ignore"):
        share = np.where(arrived > 0, 100.0 * good / arrived, np.nan)
    look, hover = {"color": draw.colours.series[3], "width": 2}, "%{y:.2f} % within the limits"
    _add_steps(draw, "Within the limits", (seconds, share, step), hour, look, hover)
    target = 100.0 * answer["attainment_wanted"]
    low = max(0.0, 1.15 * float(np.nanmin(share, initial=target)) - 16.0)
    # below the line: above it stands the curve
    draw.limit(f"wanted {target:g} %", y=target, position="bottom right")
    up = {"title": "Within limits (%)", "rangemode": "normal", "range": [low, 101.0]}
    return _over_week(draw, window, up, **BARE)


def money_so_far(answer: Json, policy: Json, window: Window, *, dark: bool = False) -> go.Figure:
    """Cost of a policy and of both bounds since the load began; GPU-hours without a price.

    Replicas that drain and nodes that are kept are paid too: their part is laid on every interval
    in proportion to the replicas of it.
    """
    draw, hour = Drawing(dark=dark), answer["load"]["start_hour"]
    colours, bounds = draw.colours, answer["bounds"]
    field, sign = ("usd", "$") if policy["usd"] is not None else ("gpu_hours", "")
    rows: Sequence[tuple[str, Json, str, str]] = (
        ("Replicas for the peak", bounds["always_peak"], colours.series[1], "dash"),
        ("This policy", policy, colours.series[0], "solid"),
        ("Clairvoyant", bounds["clairvoyant"], colours.muted, "dot"),
    )
    for label, row, colour, dash in rows:
        seconds, paid = so_far(row["series"], row[field], window)
        hover = f"{label.lower()} {sign}%{{y:,.3s}}"
        draw.curve(label, week_dates(seconds, hour), paid, {"color": colour, "dash": dash}, hover)
    up = {"title": "$ so far" if sign else "GPU-hours so far"}
    return _over_week(draw, window, up, showlegend=True)


def so_far(series: Json, total: float, window: Window) -> tuple[Float, Float]:
    """Ends of intervals in a window, and the part of a total that was spent until each."""
    step = float(series["interval_s"])
    running = np.add(series["ready"], series["starting"]).astype(np.float64)
    spent = np.concatenate([[0.0], np.cumsum(running)])
    paid = spent / spent[-1] * total if spent[-1] else spent
    first, last = (int(np.clip(round(end / step), 0, len(running))) for end in window)
    stride = max(1, (last - first) // MOST_POINTS)
    shown = np.append(np.arange(first, last, stride), last)
    return shown * step, paid[shown]
