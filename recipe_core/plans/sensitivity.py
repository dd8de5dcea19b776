"""What would flip the decision.

The same request planned again with price, lengths and load moved.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from recipe_core.base.errors import RecipeError
from recipe_core.request.edit import change

if TYPE_CHECKING:
    from recipe_core.plans.plan import Plan


@dataclass(frozen=True, slots=True)
class Flip:
    """One thing moved: the fields as they then are, the best split then, and whether it is another.

    ``candidate`` is None when nothing is feasible any more.
    """

    what: str
    fields: Mapping[str, Any]
    candidate: dict[str, Any] | None
    flips: bool

    def to_json(self) -> dict[str, Any]:
        """``{"what": …, "set": {field: value}, "candidate": {…}, "flips": …}``."""
        return {
            "what": self.what,
            "set": dict(self.fields),
            "candidate": self.candidate,
            "flips": self.flips,
        }


def flips(plan: Plan) -> list[Flip]:
    """Each move with the best split after it; nothing for a plan without a feasible one."""
    if plan.best_row is None:
        return []
    first = plan.identity(plan.best_row)
    out = []
    for what, fields in plan.moves():
        try:
            after = plan.replan(change(plan.request, fields))
            row = after.best_row
        except RecipeError:
            row = None
        if row is None:
            out.append(Flip(what, fields, None, flips=True))
        else:
            moved = after.identity(row) != first
            out.append(Flip(what, fields, after.candidate(row), flips=moved))
    return out
