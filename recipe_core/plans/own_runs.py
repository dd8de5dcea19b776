"""Effects of own runs on a plan: on its best layout, or on the figure it is best by."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from recipe_core.base.errors import RecipeError
from recipe_core.estimates.columns.corrections import Corrections
from recipe_core.estimates.columns.scopes import without_corrections
from recipe_core.plans.alternatives import goal_measure
from recipe_core.plans.flips import row_identity
from recipe_core.plans.plan_json import measure_text

if TYPE_CHECKING:
    from recipe_core.plans.plan import Plan

# Least change of a figure that is worth a sentence.
LEAST_CHANGE = 0.005
WOULD = ("would move", "would rule", "would make")


@dataclass(frozen=True, slots=True)
class OwnRunsEffect:
    """The best split by the formulas alone and with own runs; None where none is feasible.

    ``text`` says it in one sentence. ``before`` and ``after`` are their values of ``measure``, in
    the unit of its column.
    """

    text: str
    moved: bool
    measure: str
    candidate_before: dict[str, Any] | None
    candidate: dict[str, Any] | None
    before: float | None
    after: float | None

    def to_json(self) -> dict[str, Any]:
        return {
            "sentence": self.text,
            "moved": self.moved,
            "measure": self.measure,
            "before": {"candidate": self.candidate_before, "value": self.before},
            "after": {"candidate": self.candidate, "value": self.after},
        }


def find_own_runs_effect(plan: Plan) -> OwnRunsEffect | None:
    """Compare a plan with the one that own runs do not correct; None where they changed nothing.

    Plans the request once more: ``Plan.own_runs_effect`` keeps the answer.
    """
    corrections = plan.problem.corrections
    if corrections is None or not corrections.teach:
        return None
    try:
        with without_corrections():
            plain = type(plan).of_search(plan.spec, replace(plan.problem, corrections=None))
    except RecipeError:
        return None
    return compare_best(plain, plan, _count_own_runs(plan, corrections))


def compare_best(
    plain: Plan, plan: Plan, subject: str, *, applied: bool = True
) -> OwnRunsEffect | None:
    """Say what ``subject`` (``3 own runs``) changed from one plan to another of the same request.

    ``applied``: whether they did; else they would. None where the same split is best and its figure
    changed by less than ``LEAST_CHANGE``.
    """
    move, rule, make = ("moved", "ruled", "made") if applied else WOULD
    first, best = plain.best_row, plan.best_row
    if best is not None:
        name = goal_measure(plan, best)
    elif first is not None:
        name = goal_measure(plain, first)
    else:
        return None
    before, after = _measure_value(plain, name, first), _measure_value(plan, name, best)
    candidates = (
        None if first is None else plain.candidate(first),
        None if best is None else plan.candidate(best),
    )
    if first is None or best is None:
        label = plan.label(best) if best is not None else plain.label(first or 0)
        text = (
            f"{subject} {make} {label} the best layout; without them there is none"
            if first is None
            else f"{subject} {rule} every layout out; without them {label} is the best"
        )
        return OwnRunsEffect(text, True, name, *candidates, before, after)
    figures = f"{measure_text(plain, name, first)} → {measure_text(plan, name, best)}"
    if row_identity(plain, first) != row_identity(plan, best):
        places = f"from {plain.label(first)} to {plan.label(best)}"
        text = f"{subject} {move} the best layout {places} ({figures})"
        return OwnRunsEffect(text, True, name, *candidates, before, after)
    if not (before and after and abs(after / before - 1) >= LEAST_CHANGE):
        return None
    title = plan.measures[name].title
    text = f"{subject} {move} the best layout's {title[0].lower()}{title[1:]}: {figures}"
    return OwnRunsEffect(text, False, name, *candidates, before, after)


def best_text(plan: Plan) -> str:
    """The best split with the figure it is best by: ``TP 4, $1.57``."""
    row = plan.best_row
    if row is None:
        return "no layout"
    return f"{plan.label(row)}, {measure_text(plan, goal_measure(plan, row), row)}"


def _measure_value(plan: Plan, name: str, row: int | None) -> float | None:
    value = float("nan") if row is None else float(plan.raw(name)[row])
    return value if np.isfinite(value) else None


def _count_own_runs(plan: Plan, corrections: Corrections) -> str:
    """``3 own runs``: those on a device of the plan; else the measured checkpoints."""
    devices = {cluster.device.digest for cluster in plan.problem.clusters}
    on_devices = [run.setting.cluster.device.digest in devices for run in corrections.runs]
    count, noun = sum(on_devices), "own run"
    if not count:
        count, noun = len(corrections.compressed), "measured checkpoint"
    return f"{count:,} {noun}{'s' * (count != 1)}"
