"""One policy through the time of a load: capacity, replicas, first token, share, cost.

Functions of ``OverTimeAnswer.to_json`` and one of its policies; ``window``: seconds from and to.
The horizontal axis is a time of the week, as dates of a week that begins on a Monday.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

from recipe_core.base.arrays import Float
from recipe_core.base.units import significant
from recipe_core.request.over_time import DAY_S, HOUR_S, WEEK_S
from recipe_core.views.charts.style import FRAME, PATTERNS, palette

Json = Mapping[str, Any]
Window = tuple[float, float]
MONDAY = np.datetime64("2024-01-01T00:00:00", "ms")
"""Any Monday: second 0 of a load that starts at hour 0 of the week."""
MOST_POINTS = 1_500
"""Points of a curve; more are drawn as means of several."""
HEIGHT_PX = 270
STEPS_S = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60, 120, 300, 600, 1800, 3600)
"""Ticks of an axis of times."""


# --- series --------------------------------------------------------------------------------------


def times(seconds: Float, start_hour: float) -> list[str]:
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
        whole = np.full(-(-len(values) // together) * together, np.nan)
        whole[: len(values)] = values
        blocks = whole.reshape(-1, together)
        known = np.isfinite(blocks).sum(axis=1)
        total = np.nansum(blocks, axis=1)
        counted = name in ("arrived", "kept")
        values = total if counted else np.where(known, total / np.maximum(known, 1), np.nan)
    seconds = np.asarray(first * step + np.arange(len(values)) * step * together, dtype=np.float64)
    return seconds, np.asarray(values, dtype=np.float64), step * together


def stepped(seconds: Float, values: Float, step: float, start_hour: float) -> dict[str, Any]:
    """A value for each interval as steps, the last one to its end."""
    ends = np.append(seconds, seconds[-1] + step) if len(seconds) else seconds
    held = np.append(values, values[-1]) if len(values) else values
    known = [None if np.isnan(value) else float(value) for value in held]
    return {"x": times(ends, start_hour), "y": known, "line_shape": "hv", "mode": "lines"}


def over_week(figure: go.Figure, window: Window, **layout: Any) -> go.Figure:
    """The axes that all of these figures have."""
    days = (window[1] - window[0]) / DAY_S
    figure.update_layout(height=HEIGHT_PX, hovermode="x unified", **{**FRAME, **layout})
    late = window[1] > WEEK_S + DAY_S
    figure.update_xaxes(
        title=None,
        type="date",
        showgrid=True,
        tickformat="%H:%M" if days <= 1.5 else "%a%n%-d" if late else "%a",
        hoverformat="%a %H:%M",
        ticklabelmode="instant" if days <= 1.5 else "period",
        dtick=None if days <= 1.5 or days > 21 else DAY_S * 1e3,
    )
    figure.update_yaxes(rangemode="tozero", zeroline=False)
    return figure


# --- figures -------------------------------------------------------------------------------------


def load_and_capacity(
    answer: Json, policy: Json, window: Window, *, dark: bool = False
) -> go.Figure:
    """Requests per second that arrive, and what the replicas that are ready serve in limits."""
    colours, hour = palette(dark), answer["load"]["start_hour"]
    seconds, arrived, step = part(policy["series"], "arrived", window)
    _, ready, _ = part(policy["series"], "ready", window)
    most = answer["service"]["requests_per_s"]
    figure = go.Figure()
    figure.add_scatter(
        **stepped(seconds, arrived / step, step, hour),
        name="Load",
        fill="tozeroy",
        line={"color": colours.muted, "width": 1},
        hovertemplate="load %{y:.3g}/s<extra></extra>",
    )
    figure.add_scatter(
        **stepped(seconds, ready * most, step, hour),
        name="Capacity within the limits",
        line={"color": colours.series[0], "width": 2},
        hovertemplate="capacity %{y:.3g}/s<extra></extra>",
    )
    figure.update_yaxes(title="Requests/s")
    return over_week(figure, window, showlegend=True)


def replicas(answer: Json, policy: Json, window: Window, *, dark: bool = False) -> go.Figure:
    """Replicas that answer and that start, one on the other, and how many the policy wants."""
    colours, hour = palette(dark), answer["load"]["start_hour"]
    figure = go.Figure()
    for n, (name, label) in enumerate((("ready", "Ready"), ("starting", "Starting"))):
        seconds, values, step = part(policy["series"], name, window)
        hatched = {"fillpattern": {"shape": PATTERNS[1], "fgcolor": colours.series[n]}} if n else {}
        figure.add_scatter(
            **stepped(seconds, values, step, hour),
            name=label,
            stackgroup="there",
            line={"color": colours.series[n], "width": 1},
            hovertemplate=f"{label.lower()} %{{y:.3g}}<extra></extra>",
            **hatched,
        )
    seconds, wanted, step = part(policy["series"], "wanted", window)
    figure.add_scatter(
        **stepped(seconds, wanted, step, hour),
        name="Wanted",
        line={"color": colours.ink, "width": 1.5, "dash": "dot"},
        hovertemplate="wanted %{y:.3g}<extra></extra>",
    )
    figure.update_yaxes(title="Replicas")
    legend = {**FRAME["legend"], "traceorder": "normal"}
    return over_week(figure, window, showlegend=True, legend=legend)


def first_tokens(answer: Json, policy: Json, window: Window, *, dark: bool = False) -> go.Figure:
    """Mean time to first token, with its limit."""
    colours, hour = palette(dark), answer["load"]["start_hour"]
    seconds, values, step = part(policy["series"], "ttft_s", window)
    limit = answer["limits"].get("ttft_s")
    figure = go.Figure()
    figure.add_scatter(
        **stepped(seconds, values, step, hour),
        name="First token",
        line={"color": colours.series[2], "width": 2},
        hovertemplate="first token %{y:.3g} s<extra></extra>",
    )
    known = [float(value) for value in values if np.isfinite(value) and value > 0]
    over_week(figure, window, showlegend=False, margin={**FRAME["margin"], "t": 12})
    shown = [*known, *([limit] if limit else [])] or [1.0]
    low, high = min(shown) / 1.5, max(shown) * 1.8
    ticks = [tick for tick in STEPS_S if low <= tick <= high]
    figure.update_yaxes(
        title="First token (s)",
        type="log",
        range=[float(np.log10(low)), float(np.log10(high))],
        tickvals=ticks,
        ticktext=[f"{tick:g}" for tick in ticks],
    )
    if limit:
        figure.add_hline(y=limit, line={"dash": "dash", "color": colours.alarm, "width": 2})
        figure.add_annotation(  # one of ``add_hline`` takes no logarithm of its place
            x=1,
            xref="paper",
            xanchor="right",
            y=float(np.log10(limit)),
            yanchor="bottom",
            showarrow=False,
            text=f"limit {significant(limit)} s",
            font={"color": colours.alarm},
        )
    return figure


def within_limits(answer: Json, policy: Json, window: Window, *, dark: bool = False) -> go.Figure:
    """Share of the requests of each interval that kept the limits, and the share that is wanted."""
    colours, hour = palette(dark), answer["load"]["start_hour"]
    seconds, arrived, step = part(policy["series"], "arrived", window)
    _, kept, _ = part(policy["series"], "kept", window)
    with np.errstate(invalid="ignore", divide="ignore"):
        share = np.where(arrived > 0, 100.0 * kept / arrived, np.nan)
    figure = go.Figure()
    figure.add_scatter(
        **stepped(seconds, share, step, hour),
        name="Within the limits",
        line={"color": colours.series[3], "width": 2},
        hovertemplate="%{y:.2f} % within the limits<extra></extra>",
    )
    wanted = 100.0 * answer["attainment_wanted"]
    over_week(figure, window, showlegend=False, margin={**FRAME["margin"], "t": 12})
    least = float(np.nanmin(share, initial=wanted))
    figure.update_yaxes(
        title="Within limits (%)", rangemode="normal", range=[max(0.0, 1.15 * least - 16.0), 101.0]
    )
    # below the line: above it stands the curve
    figure.add_hline(
        y=wanted,
        line={"dash": "dash", "color": colours.alarm, "width": 2},
        annotation={"text": f"wanted {wanted:g} %", "font": {"color": colours.alarm}},
        annotation_position="bottom right",
    )
    return figure


def money_so_far(answer: Json, policy: Json, window: Window, *, dark: bool = False) -> go.Figure:
    """What a policy and both bounds have cost since the load began; GPU-hours without a price.

    Replicas that drain and nodes that are kept are paid too: their part is laid on every interval
    in proportion to the replicas that are there.
    """
    colours, hour = palette(dark), answer["load"]["start_hour"]
    priced = policy["usd"] is not None
    rows: Sequence[tuple[str, Json, dict[str, Any]]] = (
        ("Replicas for the peak", answer["bounds"]["always_peak"], {"dash": "dash"}),
        ("This policy", policy, {"dash": "solid"}),
        ("Clairvoyant", answer["bounds"]["clairvoyant"], {"dash": "dot"}),
    )
    figure = go.Figure()
    for n, (label, one, look) in enumerate(rows):
        seconds, paid = so_far(one["series"], one["usd"] if priced else one["gpu_hours"], window)
        figure.add_scatter(
            x=times(seconds, hour),
            y=paid,
            mode="lines",
            name=label,
            line={"color": (colours.series[1], colours.series[0], colours.muted)[n], **look},
            hovertemplate=f"{label.lower()} {'$' if priced else ''}%{{y:,.3s}}<extra></extra>",
        )
    figure.update_yaxes(title="$ so far" if priced else "GPU-hours so far")
    return over_week(figure, window, showlegend=True)


def so_far(series: Json, total: float, window: Window) -> tuple[Float, Float]:
    """Ends of intervals in a window, and the part of a total that was spent until each."""
    step = float(series["interval_s"])
    there = np.add(series["ready"], series["starting"]).astype(np.float64)
    spent = np.concatenate([[0.0], np.cumsum(there)])
    paid = spent / spent[-1] * total if spent[-1] else spent
    first, last = (int(np.clip(round(end / step), 0, len(there))) for end in window)
    every = max(1, (last - first) // MOST_POINTS)
    shown = np.append(np.arange(first, last, every), last)
    return shown * step, paid[shown]
