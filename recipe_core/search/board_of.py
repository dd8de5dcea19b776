"""From a request to the board of its plan."""

from __future__ import annotations

from recipe_core.request.edit import shared_candidate
from recipe_core.request.schema import CandidateRequest, PlanRequest
from recipe_core.search.board import Board
from recipe_core.search.serving_board import ServingBoard
from recipe_core.search.serving_plan import plan
from recipe_core.search.training_board import TrainingBoard
from recipe_core.search.training_plan import TrainingTable
from recipe_core.search.training_search import training_plan


def board_of(request: PlanRequest, *, folders: bool = True) -> Board:
    """The request planned; of its candidate only what all training splits share counts.

    Raises:
        InputError: as ``plan`` and ``training_plan`` do.
    """
    if request.is_training:
        return TrainingBoard(_training(request, folders))
    return ServingBoard(plan(request, folders=folders))


def _training(request: PlanRequest, folders: bool) -> TrainingTable:
    shared = shared_candidate(request) or CandidateRequest()
    return training_plan(
        request.model_copy(update={"candidate": shared}), folders=folders, limits=shared
    )
