"""Parts of a training run beside its main step: phases of another shape, and evaluations."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated

from pydantic import Field

from recipe_core.base.documented import DescribedModel
from recipe_core.base.types import Count, Degree, Positive, Tokens


class Phase(DescribedModel):
    """A part of a training run with its own batch, sequence length or context parallelism."""

    tokens: Positive
    """Tokens of the phase."""

    sequence_length: Tokens | None = None
    """Length of a training sequence, in tokens; left out, the workload's."""

    global_batch: Count | None = None
    """Sequences per optimizer step; left out, the workload's."""

    cp: Degree | None = None
    """Context parallelism of the phase, for long sequences: DP is less by as much, on the same
    devices; left out, the layout's."""


class Evaluation(DescribedModel):
    """Forward passes over held-out tokens, every so many steps."""

    every_steps: Count
    """Optimizer steps from one evaluation to the next."""

    tokens: Positive
    """Tokens of one evaluation."""


Phases = Annotated[tuple[Phase, ...], Field(min_length=1, max_length=64)]


@dataclass(frozen=True, slots=True)
class Ramp:
    """A batch that starts smaller and grows by the same after as many sequences each.

    ``sequences``: until the whole batch is reached. ``increment`` is 0 where the batch stays.
    """

    start: int
    increment: int
    sequences: int


def ramp_of(phases: Sequence[Phase], sequence_length: int, global_batch: int) -> Ramp | None:
    """The ramp that phases are, up to the workload's own shape in the last; None for others."""
    lengths = {phase.sequence_length or sequence_length for phase in phases}
    if lengths != {sequence_length} or any(phase.cp is not None for phase in phases):
        return None
    batches = [phase.global_batch or global_batch for phase in phases]
    steps = {after - before for before, after in pairwise(batches)} or {0}
    tokens = [phase.tokens for phase in phases[:-1]]
    alike = all(math.isclose(count, tokens[0], rel_tol=1e-6) for count in tokens)
    increment = min(steps)
    if batches[-1] != global_batch or len(steps) > 1 or increment < 0:
        return None
    if increment == 0:
        return Ramp(global_batch, 0, 0)
    return Ramp(batches[0], increment, round(sum(tokens) / sequence_length)) if alike else None
