"""What runs of one's own changed about a plan: its best layout, or the figure it is best by."""

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
    first, best = plain.best_row, plan.best_row
    if first is None and best is None:
        return None
    told, row = (plan, best) if best is not None else (plain, first)
    assert row is not None  # noqa: S101 - one of the two plans has a best row
    name = goal_measure(told, row)
    before = _measure_value(plain, name, first)
    after = _measure_value(plan, name, best)
    same = first is not None and best is not None
    same = same and row_identity(plain, first or 0) == row_identity(plan, best or 0)
    if same and not (before and after and abs(after / before - 1) >= LEAST_CHANGE):
        return None
    return OwnRunsEffect(
        text=_say_effect(plan, plain, name, same=same),
        moved=not same,
        measure=name,
        candidate_before=None if first is None else plain.candidate(first),
        candidate=None if best is None else plan.candidate(best),
        before=before,
        after=after,
    )


def _measure_value(plan: Plan, name: str, row: int | None) -> float | None:
    value = float("nan") if row is None else float(plan.raw(name)[row])
    return value if np.isfinite(value) else None


def _say_effect(plan: Plan, plain: Plan, name: str, *, same: bool) -> str:
    """``3 own runs moved the best layout from tp 4 to tp 4 · pp 2 ($1.57 → $1.86)``."""
    subject = _own_runs_counted(plan, plan.problem.corrections)
    first, best = plain.best_row, plan.best_row
    if best is None:
        return (
            f"{subject} ruled every layout out; without them {plain.label(first or 0)} is the best"
        )
    if first is None:
        return f"{subject} made {plan.label(best)} the best layout; without them there is none"
    figures = f"{measure_text(plain, name, first)} → {measure_text(plan, name, best)}"
    if same:
        title = plan.measures[name].title
        return f"{subject} moved the best layout's {title[0].lower()}{title[1:]}: {figures}"
    return (
        f"{subject} moved the best layout from {plain.label(first)} to {plan.label(best)} "
        f"({figures})"
    )


def _own_runs_counted(plan: Plan, corrections: Corrections | None) -> str:
    """``3 own runs``: those on a device of the plan; else the measured checkpoints."""
    assert corrections is not None  # noqa: S101 - the caller has asked
    devices = {cluster.device.digest for cluster in plan.problem.clusters}
    runs = sum(run.setting.cluster.device.digest in devices for run in corrections.runs)
    count, noun = (
        (runs, "own run") if runs else (len(corrections.compressed), "measured checkpoint")
    )
    return f"{count:,} {noun}{'s' * (count != 1)}"
