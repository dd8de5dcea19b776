"""A verdict on a request; engines' command lines are judged by ``recipe_core.commands.judge``."""

from __future__ import annotations

from typing import Any

from recipe_core.compression.required import row_estimate_json
from recipe_core.plans.limits import stated_limits
from recipe_core.plans.plan_json import doubt_text
from recipe_core.plans.plans import plan_candidate, plan_splits
from recipe_core.plans.splits import row_state
from recipe_core.request.schema import PlanRequest


def judge_request(request: PlanRequest, *, folders: bool = True) -> dict[str, Any]:
    """Whether the request's split (or any, when it states none) can run, and a better one.

    Returns:
        ``{"ok", "verdict", "reasons", "candidate", "estimate", "confidence", "better",
        "changes"}``; ``verdict`` is the row's state: ``holds``, ``queues``, ``uncertain`` (``ok``
        is None, and the reason says with which probability it starts) or ``cannot run``;
        ``confidence`` is the probability that it keeps the limits (None without limits, or where
        it cannot run), ``better`` is None where the checked split is the best of the whole plan.

    Raises:
        InputError: for a request that cannot be planned.
    """
    checked, row = plan_candidate(request, folders=folders)
    candidate, estimate = checked.candidate(row), checked.estimate(row)
    full = plan_splits(request, folders=folders)
    better = None
    if full.best is not None and full.best.candidate != candidate:
        better = {
            "candidate": full.best.candidate,
            "estimate": row_estimate_json(full, full.best.row),
        }
    sure = float(checked.chances[row]) if stated_limits(checked) and checked.runs[row] else None
    doubts = [doubt] if (doubt := doubt_text(checked, row)) else []
    return {
        "ok": None if checked.uncertain[row] else estimate.feasible,
        "verdict": row_state(checked, row),
        "reasons": [*estimate.reasons, *doubts],
        "candidate": candidate,
        "estimate": row_estimate_json(checked, row),
        "confidence": sure,
        "better": better,
        "changes": [change.to_json() for change in full.changes()],
    }
