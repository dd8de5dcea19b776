"""The command that starts a split of a plan, without building a recipe."""

from __future__ import annotations

from recipe_core.recipe.decision import decide
from recipe_core.request import edit
from recipe_core.request.schema import Objective
from recipe_core.search.plan import Plan
from recipe_core.targets.by_hand import first_command


def start_command(plan: Plan, row: int, *, folders: bool = True) -> str:
    """The command of the first process of a plan's row.

    Raises:
        NoAnswer: where the engine or framework cannot be started that way.
    """
    request = edit.change(plan.request, edit.select_split(plan.request, plan.key(row)))
    # The plan has judged the split already; simulating percentiles again would only take time.
    request = request.model_copy(update={"objective": Objective()})
    decision = decide(request, folders=folders)
    return first_command(decision.started(), decision.model.source)
