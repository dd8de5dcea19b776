"""What starts a split of a plan, before a recipe is made of it."""

from __future__ import annotations

from recipe_core.recipe.decision import decide
from recipe_core.request import edit
from recipe_core.request.schema import Objective
from recipe_core.search.plan import Plan
from recipe_core.targets.by_hand import first_command


def start_command(board: Plan, row: int, *, folders: bool = True) -> str:
    """The command of a split's first process.

    Raises:
        NoAnswer: where the engine or framework cannot be started that way.
    """
    asked = edit.change(board.request, edit.select_split(board.request, board.key(row)))
    decision = decide(
        asked.model_copy(update={"objective": Objective()}), folders=folders
    )  # judged already; percentiles take their time
    return first_command(decision.started(), decision.model.name)
