"""The largest load that a deployment carries within the limits, searched.

Loads are scanned on a geometric grid, and the gap behind the last one that holds again, until it is
closed. More load never shortens a time to first token, a time per token or a queue (each is a sum
of terms that do not fall with the requests that share a step), and never raises what a token costs,
so that loads that hold are one range. Where a scan shows that they are not, because the engine's
limits or a target throughput step in, the range that holds the workload's own load counts, else the
longest, and ``monotone`` is false.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from recipe_core.base.arrays import Bool, Float, Int
from recipe_core.plans.limits import without_percentile
from recipe_core.plans.load import bisect_loads
from recipe_core.plans.plan import Plan
from recipe_core.plans.plans import plan_cases
from recipe_core.request.schema import PlanRequest
from recipe_core.request.serving_workload import LOADS

# Loads of one scan.
POINTS = 129
# The largest load that is looked at, and the most requests of a queue.
LARGEST, MOST_QUEUED = float(1 << 20), 1e12
# The smallest arrival rate that is looked at, in requests per second and replica.
LEAST_RATE = 1e-3
# Share of a rate within which it is known.
CLOSE = 1e-3
# What ends a load that the limits would allow: not all of it is held at once.
QUEUE = "queue"


@dataclass(frozen=True, slots=True)
class LargestLoad:
    """The largest load within the limits, held at once; None where not even the smallest holds.

    ``field``: the workload's, which gives its unit. ``bounded``: whether anything ends it.
    ``limited_by``: codes of the rules that the next larger load breaks, ``queue`` where some of it
    would wait. ``monotone``: whether the loads that hold are one range.
    """

    value: float | None
    field: str
    bounded: bool
    limited_by: tuple[str, ...]
    monotone: bool

    def to_json(self) -> dict[str, Any]:
        return {
            "value": self.value,
            "field": self.field,
            "bounded": self.bounded,
            "limited_by": list(self.limited_by),
            "monotone": self.monotone,
        }


def largest_load(plan: Plan, row: int) -> LargestLoad:
    """The largest load that the split of a row carries within the limits of its plan.

    A limit at a percentile is held against simulated requests, for the loads of the last scans.

    Args:
        plan: of serving.
        row: one that runs.
    """
    workload = plan.problem.workload
    field, integral = LOADS[workload.mode], workload.mode != "open"
    now = float(getattr(workload, field))
    low, high = (1.0 if integral else LEAST_RATE), LARGEST
    if workload.mode == "offline":
        high = MOST_QUEUED
    limits = plan.request.objective.limits
    mean = without_percentile(plan.request)
    holds, codes, loads = _judge_loads(mean, plan, row, _load_grid(low, high, integral))
    monotone = _is_one_range(holds)
    start, end = _range_of_load(loads, holds, now)
    if start is None:
        return LargestLoad(None, field, True, codes[0], monotone)
    if end == len(loads) - 1:
        return LargestLoad(None, field, False, (), monotone)
    low, high, codes_at = loads[end], loads[end + 1], codes[end + 1]
    while not _is_close(low, high, integral):
        holds, codes, loads = _judge_loads(mean, plan, row, _load_grid(low, high, integral))
        monotone &= _is_one_range(holds)
        last = int(np.argmin(holds)) - 1 if not holds.all() else len(loads) - 1
        last = max(last, 0)
        low, high, codes_at = loads[last], loads[last + 1], codes[last + 1]
    if limits.percentile is not None:
        low, codes_at = _bisect_simulated_load(plan, row, low, integral, codes_at)
    value = float(low) if np.isfinite(low) else None
    return LargestLoad(value, field, True, codes_at, monotone)


def _load_grid(low: float, high: float, integral: bool) -> Float:
    loads = np.geomspace(low, high, POINTS)
    return np.unique(np.round(loads)) if integral else loads


def _is_close(low: float, high: float, integral: bool) -> bool:
    return high - low <= 1 if integral else high <= low * (1 + CLOSE)


def _judge_loads(
    request: PlanRequest, plan: Plan, row: int, loads: Float
) -> tuple[Bool, list[tuple[str, ...]], Float]:
    """Which of some loads hold, and the codes of the rules that each breaks."""
    block, i = plan.at(row)
    cases = block.cases.take(np.full(len(loads), i))
    problem = replace(plan.problem, request=request)
    judged = plan_cases(problem, block.setting, replace(cases, load=loads))
    rules = {**judged.rules, QUEUE: judged.queues}
    rules["memory"] = rules.get("memory", np.zeros(len(judged), dtype=np.bool_)) | judged.uncertain
    codes = [tuple(code for code, broken in rules.items() if broken[k]) for k in range(len(judged))]
    return judged.holds, codes, loads


def _is_one_range(holds: Bool) -> bool:
    return int(np.abs(np.diff(np.r_[0, holds.astype(int), 0])).sum()) <= 2


def _range_of_load(loads: Float, holds: Bool, now: float) -> tuple[int | None, int]:
    """First and last place of the range that holds the load of now, else of the longest one."""
    edges = np.flatnonzero(np.diff(np.r_[0, holds.astype(int), 0]))
    ranges = list(zip(edges[::2].tolist(), (edges[1::2] - 1).tolist(), strict=True))
    if not ranges:
        return None, 0
    nearest = int(np.argmin(np.abs(np.log(loads / now))))
    for start, end in ranges:
        if start <= nearest <= end:
            return start, end
    return max(ranges, key=lambda ends: ends[1] - ends[0])


def _bisect_simulated_load(
    plan: Plan, row: int, mean_load: float, integral: bool, codes: tuple[str, ...]
) -> tuple[float, tuple[str, ...]]:
    """The largest load whose simulated percentile holds: bisected below the one of the means."""
    broken = {float("inf"): codes}

    def keeps(_places: Int, loads: Float) -> Bool:
        holds, ends, _ = _judge_loads(plan.request, plan, row, loads)
        broken.update(
            (load, end)
            for load, within_limits, end in zip(loads.tolist(), holds, ends, strict=True)
            if not within_limits
        )
        return holds

    [load] = bisect_loads(keeps, np.array([mean_load]), whole_requests=integral)
    return float(load), broken[min(broken)]
