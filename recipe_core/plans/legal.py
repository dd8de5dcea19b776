"""Splits that could ever be, and how many of them keep a limit.

Those are legal that the model's shapes, the batch and the nodes divide by.
"""

from __future__ import annotations

import numpy as np

from recipe_core.base.arrays import Bool
from recipe_core.plans.limits import LIMITS, breaks_limit
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
    moved, limits = limits_by_name()[plan.measures[name].limit or ""], plan.request.objective.limits
    if moved.timed and bound != getattr(limits, moved.name):
        plan = plan_least_loads(plan)
    limits = plan.request.objective.limits.model_copy(update={moved.name: bound})
    keep = plan.runs.copy()
    for rule in LIMITS.values():
        if rule.bound(limits) is not None:
            broken = [breaks_limit(rule, block, limits) for block in plan.blocks]
            keep &= ~np.concatenate(broken)
    return int(keep.sum())
