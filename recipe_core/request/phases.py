"""Parts of a training run beside its main step: phases of another shape, and evaluations."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, Field

from recipe_core.base.described import DESCRIBED
from recipe_core.base.types import Count, Degree, Positive, Tokens


class Phase(BaseModel):
    """A part of a training run with its own batch, sequence length or context parallelism."""

    model_config = DESCRIBED

    tokens: Positive
    """Tokens of the phase."""

    sequence_length: Tokens | None = None
    """Length of a training sequence, in tokens; left out, the workload's."""

    global_batch: Count | None = None
    """Sequences per optimizer step; left out, the workload's."""

    cp: Degree | None = None
    """Context parallelism of the phase, for long sequences: dp is less by as much, on the same
    devices; left out, the split's."""


class Evaluation(BaseModel):
    """Forward passes over held-out tokens, every so many steps."""

    model_config = DESCRIBED

    every_steps: Count
    """Optimizer steps from one evaluation to the next."""

    tokens: Positive
    """Tokens of one evaluation."""


Phases = Annotated[tuple[Phase, ...], Field(min_length=1, max_length=64)]
