"""The kept choices, each evaluated once for all sessions that keep the same."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from typing import Any

import _work as work
from cachetools import LRUCache

from recipe_core.base.errors import RecipeError
from recipe_core.calibration.place import calibration_stamp
from recipe_core.doors.serve import folders_allowed
from recipe_core.hardware.offers import current_day
from recipe_core.models.catalog import load_model_spec
from recipe_core.plans.plans import plan_candidate
from recipe_core.request.schema import PlanRequest
from recipe_core.request.shelf import Kept
from recipe_core.targets.by_hand import start_words
from recipe_core.views.side_by_side import Choice

Key = tuple[str, str, str, bool]
_answers: LRUCache[Key, Any] = LRUCache(maxsize=256)
_lock = threading.Lock()


def _cached_value(task: str, function: Callable[..., Any], request: PlanRequest) -> Any:
    """The value of a function of one request; what failed is tried again the next time."""
    model_digest = load_model_spec(request.model, folders=folders_allowed()).digest
    digest = f"{model_digest}{calibration_stamp()}{current_day()}"
    key = (function.__name__, json.dumps(request.to_json()), digest, folders_allowed())
    with _lock:
        answer = _answers.get(key)
    if answer is None:
        answer = work.calculated(
            task, function, request, folders=folders_allowed(), simulated_noun=""
        )
        with _lock:
            _answers[key] = answer
    return answer


def evaluate_shelf(shelf: Sequence[Kept]) -> list[Choice]:
    """Every choice with its row of a plan, or why it has none; plans are shared, so read only."""
    choices = []
    for entry in shelf:
        try:
            plan, row = _cached_value("Evaluating what you kept", plan_candidate, entry.request)
            choices.append(Choice(entry.name, entry.request, plan, row))
        except RecipeError as error:
            choices.append(Choice(entry.name, entry.request, error=str(error)))
    return choices


def choice_commands(choices: Sequence[Choice]) -> tuple[list[list[str]], dict[str, str]]:
    """The words that start each choice, none where it cannot be, and why not by its name."""
    words: list[list[str]] = []
    refused: dict[str, str] = {}
    for choice in choices:
        try:
            words.append(_cached_value("Writing the commands", start_words, choice.request))
        except RecipeError as error:
            words.append([])
            refused[choice.name] = str(error)
    return words, refused
