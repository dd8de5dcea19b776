"""The command that starts a split of a plan, without building a recipe."""

from __future__ import annotations

from collections.abc import Sequence

from recipe_core.plans.plan import Plan
from recipe_core.recipe.decision import decide
from recipe_core.request import edit
from recipe_core.request.objective import Objective
from recipe_core.request.schema import PlanRequest
from recipe_core.targets.by_hand import WIDTH, first_command, first_words
from recipe_core.targets.node_script import wrap_words


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


def start_words(request: PlanRequest, *, folders: bool = True) -> list[str]:
    """The command of the first process of a request's split, each option in a word with its value.

    Raises:
        InputError: for a request that cannot be read.
        NoAnswer: where the split cannot run, or its engine cannot be started that way.
    """
    decision = decide(request.model_copy(update={"objective": Objective()}), folders=folders)
    return first_words(decision.started(), decision.model.source)


def wrap_typed_words(words: Sequence[str]) -> str:
    return wrap_words(words, WIDTH, "    ")
