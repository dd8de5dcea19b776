"""A run in phases: one estimate for each shape of a step, and the time of evaluations.

Memory decides what a request leaves open: whether the loss is computed in chunks.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from recipe_core.base.arrays import Float, add
from recipe_core.engines.frameworks import training_data
from recipe_core.estimates.columns.columns import Columns, map_columns
from recipe_core.estimates.columns.training import TrainingCases, TrainingSetting
from recipe_core.estimates.training.memory import Memory, training_memory
from recipe_core.estimates.training.schedule import training_step_parts
from recipe_core.estimates.training.starts import memory_rule
from recipe_core.hardware.host import StorageTier
from recipe_core.request.phases import Phase
from recipe_core.request.training_workload import Loading


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
