"""Limits to choose from: round steps of each, and how many splits keep one."""

from __future__ import annotations

import math

import numpy as np

from recipe_core.base.arrays import Bool
from recipe_core.plans.limits import LIMITS
from recipe_core.plans.plan import Plan
from recipe_core.request.objective import TIME_LIMITS

_STEPS = (1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 5.0, 6.0, 7.0, 8.0)
"""Round numbers in a decade."""

_ENDS = {
    "ttft_ms": (50.0, 60e3),
    "tpot_ms": (2.0, 500.0),
    "request_latency_ms": (200.0, 600e3),
    "usd_per_hour": (1.0, 10e3),
    "usd_per_million_output_tokens": (0.01, 100.0),
    "wall_hours": (1.0, 5000.0),
    "usd": (10.0, 50e6),
    "joules_per_token": (0.01, 100.0),
    "watts": (500.0, 5e6),
    "output_tokens_per_s_at_least": (10.0, 1e6),
}
"""The first and the last step of each limit, in its unit: what people ask for. Any other number can
be typed."""

_SHARES = {"accuracy_recovery": (0.9, 0.95, 0.97, 0.98, 0.985, 0.99, 0.995, 0.999, 1.0)}
"""Steps of limits on shares, of which those close to 1 matter."""

_MAY_BE_UNKNOWN = frozenset(
    rule.name for rule in LIMITS.values() if rule.money or rule.unknown is not None
)


def limit_steps(name: str, *, devices: int, stated: float | None = None) -> tuple[float, ...]:
    """The round steps of a limit in its unit, ascending; the ``stated`` one is always among them.

    They depend neither on the splits nor on other limits, so that a slider over them stays what it
    is while it is moved. Those of a count of devices are powers of two up to ``devices``.
    """
    if name == "gpus":
        powers = [float(1 << n) for n in range(devices.bit_length())]
        steps = {*powers, float(devices)}
    elif name in _SHARES:
        steps = set(_SHARES[name])
    else:
        low, high = _ENDS[name]
        decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        every = (float(f"{step * 10.0**decade:.6g}") for decade in decades for step in _STEPS)
        steps = {step for step in every if low <= step <= high}
    return tuple(sorted(steps | ({float(stated)} if stated is not None else set())))


def keeping(plan: Plan, name: str, bound: float | None) -> int:
    """How many splits keep a bound on a measure and all other limits; None is no bound.

    Where the load is searched it follows the limits on time: then those splits keep another bound
    on a time than the plan's that keep it at their smallest load.
    """
    measure = plan.measures[name]
    stated = getattr(plan.request.objective.limits, measure.limit or "", None)
    if measure.limit in TIME_LIMITS and bound != stated:
        plan = plan.least_loaded()
    others = _keeping_others(plan, name)
    if bound is None:
        return int(others.sum())
    values = plan.bounded(name) / measure.limit_factor
    kept = values >= bound if measure.more_is_better else values <= bound
    return int((others & np.isfinite(values) & kept).sum())


def _keeping_others(plan: Plan, name: str) -> Bool:
    """Rows that run and keep every stated limit but this one."""
    keep = plan.runs.copy()
    for other, measure in plan.measures.items():
        bound = (
            None if measure.limit is None else getattr(plan.request.objective.limits, measure.limit)
        )
        if bound is None or other == name:
            continue
        values = plan.bounded(other) / measure.limit_factor
        if measure.limit in _MAY_BE_UNKNOWN:  # what nobody knows keeps no limit
            keep &= np.isfinite(values)
        with np.errstate(invalid="ignore"):
            keep &= ~(values < bound) if measure.more_is_better else ~(values > bound)
    return keep
