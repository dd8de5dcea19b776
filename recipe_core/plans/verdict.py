"""A verdict on a request; engines' command lines are judged by ``recipe_core.commands.judge``."""

from __future__ import annotations

from typing import Any

from recipe_core.plans.plans import plan, plan_candidate
from recipe_core.request.schema import PlanRequest


def check_request(request: PlanRequest, *, folders: bool = True) -> dict[str, Any]:
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
    whole = plan(request, folders=folders)
    better = None
    if whole.best is not None and whole.best.candidate != candidate:
        better = {"candidate": whole.best.candidate, "estimate": whole.best.estimate.to_json()}
    sure = float(checked.confidence([row])[0]) if checked.limited and checked.runs[row] else None
    return {
        "ok": None if checked.uncertain[row] else estimate.feasible,
        "verdict": checked.state(row),
        "reasons": [*estimate.reasons, *([doubt] if (doubt := checked.doubt(row)) else [])],
        "candidate": candidate,
        "estimate": estimate.to_json(),
        "confidence": sure,
        "better": better,
        "changes": [change.to_json() for change in whole.changes()],
    }
