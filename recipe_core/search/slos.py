"""Limits to choose from.

Round steps over what a plan's splits reach, each with how many of them keep it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from recipe_core.base.arrays import Bool, Float
from recipe_core.request.schema import TIME_LIMITS
from recipe_core.search.limits import LIMITS
from recipe_core.search.measures import whole
from recipe_core.search.plan import Plan

STEPS = (
    1.0,
    1.1,
    1.2,
    1.4,
    1.6,
    1.8,
    2.0,
    2.2,
    2.5,
    2.8,
    3.0,
    3.5,
    4.0,
    4.5,
    5.0,
    5.5,
    6.0,
    7.0,
    8.0,
    9.0,
)
"""Round numbers in a decade."""

_MONEY = frozenset(rule.name for rule in LIMITS.values() if rule.money)


@dataclass(frozen=True, slots=True)
class LimitSteps:
    """Steps of a measure's limit, in the unit of the request's field.

    ``kept``: for each step how many splits keep it and all other limits.

    ``without``: how many there are without this limit.
    """

    steps: tuple[float, ...]
    kept: tuple[int, ...]
    without: int

    def count(self, step: float | None) -> int:
        """How many splits keep a step, or no limit."""
        return self.without if step is None else self.kept[self.steps.index(step)]


def limit_steps(plan: Plan, name: str, stated: float | None = None) -> LimitSteps:
    """The steps of a measure that has a limit, tightest last where more is better.

    The ``stated`` limit is always among them. Where the load is searched it follows a limit on a
    time: then those splits keep a step that keep it at their smallest load.
    """
    measure = plan.measures[name]
    if measure.limit in TIME_LIMITS:
        plan = plan.least_loaded()
    values = plan.bounded(name) / measure.limit_factor
    others = _keeping_others(plan, name) & np.isfinite(values)
    reached = values[plan.runs & np.isfinite(values)]
    found = set(np.unique(reached).tolist() if measure.show is whole else _round_steps(reached)) | (
        {float(stated)} if stated is not None else set()
    )
    steps = tuple(sorted(found))
    kept = tuple(
        int((others & (values >= step if measure.more_is_better else values <= step)).sum())
        for step in steps
    )
    return LimitSteps(steps, kept, int(_keeping_others(plan, name).sum()))


def _round_steps(reached: Float) -> list[float]:
    """Round numbers from the first at which anything changes to the first that all keep."""
    if not len(reached):
        return []
    low, high = float(reached.min()), float(reached.max())
    decades = range(
        int(np.floor(np.log10(max(low, 1e-9)))), int(np.ceil(np.log10(max(high, 1e-9)))) + 1
    )
    every = [float(f"{step * 10.0**decade:.6g}") for decade in decades for step in STEPS]
    first = max((step for step in every if step <= low), default=every[0])
    last = min((step for step in every if step >= high), default=every[-1])
    return [step for step in every if first <= step <= last]


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
        if measure.limit in _MONEY:  # what nobody knows keeps no limit
            keep &= np.isfinite(values)
        with np.errstate(invalid="ignore"):
            keep &= ~(values < bound) if measure.more_is_better else ~(values > bound)
    return keep
