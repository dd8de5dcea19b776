"""One training step as a timetable: which pipeline stage works on which micro-batch, when.

Each stage works through its list in order; a forward pass waits for the stage before, a backward
pass for the stage after. Lists: GPipe runs all forwards, then all backwards; 1F1B ``p - i - 1``
forwards ahead, then one of each in turn (Narayanan et al., arXiv:1806.03377); interleaved the same
over chunks of a stage (arXiv:2104.04473). Hand-over between stages is assumed to be hidden.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from recipe_core.base.errors import InputError
from recipe_core.estimates.prediction import require_part
from recipe_core.plans.plan import Plan

# Schedules whose order is known here; zero-bubble schedules split the backward pass.
DRAWN = ("1f1b", "interleaved", "gpipe")
# Passes that a chart stays readable with.
MOST_TASKS = 600


@dataclass(frozen=True, slots=True)
class Task:
    """One pass of a micro-batch through a chunk of a stage; seconds from the start of the step."""

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
    """Every task of a step, in order of stage and start.

    ``forward_s`` and ``backward_s`` are those of a whole stage.

    Raises:
        InputError: for a schedule whose order is not known here, or micro-batches that do not fill
            an interleaved pipeline.
    """
    if schedule not in DRAWN:
        raise InputError(
            f"the order of {schedule} cannot be drawn.",
            field="candidate.schedule",
            hint=f"Available: {', '.join(DRAWN)}.",
        )
    if chunks > 1 and micro_batches % stages:
        raise InputError(
            f"{micro_batches} micro-batches do not fill {stages} stages: use a multiple.",
            field="candidate.virtual_stages",
        )
    lists = [
        _stage_passes(schedule, stage, stages, micro_batches, chunks) for stage in range(stages)
    ]
    return _scheduled(lists, stages, chunks, forward_s / chunks, backward_s / chunks)


# Backward or not, chunk, micro-batch.
Pass = tuple[bool, int, int]


def _stage_passes(
    schedule: str, stage: int, stages: int, micro_batches: int, chunks: int
) -> list[Pass]:
    """Passes of a stage, first to last."""
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
    """Chunk and micro-batch in the order of an interleaved pipeline.

    As many micro-batches as stages pass through a chunk at a time.
    """
    if chunks == 1:
        return [(0, m) for m in range(micro_batches)]
    groups = range(0, micro_batches, stages)
    return [
        (chunk, first + m) for first in groups for chunk in range(chunks) for m in range(stages)
    ]


def _scheduled(
    lists: Sequence[Sequence[Pass]], stages: int, chunks: int, forward_s: float, backward_s: float
) -> list[Task]:
    """Start and end of every pass; each stage starts the next of its list as soon as it can."""
    done: dict[tuple[int, Pass], float] = {}
    free, position = [0.0] * stages, [0] * stages
    tasks: list[Task] = []
    progress = True
    while progress:
        progress = False
        for stage, passes in enumerate(lists):
            while position[stage] < len(passes):
                step = passes[position[stage]]
                ready = _ready(done, stage, step, stages, chunks)
                if ready is None:
                    break
                backward, chunk, micro_batch = step
                start = max(free[stage], ready)
                end = start + (backward_s if backward else forward_s)
                done[stage, step] = free[stage] = end
                position[stage] += 1
                progress = True
                tasks.append(Task(stage, chunk, micro_batch, backward, start, end))
    return sorted(tasks, key=lambda task: (task.stage, task.start_s))


def _ready(
    done: dict[tuple[int, Pass], float], stage: int, step: Pass, stages: int, chunks: int
) -> float | None:
    """When the passes that a pass waits for are done; None while they are not."""
    backward, chunk, m = step
    if not backward:
        if stage == 0 and chunk == 0:
            return 0.0
        before = (stage - 1, (False, chunk, m)) if stage else (stages - 1, (False, chunk - 1, m))
        return done.get(before)
    forward = done.get((stage, (False, chunk, m)))
    if stage == stages - 1 and chunk == chunks - 1:
        return forward
    after = (stage + 1, (True, chunk, m)) if stage < stages - 1 else (0, (True, chunk + 1, m))
    later = done.get(after)
    return None if forward is None or later is None else max(forward, later)


def best_with_pipeline(plan: Plan) -> int | None:
    """The best feasible row with several stages; None where there is none."""
    piped = plan.order[plan.columns["pp"][plan.order] > 1]
    return int(piped[0]) if len(piped) else None


def step_timeline(plan: Plan, row: int) -> tuple[list[Task], str]:
    """The timetable of a row's step, with no more micro-batches than a chart can show, and a note.

    A pass takes its parts of the step divided by the micro-batches. Gradients and the optimizer are
    left out.

    Raises:
        InputError: for a split without a pipeline, or a schedule whose order is not known here.
    """
    candidate, estimate = plan.candidate(row), plan.estimate(row)
    stages, chunks = int(candidate["pp"]), int(candidate["virtual_stages"])
    if stages == 1:
        raise InputError(
            "this split has no pipeline: every device holds all layers.",
            hint="Choose a split with pp above 1.",
        )
    parts, training = require_part(estimate.breakdown_s).step, require_part(estimate.training)
    total = training.micro_batches
    forward_s = (
        sum(seconds for name, seconds in parts.items() if name.startswith("forward_")) / total
    )
    backward_s = (
        sum(seconds for name, seconds in parts.items() if name.startswith("backward_"))
        + parts.get("recompute", 0.0)
    ) / total
    fitting = max(2 * stages, MOST_TASKS // (2 * stages * chunks))
    shown = min(total, fitting - fitting % stages)
    tasks = timeline(candidate["schedule"], stages, shown, forward_s, backward_s, chunks)
    extent = f"the first {shown:,} of {total:,}" if shown < total else f"all {total:,}"
    bubble = f"{training.bubble_share:.1%}"
    return tasks, (
        f"{candidate['schedule'].upper()}, {extent} micro-batches. Stages idle for {bubble} of the "
        "step. Hover over a bar for its micro-batch. Embedding, head and gradients are not shown."
    )
