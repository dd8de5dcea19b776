"""Splits that could ever be, and how many of them keep a limit.

Those are legal that the model's shapes, the batch and the nodes divide by.
"""

from __future__ import annotations

import numpy as np

from recipe_core.base.arrays import Bool, Float
from recipe_core.estimates.serving.accuracy import COLUMN as ACCURACY
from recipe_core.plans.limits import bounded_figures
from recipe_core.plans.plan import Plan
from recipe_core.plans.plans import plan_least_loads
from recipe_core.plans.table import PlanTable
from recipe_core.request.metrics import limits_by_name

# Codes of refusals of which no load, limit, format, device or price is a cure: numbers that do not
# divide, and pipelines that a shorter one equals.
NEVER = frozenset(
    (
        *("heads", "kv-heads", "output-groups", "hidden", "width", "block", "layers"),
        *("no-experts", "experts", "expert-ranks", "ep-divides", "cp-divides"),
        *("idle-stages", "uneven-nodes", "virtual-stages", "schedule", "shard"),
        *("packing", "global-batch", "sequence"),
    )
)


def legal_rows(plan: PlanTable) -> Bool:
    """Rows that no rule of divisibility refuses; nobody could choose the others."""
    out = np.ones(len(plan), dtype=np.bool_)
    for code, broken in plan.rules.items():
        if code in NEVER:
            out &= ~broken
    return out


def count_keeping(plan: Plan, name: str, bound: float | None) -> int:
    """Return how many splits keep a bound on a metric (in its limit's unit) and all other limits.

    ``bound``: None is no bound. Where the load is searched it follows the limits on time: then
    those splits keep another bound on a time than the plan's that keep it at their smallest load.
    """
    limit = limits_by_name()[plan.measures[name].limit or ""]
    if limit.timed and bound != getattr(plan.request.objective.limits, limit.name):
        plan = plan_least_loads(plan)
    keeps_rest = _keeps_other_limits(plan, name)
    if bound is None:
        return int(keeps_rest.sum())
    values, bound = _bounded_values(plan, name), bound / limit.factor
    keep = values >= bound if limit.at_least else values <= bound
    return int((keeps_rest & np.isfinite(values) & keep).sum())


def _keeps_other_limits(plan: Plan, name: str) -> Bool:
    """Rows that run and keep every stated limit but that on a metric."""
    keep = plan.runs.copy()
    for measure, metric in plan.measures.items():
        if metric.limit is None or measure == name:
            continue
        limit = limits_by_name()[metric.limit]
        bound = limit.bound(plan.request.objective.limits)
        if bound is None:
            continue
        values = _bounded_values(plan, measure)
        if limit.priced or limit.column == ACCURACY:  # what nobody knows keeps no limit
            keep &= np.isfinite(values)
        with np.errstate(invalid="ignore"):
            keep &= ~(values < bound) if limit.at_least else ~(values > bound)
    return keep


def _bounded_values(plan: Plan, name: str) -> Float:
    """Return what a limit on a metric bounds, SI: the metric, or a simulated percentile of it."""
    limit = plan.measures[name].limit
    return plan.raw(name) if limit is None else bounded_figures(plan, limits_by_name()[limit].code)
