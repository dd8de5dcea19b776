"""One training step as a timetable: which stage of the pipeline works on which micro-batch, when.

Each stage works through its list in order; a forward pass waits for the stage before, a backward pass for the stage after. Lists:
GPipe all forwards, then all backwards; 1F1B ``p - i - 1`` forwards ahead, then in turn (Narayanan et al., arXiv:1806.03377); interleaved
the same over chunks of a stage (arXiv:2104.04473). Hand-over between stages is taken to be hidden.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from recipe_core.base.errors import InputError
from recipe_core.physics.prediction import known
from recipe_core.search.training_plan import TrainingPlan

DRAWN = ("1f1b", "interleaved", "gpipe")
"""Schedules whose order is known here."""
MOST_TASKS = 600
"""Passes that a chart shows at most."""


@dataclass(frozen=True, slots=True)
class Task:
    """One pass of one micro-batch through one chunk of a stage; times in seconds from the start of the step."""

    stage: int
    chunk: int
    micro_batch: int
    backward: bool
    start_s: float
    end_s: float


def timeline(
    schedule: str,
    stages: int,
    micro_batches: int,
    forward_s: float,
    backward_s: float,
    chunks: int = 1,
) -> list[Task]:
    """Every task of a step, in order of stage and start; ``forward_s`` and ``backward_s`` are those of a whole stage.

    Raises:
        InputError: for a schedule whose order is not known here, or micro-batches that do not fill an interleaved pipeline.
    """
    if schedule not in DRAWN:
        raise InputError(
            f"the order of {schedule} is not drawn.",
            field="candidate.schedule",
            hint=f"Drawn are {', '.join(DRAWN)}.",
        )
    if chunks > 1 and micro_batches % stages:
        raise InputError(
            f"{micro_batches} micro-batches do not fill {stages} stages of {chunks} chunks.",
            field="candidate.virtual_stages",
        )
    lists = [_order(schedule, stage, stages, micro_batches, chunks) for stage in range(stages)]
    return _played(lists, stages, chunks, forward_s / chunks, backward_s / chunks)


Pass = tuple[bool, int, int]
"""Backward or not, chunk, micro-batch."""


def _order(schedule: str, stage: int, stages: int, micro_batches: int, chunks: int) -> list[Pass]:
    """What a stage does, first to last."""
    forwards = [(False, chunk, m) for chunk, m in _by_group(stages, micro_batches, chunks)]
    backwards = [
        (True, chunks - 1 - chunk, m) for chunk, m in _by_group(stages, micro_batches, chunks)
    ]
    if schedule == "gpipe":
        return [*forwards, *backwards]
    ahead = stages - stage - 1 if chunks == 1 else 2 * (stages - stage - 1) + (chunks - 1) * stages
    ahead = min(ahead, len(forwards))
    out: list[Pass] = list(forwards[:ahead])
    for k, forward in enumerate(forwards[ahead:]):
        out += [forward, backwards[k]]
    return out + backwards[len(forwards) - ahead :]


def _by_group(stages: int, micro_batches: int, chunks: int) -> list[tuple[int, int]]:
    """Chunk and micro-batch in the order of an interleaved pipeline: as many micro-batches as stages go through a chunk at a time."""
    if chunks == 1:
        return [(0, m) for m in range(micro_batches)]
    groups = range(0, micro_batches, stages)
    return [
        (chunk, first + m) for first in groups for chunk in range(chunks) for m in range(stages)
    ]


def _played(
    lists: Sequence[Sequence[Pass]], stages: int, chunks: int, forward_s: float, backward_s: float
) -> list[Task]:
    """Start and end of every pass, each stage going down its list as soon as what it waits for is done."""
    done: dict[tuple[int, Pass], float] = {}
    free, at = [0.0] * stages, [0] * stages
    tasks: list[Task] = []
    waiting = True
    while waiting:
        waiting = False
        for stage, todo in enumerate(lists):
            while at[stage] < len(todo):
                one = todo[at[stage]]
                ready = _ready(done, stage, one, stages, chunks)
                if ready is None:
                    break
                start = max(free[stage], ready)
                end = start + (backward_s if one[0] else forward_s)
                done[stage, one], free[stage], at[stage], waiting = end, end, at[stage] + 1, True
                tasks.append(Task(stage, one[1], one[2], one[0], start, end))
    return sorted(tasks, key=lambda task: (task.stage, task.start_s))


def _ready(
    done: dict[tuple[int, Pass], float], stage: int, one: Pass, stages: int, chunks: int
) -> float | None:
    """When what a pass waits for is done; None while it is not."""
    backward, chunk, m = one
    if not backward:
        if stage == 0 and chunk == 0:
            return 0.0
        before = (stage - 1, (False, chunk, m)) if stage else (stages - 1, (False, chunk - 1, m))
        return done.get(before)
    own = done.get((stage, (False, chunk, m)))
    if stage == stages - 1 and chunk == chunks - 1:
        return own
    after = (stage + 1, (True, chunk, m)) if stage < stages - 1 else (0, (True, chunk + 1, m))
    other = done.get(after)
    return None if own is None or other is None else max(own, other)


def best_with_pipeline(board: TrainingPlan) -> int | None:
    """The best feasible row with several stages."""
    piped = board.order[board.degree("pp")[board.order] > 1]
    return int(piped[0]) if len(piped) else None


def step_timeline(board: TrainingPlan, row: int) -> tuple[list[Task], str]:
    """The timetable of a row's step, of as many micro-batches as can be told apart, and what to know about it.

    A pass takes what the parts of the step say of it, divided by the micro-batches; what is not a pass (gradients, optimizer) is left out.

    Raises:
        InputError: for a split without a pipeline, and for a schedule whose order is not drawn.
    """
    candidate, estimate = board.candidate(row), board.estimate(row)
    stages, chunks = int(candidate["pp"]), int(candidate["virtual_stages"])
    if stages == 1:
        raise InputError(
            "this split has no pipeline: each device holds all layers.",
            hint="Pin or take a split with pp above 1.",
        )
    parts, training = known(estimate.breakdown_s).step, known(estimate.training)
    total = training.micro_batches
    forward_s = (
        sum(seconds for name, seconds in parts.items() if name.startswith("forward_")) / total
    )
    backward_s = (
        sum(seconds for name, seconds in parts.items() if name.startswith("backward_"))
        + parts.get("recompute", 0.0)
    ) / total
    most = max(2 * stages, MOST_TASKS // (2 * stages * chunks))
    shown = min(total, most - most % stages)
    tasks = timeline(candidate["schedule"], stages, shown, forward_s, backward_s, chunks)
    some = (
        f"The first {shown:,} of {total:,} micro-batches. "
        if shown < total
        else f"All {total:,} micro-batches. "
    )
    bubble = f"Stages wait for {training.bubble_share:.1%} of the step. "
    return (
        tasks,
        f"{candidate['schedule'].upper()}: {some}{bubble}Point at a bar for its micro-batch; embedding, head and gradients are left out.",
    )
