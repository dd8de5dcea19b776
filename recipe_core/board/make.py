"""From a request to the board of its plan."""

from __future__ import annotations

from recipe_core.board.base import Board
from recipe_core.board.serving import ServingBoard
from recipe_core.board.training import TrainingBoard
from recipe_core.plan import plan
from recipe_core.request import CandidateRequest, PlanRequest
from recipe_core.training.plan import is_training, training_plan
from recipe_core.training.table import TrainingTable


def board_of(request: PlanRequest, *, folders: bool = True) -> Board:
    """The request planned; of its candidate only what all training splits share counts: framework and precision.

    Raises:
        InputError: as ``plan`` and ``training_plan`` do.
    """
    if is_training(request):
        return TrainingBoard(_training(request, folders))
    return ServingBoard(plan(request, folders=folders))


def _training(request: PlanRequest, folders: bool) -> TrainingTable:
    c = request.candidate
    shared = CandidateRequest(engine=c.engine, precision=c.precision) if c else CandidateRequest()
    return training_plan(request.model_copy(update={"candidate": shared}), folders=folders, limits=shared)
