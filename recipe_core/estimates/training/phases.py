"""A run in phases and in starts: an estimate for each shape of a step, evaluations, time limits.

Memory decides what a request leaves open: whether the loss is computed in chunks.

A scheduler ends a start after ``limit`` seconds, and the next one goes on from the newest
checkpoint: work that is in none is lost, and a run whose first checkpoint comes later never gets
past its first start (NVIDIA-NeMo/Megatron-Bridge issue 4765). So

    interval ≤ (limit - restart - write) / 2,

which leaves two checkpoints in each start, and an end counts as a failure in Young's interval where
the framework writes no checkpoint before it: sqrt(2 · stall · (1/MTBF + 1/limit)). Each start
loses a restart and either that last write or half an interval of work.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from recipe_core.base.arrays import Bool, Float, Int, add
from recipe_core.base.units import seconds_text
from recipe_core.engines.frameworks import training_data
from recipe_core.engines.training_programs import training_engine
from recipe_core.estimates.columns.columns import Columns, map_columns
from recipe_core.estimates.columns.training import TrainingCases, TrainingSetting
from recipe_core.estimates.rules.refusal import Refusal
from recipe_core.estimates.training.memory import Memory, training_memory
from recipe_core.estimates.training.schedule import training_step_parts
from recipe_core.estimates.training.starts import memory_rule
from recipe_core.hardware.host import StorageTier
from recipe_core.request.phases import Phase
from recipe_core.request.training_workload import Loading

MOST_LOST = 0.99  # share of a start; where it is more no checkpoint fits, and the run is refused
# That fit in the time of each start, at least.
CHECKPOINTS_PER_START = 2


def _shares_batch_evenly(cases: TrainingCases, nodes: Int) -> Bool:
    """Mark whether that many nodes give whole replicas that share the global batch evenly."""
    used = cases.nodes_used.astype(np.int64)
    replicas = cases.dp * nodes // used
    complete = (cases.dp * nodes % used == 0) & (replicas > 0) & (nodes > 0)
    divides = cases.global_batch % np.maximum(replicas * cases.micro_batch, 1) == 0
    return np.asarray(complete & divides)


def elastic_nodes(cases: TrainingCases, fewest: int, i: int) -> list[int]:
    """Numbers of nodes, from ``fewest`` to all of case ``i``, that it can run on."""
    case, used = cases.take([i]), int(cases.nodes_used[i])
    return [
        n
        for n in range(min(fewest, used), used + 1)
        if _shares_batch_evenly(case, np.array([n]))[0]
    ]


def next_smaller(cases: TrainingCases, fewest: int) -> Float:
    """Nodes, at least ``fewest``, on which each case continues after losing one; 0: it cannot."""
    used = cases.nodes_used.astype(np.int64)
    remaining = np.zeros(len(cases), dtype=np.int64)
    for lost in range(1, int(used.max(initial=0)) - fewest + 1):
        nodes = used - lost
        fits = (nodes >= fewest) & _shares_batch_evenly(cases, np.maximum(nodes, 1))
        remaining = np.where((remaining == 0) & fits, nodes, remaining)
        if remaining.all():
            break
    return remaining.astype(float)


def saves_at_limit(setting: TrainingSetting) -> bool:
    """Return whether the framework writes a checkpoint before a start ends at its time limit."""
    return bool(training_engine(setting.engine).saves_on)


def end_rate(setting: TrainingSetting, mtbf_s: Float, busy_s: Float) -> Float:
    """Ends per second that lose the work since the newest checkpoint.

    A run whose steps take ``busy_s``, less than the limit, does not come to it.
    """
    limit_s = setting.failures.limit_s
    if limit_s is None or saves_at_limit(setting):
        return 1 / mtbf_s
    return 1 / mtbf_s + np.where(busy_s <= limit_s, 0.0, 1 / limit_s)


def longest_interval_s(limit_s: float, restart_s: Float, write_s: Float) -> Float:
    """Longest time between checkpoints that leaves some in each start; negative where none fits."""
    return np.asarray((limit_s - restart_s - write_s) / CHECKPOINTS_PER_START)


def lost_share(setting: TrainingSetting, restart_s: Float, end_s: Float, wall_s: Float) -> Float:
    """Share of the time that ends at the limit cost; 0 for runs that end before it.

    ``end_s``: what an end loses beside a restart. ``wall_s``: of the run without these losses.
    """
    limit_s = setting.failures.limit_s
    if limit_s is None:
        return np.zeros(len(restart_s))
    lost = np.minimum((restart_s + end_s) / limit_s, MOST_LOST)
    return np.where(wall_s <= limit_s, 0.0, lost)


def time_rules(
    setting: TrainingSetting, step_s: Float, interval_s: Float, restart_s: Float, write_s: Float
) -> Iterator[Refusal]:
    """Refuses runs that write no checkpoint within the time of a start."""
    limit_s = setting.failures.limit_s
    if limit_s is None:
        return
    needed_s = restart_s + np.maximum(interval_s, step_s) + write_s
    yield Refusal(
        "time-limit",
        needed_s >= limit_s,
        lambda i: (
            f"no checkpoint is written within the time limit of {seconds_text(limit_s)}: "
            "a start takes "
            f"{seconds_text(restart_s[i])}, the first checkpoint comes "
            f"{seconds_text(max(interval_s[i], step_s[i]))} later and takes "
            f"{seconds_text(write_s[i])}; "
            f"state workload.time_limit_s of {np.ceil(needed_s[i] / 60 + 1) * 60:.0f} or more"
            + (", or a shorter checkpoint_interval_s" if setting.failures.interval_s else "")
        ),
    )


def decide_loss_chunks(
    setting: TrainingSetting, cases: TrainingCases
) -> tuple[TrainingCases, Memory]:
    """Cases with nothing left open, and their memory.

    The loss is computed in chunks where the framework does nothing else, or where full logits do
    not fit, the framework can, and the request leaves it open.
    """
    if setting.framework.pieces.use == "always":
        cases = replace(cases, fused_loss=np.ones_like(cases.fused_loss))
        return cases, training_memory(setting, cases)
    full = training_memory(setting, cases)
    if setting.fused_loss is not None or setting.framework.pieces.use == "asked":
        return cases, full
    figures, over = setting.calibration, memory_rule(setting, full).broken
    lossless = np.nanmax(full.by_stage - figures.fragmentation.value * full.parts["loss"], axis=1)
    # the others lack more than the loss takes
    helped = lossless <= full.capacity_bytes * (1 + figures.tight.value)
    rows = np.flatnonzero(over & helped)
    if not len(rows):
        return cases, full
    fused = cases.fused_loss.copy()
    fused[rows] = 1
    cases = replace(cases, fused_loss=fused)

    def put(old: Any, new: Any) -> Any:
        """``old`` with the new rows, which may have fewer stages."""
        out = old.copy()
        out[(rows, slice(new.shape[1])) if new.ndim > 1 else rows] = new
        return out

    return cases, map_columns(put, full, training_memory(setting, cases.take(rows)))


def loaded_tokens_per_s(
    cases: TrainingCases, loading: Loading, tier: StorageTier | None = None
) -> Float:
    """Tokens per second that all loaders deliver together (one per case)."""
    worker = loading.tokens_per_s_per_worker or training_data().run.loader_tokens_per_s.value
    read: Float | float = np.inf
    if loading.read_bytes_per_s is not None:
        read = loading.read_bytes_per_s
    elif tier is not None:
        read = tier.read_rate(cases.nodes_used)
    storage = read / loading.bytes_per_token
    return np.asarray(np.minimum(cases.dp * loading.workers * worker, storage), dtype=float)


def waiting_s(
    cases: TrainingCases, loading: Loading, step_s: Float, tier: StorageTier | None = None
) -> Float:
    """Seconds that a step of ``step_s`` waits for its data (one per case)."""
    load_s = cases.step_tokens / loaded_tokens_per_s(cases, loading, tier)
    return load_s if loading.prefetch == 0 else np.maximum(load_s - step_s, 0.0)


# Parts of a step that an evaluation has not.
_AFTER_PASSES = ("optimizer", "fixed", "data_loading")


@dataclass(frozen=True, slots=True)
class PhaseEstimates(Columns):
    """Steps of one shape in every case: memory, time and its parts.

    ``phase``: of the run; None where the whole run is alike.
    """

    cases: TrainingCases
    memory: Memory
    parts: dict[str, Float]
    step_s: Float
    phase: Phase | None = None

    def step_tokens(self, setting: TrainingSetting) -> Float:
        """Tokens of a step, without padding (one per case)."""
        return self.cases.step_tokens * setting.useful(self.cases.sequence_length)

    def steps(self, setting: TrainingSetting) -> Float:
        """Steps of the phase; NaN where its tokens are not stated."""
        return np.ceil(self.cases.token_budget / self.step_tokens(setting))


def estimate_steps(setting: TrainingSetting, cases: TrainingCases) -> PhaseEstimates:
    """Memory and time of a step of every case."""
    cases, memory = decide_loss_chunks(setting, cases)
    parts = training_step_parts(setting, cases)
    parts["data_loading"] = waiting_s(
        cases, setting.loading, add(parts.values()), setting.failures.storage
    )
    return PhaseEstimates(cases, memory, parts, add(parts.values()))


def estimate_phases(setting: TrainingSetting, main: PhaseEstimates) -> tuple[PhaseEstimates, ...]:
    """Every phase of the run; phases of the same shape share their estimate.

    ``main``: steps of the workload's own shape, which phases that state nothing have.
    """
    if not setting.phases:
        return (main,)
    shapes: dict[tuple[Any, ...], PhaseEstimates] = {}
    out = []
    for phase in setting.phases:
        shape = (phase.sequence_length, phase.global_batch, phase.cp)
        if shape not in shapes:
            phase_cases = main.cases.in_phase(phase)
            same = _has_same_shape(phase_cases, main.cases)
            shapes[shape] = main if same else estimate_steps(setting, phase_cases)
        steps = shapes[shape]
        cases = replace(steps.cases, token_budget=np.full(len(steps.cases), phase.tokens))
        out.append(replace(steps, cases=cases, phase=phase))
    return tuple(out)


def _has_same_shape(first: TrainingCases, second: TrainingCases) -> bool:
    names = ("cp", "dp", "sequence_length", "global_batch")
    return all(np.array_equal(getattr(first, name), getattr(second, name)) for name in names)


def evaluation_s(setting: TrainingSetting, main: PhaseEstimates) -> Float:
    """Seconds of one evaluation (one per case; zeros without any).

    Its tokens take the forward share of a step's passes, with their share of communication and of
    the pipeline's bubble: ``tokens / step tokens · forward / passes · (step - optimizer)``.
    """
    parts, zero = main.parts, np.zeros_like(main.step_s)
    if setting.evaluation is None:
        return zero
    forward = add(v for k, v in parts.items() if k.startswith("forward_"))
    passes = forward + add(v for k, v in parts.items() if k.startswith("backward_"))
    passes = passes + parts["recompute"] + parts["reference"]
    share = (forward + parts["reference"]) / passes
    step_s = main.step_s - add(parts.get(name, zero) for name in _AFTER_PASSES)
    return setting.evaluation.tokens / main.step_tokens(setting) * share * step_s
