"""One split at other loads and prices: more requests, idle devices, more devices."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from recipe_core.base.arrays import Bool, Float
from recipe_core.estimates.serving.cost import SECONDS_PER_HOUR
from recipe_core.estimates.serving.estimates import estimate_serving
from recipe_core.plans.plan import Plan

LOADS_DRAWN = 13
# A load is followed from a 16th of the request's to 16 times as much.
SPAN = 16.0


@dataclass(frozen=True, slots=True)
class LoadCurve:
    """A split over its load, one number per load; ``runs`` where it can serve it.

    Times in seconds, throughput of the deployment.
    """

    load: Float
    tpot_s: Float
    ttft_s: Float
    output_tokens_per_s: Float
    per_gpu: Float
    runs: Bool


def load_curve(plan: Plan, row: int) -> LoadCurve:
    """The estimate of a row's split under loads around the request's, in one call."""
    block, i = plan.at(row)
    request_load = float(block.cases.load[i])
    loads = request_load * np.geomspace(1 / SPAN, SPAN, LOADS_DRAWN)
    if block.setting.mode != "open":
        loads = np.unique(np.maximum(np.round(loads), 1.0))
    return _curve(plan, row, loads)


def _curve(plan: Plan, row: int, loads: Float) -> LoadCurve:
    """The estimate of a row's split under each load."""
    block, i = plan.at(row)
    cases = block.cases.take(np.full(len(loads), i))
    estimates = estimate_serving(block.setting, replace(cases, load=loads))
    s = estimates.serving
    return LoadCurve(
        loads,
        s.tpot_s,
        s.ttft_s,
        s.output_tokens_per_s,
        s.output_tokens_per_s / cases.devices,
        estimates.feasible,
    )


@dataclass(frozen=True, slots=True)
class Crossing:
    """The largest load at which a split keeps a limit, and its output in tokens per second there.

    ``within``: it keeps the limit at every load that was looked at, ``load`` being the largest.
    """

    load: float
    tpot_s: float
    output_tokens_per_s: float
    per_gpu: float
    within: bool = False


LOADS_A_ROUND = 9
# How near, as a factor, two rates of arrival are whose difference no longer matters.
CLOSE = 1.01


def crossing(plan: Plan, row: int, limit_s: float) -> Crossing | None:
    """The load at which a row's time per output token crosses ``limit_s`` as the load grows.

    Within the span of `load_curve`; None where the least load breaks the limit already.
    """
    block, i = plan.at(row)
    request_load, counted = float(block.cases.load[i]), block.setting.mode != "open"
    low, high = request_load / SPAN, request_load * SPAN
    if counted:
        low, high = max(round(low), 1.0), max(round(high), 1.0)
    best: Crossing | None = None
    while True:
        loads = np.geomspace(low, high, LOADS_A_ROUND)
        loads = np.unique(np.round(loads)) if counted else loads
        curve = _curve(plan, row, loads)
        keeps = curve.runs & np.isfinite(curve.tpot_s) & (curve.tpot_s <= limit_s)
        breaks = np.flatnonzero(~keeps)
        last = int(breaks[0]) - 1 if len(breaks) else len(loads) - 1
        if last < 0:
            return best
        best = Crossing(
            float(curve.load[last]),
            float(curve.tpot_s[last]),
            float(curve.output_tokens_per_s[last]),
            float(curve.per_gpu[last]),
            within=not len(breaks) and best is None,
        )
        if not len(breaks):
            return best
        low, high = float(loads[last]), float(loads[last + 1])
        if high - low <= 1 if counted else high / low <= CLOSE:
            return best


def usd_per_million_by_use(usd_per_hour: float, tokens_per_s: float, use: Float) -> Float:
    """Cost per million tokens when a deployment is busy for a share ``use`` of its paid hours.

    ``usd_per_hour / (3600 · tokens_per_s · use) · 1e6``. Left out: requests are faster below full
    load.
    """
    out: Float = usd_per_hour / (SECONDS_PER_HOUR * tokens_per_s * use) * 1e6
    return out


@dataclass(frozen=True, slots=True)
class Scaling:
    """The best split on each number of devices: tokens/s estimated, and with linear scaling."""

    gpus: Float
    tokens_per_s: Float
    ideal_tokens_per_s: Float
    rows: tuple[int, ...]


def scaling(plan: Plan) -> Scaling:
    """The best feasible split of each number of devices in the plan, by tokens/s."""
    gpus, rate, feasible = plan.raw("gpus"), plan.raw("output"), plan.feasible
    best: dict[int, int] = {}
    for count in np.unique(gpus[feasible]):
        candidates = np.flatnonzero(feasible & (gpus == count))
        best[int(count)] = int(candidates[np.argmax(rate[candidates])])
    rows = tuple(best.values())
    counts, rates = gpus[list(rows)], rate[list(rows)]
    ideal = counts * (rates[0] / counts[0]) if rows else counts
    return Scaling(counts, rates, ideal, rows)
