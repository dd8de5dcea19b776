"""Plans of serving and of training as people compare them: the same questions to both, in units that people read."""

from recipe_core.board.base import Board
from recipe_core.board.make import SHARED, board_of, shared_candidate
from recipe_core.board.measure import Measure
from recipe_core.board.serving import ServingBoard
from recipe_core.board.training import TrainingBoard

__all__ = ["SHARED", "Board", "Measure", "ServingBoard", "TrainingBoard", "board_of", "shared_candidate"]
