"""One split at other loads and prices: more requests, idle devices, more devices."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from recipe_core.base.arrays import Bool, Float, Int
from recipe_core.base.errors import InputError
from recipe_core.estimates.serving.cost import SECONDS_PER_HOUR
from recipe_core.estimates.serving.estimates import estimate_serving
from recipe_core.plans.plan import Plan
from recipe_core.plans.plan_json import cluster_title
from recipe_core.plans.rank import pareto_front
from recipe_core.request.objective import BY_ESTIMATE
from recipe_core.request.schema import PlanRequest
from recipe_core.request.serving_workload import LOADS

# Loads are followed from one request up to so many.
MOST_IN_FLIGHT = 1024
# A rate of requests is followed from a 32nd of the request's to 32 times as much.
FRONTIER_SPAN = 32.0
# Loads per doubling, and how many rows they may make of a plan's: fewer where it is large.
STEPS = ((4, 6_000), (2, 20_000), (1, 60_000), (0.5, None))
# Tokens per second of one user at which devices are compared.
INTERACTIVITIES = (10.0, 20.0, 30.0, 50.0, 100.0, 200.0)


@dataclass(frozen=True, slots=True)
class Envelope:
    """The best that the splits of one cluster reach, from the lowest interactivity up.

    ``interactivity``: tokens/s that one user sees. ``per_gpu``: output tokens/s over the devices
    used, which falls. ``rows`` of the frontier's plan.
    """

    title: str
    interactivity: Float
    per_gpu: Float
    rows: Int

    def at(self, interactivity: float) -> int | None:
        """The place of the most output per device at no less than an interactivity."""
        place = int(np.searchsorted(self.interactivity, interactivity, side="left"))
        return place if place < len(self.rows) else None


@dataclass(frozen=True, slots=True)
class Frontier:
    """The envelopes of a plan's clusters, the request's first; those that run nothing are left out.

    ``plan`` has a row for every split and load.
    """

    plan: Plan
    loads: Float
    envelopes: tuple[Envelope, ...]


def evaluate_frontier(plan: Plan, loads: Float | None = None, *, money: bool = False) -> Frontier:
    """Every split of a plan under many loads: 1 to 1,024 in flight or in a batch, or rates.

    Splits that hold the load count, whether or not they keep limits that depend on it; limits on
    devices and on the price of an hour are kept. ``money``: the best output per dollar counts in
    place of that per device.

    Raises:
        InputError: for ``mode: offline``, where a queue is worked off and no load is held.
        LimitError: for more candidates than the budget allows.
    """
    wide = plan.replan(under_loads(plan.request, _frontier_loads(plan) if loads is None else loads))
    counted = wide.runs & ~wide.queues & ~wide.uncertain & _within_means(wide)
    clusters = wide.clusters_of_rows
    x, y = wide.columns["tokens_per_s_per_user"], wide.columns["output_tokens_per_s_per_gpu"]
    height = 1 / wide.columns["usd_per_million_output_tokens"] if money else y
    counted &= np.isfinite(x) & np.isfinite(height)
    envelopes = []
    for cluster in np.unique(clusters[counted]).tolist():
        rows = np.flatnonzero(pareto_front(-x, -height, among=counted & (clusters == cluster)))
        rows = rows[np.argsort(x[rows], kind="stable")]
        envelopes.append(Envelope(cluster_title(wide, int(rows[0])), x[rows], y[rows], rows))
    return Frontier(wide, np.unique(wide.columns["load"]), tuple(envelopes))


def under_loads(request: PlanRequest, loads: Float) -> PlanRequest:
    """The request under each of some loads, without percentiles and confidence.

    Raises:
        InputError: for ``mode: offline``.
    """
    workload, objective = request.workload, request.objective
    field = LOADS[workload.mode]  # type: ignore[union-attr]  # of serving
    if field == "requests":
        raise InputError(
            "mode offline works off a queue, which has no load to vary.",
            field="workload.mode",
            hint="Use mode: closed.",
        )
    values = loads.tolist() if field == "request_rate" else np.round(loads).astype(int).tolist()
    limits = objective.limits.model_copy(update={"percentile": None})
    return request.model_copy(
        update={
            "workload": workload.model_copy(update={field: values[0]}),
            "options": request.options.model_copy(update={"loads": tuple(values[1:])}),
            "objective": objective.model_copy(update={"limits": limits, "confidence": BY_ESTIMATE}),
            "candidate": None,
        }
    )


def _frontier_loads(plan: Plan) -> Float:
    """The loads to follow, closer where the plan has few splits."""
    loads_now = max(len(np.unique(plan.columns["load"])), 1)
    splits = len(plan) / loads_now
    doublings = np.log2(MOST_IN_FLIGHT)
    rates = plan.problem.workload.mode == "open"
    if rates:
        doublings = 2 * np.log2(FRONTIER_SPAN)
    density = next(n for n, rows in STEPS if rows is None or splits * doublings * n <= rows)
    steps = np.arange(round(doublings * density) + 1) / density
    if rates:
        return np.asarray(
            float(plan.problem.workload.request_rate or 1.0) / FRONTIER_SPAN * 2.0**steps
        )
    return np.unique(np.round(2.0**steps))


def _within_means(plan: Plan) -> Bool:
    """Rows within the limits that hold whatever the load is."""
    limits, inside = plan.request.objective.limits, np.ones(len(plan), dtype=np.bool_)
    for limit, column in ((limits.gpus, "gpus"), (limits.usd_per_hour, "usd_per_hour")):
        if limit is not None:
            inside &= np.asarray(plan.columns[column] <= limit)
    return inside


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
    """The best split of each number of devices in the plan, by tokens/s.

    Of those that surely start, as the ranking; of all feasible ones where none does.
    """
    gpus, rate = plan.raw("gpus"), plan.raw("output")
    sure = plan.feasible & ~plan.uncertain
    judged = sure if sure.any() else plan.feasible
    best: dict[int, int] = {}
    for count in np.unique(gpus[judged]):
        candidates = np.flatnonzero(judged & (gpus == count))
        best[int(count)] = int(candidates[np.argmax(rate[candidates])])
    rows = tuple(best.values())
    counts, rates = gpus[list(rows)], rate[list(rows)]
    ideal = counts * (rates[0] / counts[0]) if rows else counts
    return Scaling(counts, rates, ideal, rows)
