"""Plans of serving and of training as people compare them: the same questions to both, in units that people read."""

from recipe_core.request.edit import SHARED, shared_candidate
from recipe_core.search.board import Board
from recipe_core.search.board_of import board_of
from recipe_core.search.measures import Measure
from recipe_core.search.serving_board import ServingBoard
from recipe_core.search.training_board import TrainingBoard

__all__ = [
    "SHARED",
    "Board",
    "Measure",
    "ServingBoard",
    "TrainingBoard",
    "board_of",
    "shared_candidate",
]
