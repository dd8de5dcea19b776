"""One call: cases in, every quantity of training out, with reasons, bands and basis."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from recipe_core.base.arrays import Bool, Float, Int, add
from recipe_core.base.units import chance_text
from recipe_core.estimates.columns.rollout import Sampling
from recipe_core.estimates.columns.training import TrainingCases, TrainingSetting
from recipe_core.estimates.rules.refusal import Judged, Refusal
from recipe_core.estimates.rules.training_rules import in_phase, training_refusals
from recipe_core.estimates.training.memory import Memory
from recipe_core.estimates.training.operators import (
    flops_per_token,
    kernel_rule,
    recomputed_flops_per_token,
)
from recipe_core.estimates.training.phases import (
    PhaseEstimates,
    decide_loss_chunks,
    estimate_phases,
    estimate_steps,
    time_rules,
    waiting_s,
)
from recipe_core.estimates.training.reinforcement import (
    Reinforcement,
    at_longest,
    at_mean,
    reinforcement_of,
    whole_run_cases,
)
from recipe_core.estimates.training.run import Run, estimate_run, trained_parameters
from recipe_core.estimates.training.schedule import training_step_parts
from recipe_core.estimates.training.starts import (
    host_rule,
    is_training_uncertain,
    memory_rule,
    training_doubt_text,
    training_start_probability,
)
from recipe_core.models.tensors import compute_dtype

if TYPE_CHECKING:
    from recipe_core.estimates.training.results import TrainingEstimate


@dataclass(frozen=True, slots=True)
class TrainingEstimates(Judged["TrainingEstimate"]):
    """All quantities of all cases; ``row`` gives one as an object.

    ``cases``, ``memory``, ``parts`` and ``step_s`` are of the workload's own shape, ``phases`` of
    the run. ``start_probability``: that each case's peak fits into the device.
    """

    setting: TrainingSetting
    cases: TrainingCases
    memory: Memory
    parts: dict[str, Float]
    step_s: Float
    phases: tuple[PhaseEstimates, ...]
    run: Run
    refusals: tuple[Refusal, ...]
    start_probability: Float
    reinforcement: Reinforcement | None = None

    @property
    def flops_per_s_per_gpu(self) -> Float:
        """Model flops per second and device, without recomputation (one per case)."""
        rate = self.run.tokens_per_s / self.cases.all_devices
        return np.asarray(rate * flops_per_token(self.setting, self.lengths))

    @property
    def lengths(self) -> Float:
        """Tokens of the sequences that are trained on: of answers the mean (one per case)."""
        sampling = self.setting.sampling
        trained = self.cases if sampling is None else at_mean(sampling, self.cases)
        return trained.sequence_length.astype(float)

    @property
    def peak_flops_per_s(self) -> float:
        """The device's peak in the precision of the computation."""
        peaks = self.setting.cluster.device.peak_flops_per_s
        dtype = compute_dtype(self.setting.precision, peaks)
        return peaks[dtype].value  # type: ignore[index]  # a dtype of the profile

    @property
    def mfu(self) -> Float:
        """Model flops utilisation (PaLM, arXiv:2204.02311): a share of the peak, one per case."""
        return np.asarray(self.flops_per_s_per_gpu / self.peak_flops_per_s)

    @property
    def run_mfu(self) -> Float:
        """MFU of the whole run: model flops of all phases over wall time and peak (one per case).

        Without phases that is ``mfu`` times goodput.
        """
        if not self.setting.phases:
            return np.asarray(self.mfu * self.run.goodput)
        flops = add(
            phase.cases.token_budget
            * flops_per_token(self.setting, phase.cases.sequence_length.astype(float))
            for phase in self.phases
        )
        return np.asarray(flops / self.run.wall_s / self.cases.all_devices / self.peak_flops_per_s)

    @property
    def peak_bytes(self) -> Float:
        """Memory of the fullest device in the phase that needs most (one per case)."""
        return _peak_bytes(self.memory, self.phases)

    @property
    def hfu(self) -> Float:
        """Hardware flops utilisation: the same with what is recomputed (arXiv:2205.05198)."""
        rate = self.run.tokens_per_s / self.cases.all_devices
        again = rate * recomputed_flops_per_token(self.setting, self.cases)
        return np.asarray((self.flops_per_s_per_gpu + again) / self.peak_flops_per_s)

    @property
    def uncertain(self) -> Bool:
        """Cases of which estimates do not tell whether they start."""
        return self.feasible & is_training_uncertain(self.start_probability)

    def doubt(self, i: int) -> str:
        """Say why the start of a case is uncertain: its rollout, else its peak memory."""
        chance = float(self.start_probability[i])
        if self.reinforcement and (doubt := self.reinforcement.rollouts.doubts[i]):
            return f"may not start: {doubt}; starts with a probability of {chance_text(chance)}"
        peak, usable = float(self.peak_bytes[i]), float(self.memory.capacity_bytes[i])
        return training_doubt_text(self.setting, peak, usable, chance)

    @property
    def host_bytes(self) -> Float:
        """Bytes that a device keeps in its host's memory: states, activations, what sleeps."""
        loop = self.reinforcement
        return np.maximum(self.memory.host_bytes, 0.0 if loop is None else loop.offloaded_bytes)

    def rows(
        self,
        rows: Int,
        limits: Sequence[Sequence[str]],
        *,
        explained: bool = False,  # noqa: ARG002 - a step is always told by its parts
    ) -> list[TrainingEstimate]:
        """The estimates of the chosen cases; see ``Judged``."""
        # a plan that is printed as text makes no rows, whose classes take time to import
        from recipe_core.estimates.training.rows import estimate_training_rows

        return estimate_training_rows(self.take(rows), limits)


def _peak_bytes(mem: Memory, phases: Sequence[PhaseEstimates]) -> Float:
    """The peak of the shape that needs most, one per case."""
    return np.asarray(np.max([mem.peak_bytes, *(of.memory.peak_bytes for of in phases)], axis=0))


def _phase_memory(
    setting: TrainingSetting, fits: Refusal, phases: Sequence[PhaseEstimates]
) -> Iterator[Refusal]:
    """Refuses splits of which a phase does not fit; ``fits``: the rule of the main shape."""
    for steps in phases:
        if steps.phase is not None:
            rule = memory_rule(setting, steps.memory)
            only = Refusal(rule.code, rule.broken & ~fits.broken, rule.say)
            yield in_phase(steps.phase, steps.cases, only)


def estimate_training(setting: TrainingSetting, cases: TrainingCases) -> TrainingEstimates:
    """Memory, step time and run of every case, and why some cannot run.

    Figures of infeasible cases mean nothing.
    """
    if setting.sampling is not None:
        return _estimate_reinforced(setting, setting.sampling, cases)
    main = estimate_steps(setting, cases)
    return _assemble_estimates(setting, main.cases, main, estimate_phases(setting, main))


def _estimate_reinforced(
    setting: TrainingSetting, sampling: Sampling, cases: TrainingCases
) -> TrainingEstimates:
    """The same of a step that samples and scores answers, and updates on them."""
    packed, mem = decide_loss_chunks(setting, at_longest(sampling, cases))
    cases = replace(cases, fused_loss=packed.fused_loss)
    update = training_step_parts(setting, at_mean(sampling, cases))
    loop = reinforcement_of(setting, sampling, cases, mem, update)
    run_cases = whole_run_cases(sampling, cases)
    waits = waiting_s(run_cases, setting.loading, add(loop.parts.values()))
    parts = loop.parts | {"data_loading": waits}
    main = PhaseEstimates(run_cases, loop.memory, parts, add(parts.values()))
    out = _assemble_estimates(setting, cases, main, (main,))
    refusals = (*out.refusals, *loop.refusals(setting, cases))
    starts = out.start_probability * loop.rollouts.certainty
    return replace(out, refusals=refusals, reinforcement=loop, start_probability=starts)


def _assemble_estimates(
    setting: TrainingSetting,
    cases: TrainingCases,
    main: PhaseEstimates,
    phases: tuple[PhaseEstimates, ...],
) -> TrainingEstimates:
    """Return what follows from steps, for ``cases`` whose ``main`` shape counts in the run."""
    ran = estimate_run(setting, main, phases, trained_parameters(setting))
    fits = memory_rule(setting, main.memory)
    refusals = (
        *training_refusals(setting, cases),
        *kernel_rule(setting, cases),
        fits,
        *host_rule(setting, cases, main.memory),
        *_phase_memory(setting, fits, phases),
        *time_rules(
            setting, main.step_s, ran.checkpoint_interval_s, ran.restart_s, ran.checkpoint_s
        ),
    )
    peak_bytes, usable_bytes = _peak_bytes(main.memory, phases), main.memory.capacity_bytes
    return TrainingEstimates(
        setting,
        cases,
        main.memory,
        main.parts,
        main.step_s,
        phases,
        ran,
        refusals,
        training_start_probability(setting, peak_bytes, usable_bytes),
    )
