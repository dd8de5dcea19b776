"""A verdict on a request; engines' command lines are judged by ``recipe_core.commands.judge``."""

from __future__ import annotations

from typing import Any

from recipe_core.request.schema import PlanRequest
from recipe_core.search.advice import remedies
from recipe_core.search.serving_plan import PlanTable, chosen_plan, plan


def check_request(request: PlanRequest, *, folders: bool = True) -> dict[str, Any]:
    """Whether the request's split (or any, when it states none) can run, why not, and the best split when another one is better.

    Returns:
        ``{"ok", "reasons", "candidate", "estimate", "better", "changes"}``.
    """
    table, row = chosen_plan(request, folders=folders)
    candidate, answer = table.candidate(row), table.estimate(row)
    best = plan(request, folders=folders)
    better = _better(best, table, row)
    return {
        "ok": answer["feasible"],
        "reasons": answer["reasons"],
        "candidate": candidate,
        "estimate": answer,
        "better": better,
        "changes": [remedy.to_json() for remedy in remedies(best)],
    }


def _better(best: PlanTable, table: PlanTable, row: int) -> dict[str, Any] | None:
    """The best split, when it is another one than the checked."""
    if not len(best.ranked):
        return None
    top = int(best.ranked[0])
    if best.candidate(top) == table.candidate(row):
        return None
    return {"candidate": best.candidate(top), "estimate": best.estimate(top)}
