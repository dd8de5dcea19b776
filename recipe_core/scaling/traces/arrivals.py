"""Requests of a load, one by one: when they come and how long they are."""

from __future__ import annotations

import numpy as np

from recipe_core.base.arrays import Float, Int
from recipe_core.base.errors import InputError
from recipe_core.scaling.traces.load import Load
from recipe_core.scaling.traces.trace import Trace

MOST = 50_000_000


def draw_requests(load: Load, seed: int = 0) -> Trace:
    """Requests of a load; the same seed gives the same bits.

    Gaps are gamma distributed with the load's coefficient of variation, in a time in which one
    request is expected per unit: it runs as fast as the rate is high, so every interval has its
    rate on average, whatever the gaps. The first gap is drawn as for a process that runs already
    (its density is the chance of a longer gap), so that the expected number of requests up to any
    time is the integral of the rates. Lengths are drawn from the load's points, independent of
    the gaps.

    ``arrival_s`` counts from the start of the load, not from the first request.

    Raises:
        InputError: when more than 50 million requests are expected.
    """
    if load.requests > MOST:
        raise InputError(
            f"the load has {load.requests:,.0f} requests; one by one the limit is {MOST:,}.",
            field="workload.over_time",
            hint="Take fewer days or a lower rate.",
        )
    random = np.random.default_rng(seed)
    expected = np.concatenate(([0.0], np.cumsum(load.rates * load.interval_s)))
    ticks = _draw_ticks(float(expected[-1]), load.burstiness, random)
    edges = np.arange(len(load.rates) + 1, dtype=np.float64) * load.interval_s
    arrival = _arrival_seconds(ticks, expected, edges)
    drawn = _draw_points(load.lengths.weight, len(arrival), random)
    return Trace(
        arrival_s=arrival,
        input_tokens=np.rint(load.lengths.input_tokens).astype(np.int64)[drawn],
        output_tokens=np.rint(load.lengths.output_tokens).astype(np.int64)[drawn],
        source=load.source,
    )


def _draw_ticks(total: float, burstiness: float, random: np.random.Generator) -> Float:
    """Times from 0 to below ``total`` of a stationary renewal process of rate 1."""
    shape, scale = burstiness**-2, burstiness**2
    # The gap that time 0 falls into is drawn by its length, and 0 lies anywhere in it.
    now = float(random.gamma(shape + 1, scale) * random.random())
    parts = [np.asarray([now])]
    while now < total:
        remaining = total - now
        count = int(remaining + 4 * burstiness * remaining**0.5) + 16
        times = now + np.cumsum(random.gamma(shape, scale, count))
        parts.append(times)
        now = float(times[-1])
    ticks = np.concatenate(parts)
    return ticks[ticks < total]


def _arrival_seconds(ticks: Float, expected: Float, edges: Float) -> Float:
    """Seconds at which so many requests were expected; nothing comes in intervals of rate 0."""
    place = np.searchsorted(expected, ticks, side="right") - 1
    share = (ticks - expected[place]) / (expected[place + 1] - expected[place])
    return np.asarray(edges[place] + share * (edges[1] - edges[0]), dtype=np.float64)


def _draw_points(weight: Float, count: int, random: np.random.Generator) -> Int:
    ends = np.cumsum(weight)
    return np.searchsorted(ends[:-1] / ends[-1], random.random(count), side="right")
