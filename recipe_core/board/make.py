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
    """The request planned; of its candidate only what all training splits share counts.

    Raises:
        InputError: as ``plan`` and ``training_plan`` do.
    """
    if is_training(request):
        return TrainingBoard(_training(request, folders))
    return ServingBoard(plan(request, folders=folders))


SHARED = ("engine", "precision", "offload")
"""Fields of a candidate that all splits of a training plan share."""


def shared_candidate(request: PlanRequest) -> CandidateRequest | None:
    """What of a training request's candidate is true of every split; None where that is nothing, and for serving."""
    if request.candidate is None or not is_training(request):
        return None
    stated = {name: value for name in SHARED if (value := getattr(request.candidate, name)) is not None}
    return CandidateRequest(**stated) if stated else None


def _training(request: PlanRequest, folders: bool) -> TrainingTable:
    shared = shared_candidate(request) or CandidateRequest()
    return training_plan(request.model_copy(update={"candidate": shared}), folders=folders, limits=shared)
