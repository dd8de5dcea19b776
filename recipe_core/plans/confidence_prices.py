"""The price of certainty: the best split for each of some confidences, beside the one asked for.

With a stated load every row has its probability already, so that each confidence picks among the
rows. A searched load is searched again, by another confidence, of the splits that may then be best.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from recipe_core.base.arrays import Int
from recipe_core.plans.alternatives import goal_measure
from recipe_core.plans.limits import stated_limits
from recipe_core.plans.plan import Plan
from recipe_core.plans.plan_json import measure_text
from recipe_core.plans.rank import rank_rows
from recipe_core.plans.splits import row_key
from recipe_core.request.objective import BY_ESTIMATE

# Confidences that a price is told of, beside the one asked for.
CONFIDENCES = (BY_ESTIMATE, 0.8, 0.9, 0.95)
# Splits whose loads are searched again: the best of the plan, then the surest of the others.
SEARCHED_AGAIN = 12


@dataclass(frozen=True, slots=True)
class ConfidencePrice:
    """The best split at a confidence.

    Attributes:
        confidence: with which all limits hold.
        candidate: the split; None where none holds them so surely.
        key: its name in links.
        load: its requests in flight where loads are searched.
        measure: the name of the goal's measure, and ``value`` in its unit; ``figure`` as text.
        change: by which share the value is larger (negative: smaller) than that of the best split
            at the confidence asked for.
    """

    confidence: float
    candidate: dict[str, Any] | None = None
    key: str = ""
    load: float | None = None
    measure: str = ""
    value: float | None = None
    figure: str = ""
    change: float | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "confidence": self.confidence,
            "candidate": self.candidate,
            "load": self.load,
            "measure": self.measure or None,
            "value": self.value,
            "figure": self.figure or None,
            "change": self.change,
        }


def price_confidences(plan: Plan) -> tuple[ConfidencePrice, ...]:
    """The best split at 50, 80, 90 and 95 % and at the confidence asked for, with its figure.

    Empty without limits, where nothing is feasible, and where loads are searched by simulated
    percentiles, each of which would take seconds.
    """
    objective, best = plan.request.objective, plan.best_row
    slow = plan.request.load_searched and objective.limits.percentile is not None
    if best is None or not stated_limits(plan) or slow:
        return ()
    measure = goal_measure(plan, best)
    before = float(plan.raw(measure)[best])
    prices = []
    for confidence in sorted({*CONFIDENCES, objective.required_confidence}):
        if confidence == objective.required_confidence:
            best_pair: tuple[Plan, int] | None = plan, best
        elif plan.request.load_searched:
            best_pair = _search_again(plan, confidence)
        else:
            best_pair = _pick_row(plan, confidence)
        if best_pair is None:
            prices.append(ConfidencePrice(confidence))
            continue
        after, row = best_pair
        value = float(after.raw(measure)[row])
        prices.append(
            ConfidencePrice(
                confidence,
                candidate=after.candidate(row),
                key=row_key(after, row),
                load=float(after.columns["load"][row]) if plan.request.load_searched else None,
                measure=measure,
                value=value * after.measures[measure].factor,
                figure=measure_text(after, measure, row),
                change=value / before - 1 if before > 0 and np.isfinite(value) else None,
            )
        )
    return tuple(prices)


def _pick_row(plan: Plan, confidence: float) -> tuple[Plan, int] | None:
    """The best row whose estimates keep the limits, and with a confidence where one is asked."""
    by_estimate = _judged_by_estimate(plan)
    rows = rank_rows(by_estimate)
    if confidence > BY_ESTIMATE:
        rows = rows[plan.chances[rows] >= confidence]
    return (by_estimate, int(rows[0])) if len(rows) else None


def _judged_by_estimate(plan: Plan) -> Plan:
    """The plan without the rule of confidence; its rows and their probabilities are the same."""
    blocks = [
        replace(block, limits=tuple(rule for rule in block.limits if rule.code != "confidence"))
        for block in plan.blocks
    ]
    return Plan(plan.spec, plan.problem, blocks)


def _search_again(plan: Plan, confidence: float) -> tuple[Plan, int] | None:
    """The best of the likely splits, each under its best load at another confidence."""
    from recipe_core.plans.serving_search import search_loads_again

    searched_plan = search_loads_again(plan, _likely_rows(plan), confidence)
    return None if searched_plan.best_row is None else (searched_plan, searched_plan.best_row)


def _likely_rows(plan: Plan) -> Int:
    """Rows that may be best at another confidence: the best ones, and the surest of the others."""
    best_rows, other_rows = plan.order[:SEARCHED_AGAIN], np.flatnonzero(plan.runs)
    other_rows = other_rows[~np.isin(other_rows, best_rows)]
    surest = other_rows[np.argsort(-np.nan_to_num(plan.chances[other_rows]), kind="stable")]
    return np.sort(np.concatenate([best_rows, surest[: SEARCHED_AGAIN - len(best_rows)]]))
