"""One call: cases in, every quantity of training out, with reasons, bands and basis."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from recipe_core.base.arrays import Bool, Float, Int, add
from recipe_core.base.intervals import BAND, Ends, Level
from recipe_core.base.units import HOUR_S, chance_text, seconds_text
from recipe_core.estimates.columns.rollout import Sampling
from recipe_core.estimates.columns.training import RECOMPUTE, TrainingCases, TrainingSetting
from recipe_core.estimates.prediction import SCHEMA_VERSION
from recipe_core.estimates.rules.refusal import Refusal
from recipe_core.estimates.rules.training_rules import in_phase, training_refusals
from recipe_core.estimates.training.activations import recomputed_share
from recipe_core.estimates.training.loss_chunks import decide_loss_chunks
from recipe_core.estimates.training.loss_pieces import pieces_text
from recipe_core.estimates.training.memory import PARTS, Memory, adapter_parameters
from recipe_core.estimates.training.operators import kernel_rule
from recipe_core.estimates.training.phases import (
    PhaseEstimates,
    estimate_phases,
    estimate_steps,
    waiting_s,
)
from recipe_core.estimates.training.reinforcement import (
    Reinforcement,
    at_longest,
    at_mean,
    reinforcement_of,
    whole_run_cases,
)
from recipe_core.estimates.training.results import (
    FOLLOWING,
    Reinforced,
    RunShares,
    StepParts,
    TrainingCost,
    TrainingEnergy,
    TrainingEstimate,
    TrainingFigures,
    TrainingMemory,
    TrainingPhase,
    TrainingRun,
    TrainingStage,
)
from recipe_core.estimates.training.run import Run, estimate_run
from recipe_core.estimates.training.schedule import training_step_parts
from recipe_core.estimates.training.starts import (
    host_rule,
    is_training_uncertain,
    memory_rule,
    training_band,
    training_doubt_text,
    training_start_probability,
)
from recipe_core.estimates.training.time_limits import elastic_nodes, time_rules
from recipe_core.models.spec import DRAFTS_UNCOUNTED, LinearAttention
from recipe_core.models.tensors import compute_dtype


def flops_per_token(setting: TrainingSetting, sequence_length: Float) -> Float:
    """Model flops of a trained token.

    6 a parameter that multiplies, and attention over half the sequence (causal), forward and
    backward.

    What is recomputed is not counted (model flops, PaLM's convention, arXiv:2204.02311, with the
    causal half). DPO's frozen model adds a forward pass; reinforcement learning samples and scores
    too (`Sampling.passes`).
    """
    model = setting.model
    lookups = 0 if model.tied_embeddings else model.vocabulary * model.hidden
    forward = 2.0 * (model.active_parameters - lookups) + _score_flops(setting, sequence_length)
    passes = {"lora": 2.0, "qlora": 2.0, "dpo": 4.0}.get(setting.method, 3.0)
    if setting.sampling is not None:
        passes = setting.sampling.passes
    return np.asarray(passes * forward)


def _score_flops(setting: TrainingSetting, sequence_length: Float) -> Float:
    """Flops of a token's attention in a forward pass, causal."""
    scores: Float = np.zeros(len(sequence_length))
    for layer, n in setting.model.kinds:
        if (a := layer.attention) is not None and not isinstance(a, LinearAttention):
            seen_tokens = setting.seen(sequence_length, a.window)
            scores = scores + n * 2 * a.heads * (a.head_dim + a.v_head_dim) * seen_tokens
    return scores


def recomputed_flops_per_token(setting: TrainingSetting, cases: TrainingCases) -> Float:
    """Flops of a token that the backward pass repeats (one per case).

    Of the layers' forward pass all, or the share that selective recomputation repeats, which is at
    least the attention where its scores are stored otherwise. Embedding and head are not repeated.
    """
    model, scores = setting.model, _score_flops(setting, cases.sequence_length.astype(float))
    tables = (1 if model.tied_embeddings else 2) * model.vocabulary * model.hidden
    forward = 2.0 * (model.active_parameters - tables) + scores
    selective = setting.framework.selective_recomputes.value * forward
    if not setting.flash:
        selective = np.maximum(selective, scores)
    share, full = recomputed_share(setting, cases), cases.recompute == RECOMPUTE.index("full")
    return np.asarray(share * np.select([full, cases.recompute == 1], [forward, selective], 0.0))


@dataclass(frozen=True, slots=True)
class TrainingEstimates:
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

    def __len__(self) -> int:
        return len(self.cases)

    @property
    def feasible(self) -> Bool:
        """Where no rule is broken."""
        broken = np.zeros(len(self.cases), dtype=np.bool_)
        for refusal in self.refusals:
            broken |= refusal.broken
        return ~broken

    def reasons(self, i: int) -> list[str]:
        """Every reason why case ``i`` cannot run."""
        return [refusal.say(i) for refusal in self.refusals if refusal.broken[i]]

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

    def doubts(self, rows: Int) -> list[str]:
        """Why the start of each of the chosen cases is uncertain; empty for the others."""
        return [self._doubt(int(i)) if self.uncertain[i] else "" for i in rows]

    def _doubt(self, i: int) -> str:
        """Why the start of a case is uncertain: its rollout, else its peak memory."""
        chance = float(self.start_probability[i])
        if self.reinforcement and (doubt := self.reinforcement.rollouts.doubts[i]):
            return f"may not start: {doubt}; starts with a probability of {chance_text(chance)}"
        peak, usable = float(self.peak_bytes[i]), float(self.memory.capacity_bytes[i])
        return training_doubt_text(self.setting, peak, usable, chance)

    def remarks(self, i: int) -> list[str]:
        """What to know about case ``i`` beside its figures.

        The model's notes, a start that is uncertain, data that is slow.
        """
        out = [*_model_notes(self.setting), *filter(None, self.doubts(np.array([i])))]
        pieces = self.setting.framework.pieces
        is_open = self.setting.fused_loss is None and pieces.use != "always"
        if self.cases.fused_loss[i] and is_open:
            out.append(
                "fused_loss: full logits would not fit, so the loss is computed in "
                f"{pieces_text(pieces)}"
            )
        if self.reinforcement is not None:
            out.append(
                "published steps of GRPO took 1.2 to 2.4 times their estimates, which the range of "
                "a step holds (docs/method/training.md, Reinforcement learning)"
            )
        if self.setting.optimizer.paged:
            out.append(
                f"{self.setting.optimizer_name}: states are counted as on the device; while it is "
                "full the driver moves pages of them to the host, which is not timed"
            )
        waits = float(self.parts["data_loading"][i])
        if waits > 0:
            out.append(
                f"data loading is the bottleneck: a step waits {seconds_text(waits)} for its "
                "tokens; "
                "use more workers or faster storage"
            )
        return out + self._price()

    def _price(self) -> list[str]:
        """What to know of the price; of spot capacity also how often it is taken back."""
        cluster = self.setting.cluster
        if cluster.price_note is None:
            return []
        if cluster.commitment != "spot":
            return [cluster.price_note]
        if self.setting.failures.basis is None:
            return []
        return [
            "This is a spot price: devices may be taken back at any time, counted as often as "
            "in published traces. If you know better, set device_mtbf_hours to "
            f"{cluster.per_node} times the hours for which a node is kept."
        ]

    def reasons_of(self, rows: Int) -> list[list[str]]:
        """Every reason why each of some cases cannot run."""
        return [self.reasons(i) for i in rows.tolist()]

    def rows(
        self, rows: Int, limits: Sequence[Sequence[str]], *, explained: bool = False
    ) -> list[TrainingEstimate]:
        """The estimates of some cases; ``limits``: for each the limits that it breaks."""
        return [
            self.row(i, broken, explained=explained)
            for i, broken in zip(rows.tolist(), limits, strict=True)
        ]

    def row(
        self,
        i: int,
        limits: Sequence[str] = (),
        *,
        explained: bool = False,  # noqa: ARG002 - a step is always told by its parts
    ) -> TrainingEstimate:
        """The estimate of case ``i``; one that cannot run (also by ``limits``) has memory alone."""
        reasons = [*self.reasons(i), *limits]
        legal = all(
            refusal.code in ("memory", "host-memory")
            for refusal in self.refusals
            if refusal.broken[i]
        )
        return TrainingEstimate(
            schema_version=SCHEMA_VERSION,
            feasible=not reasons,
            reasons=reasons,
            notes=self.remarks(i),
            memory=self._memory(i) if legal else None,
            **({} if reasons else self._figures(i)),
        )

    def _memory(self, i: int) -> TrainingMemory:
        stages, by_stage = int(self.cases.pp[i]), self._by_stage(i)
        fullest = int(np.argmax(by_stage))
        return TrainingMemory(
            **self._stage_bytes(i, fullest),
            total_bytes=float(by_stage[fullest]),
            usable_bytes=float(self.memory.capacity_bytes[i]),
            capacity_bytes=self.setting.cluster.device.usable_memory_bytes,
            fullest_stage=fullest,
            stages=[TrainingStage(**self._stage_bytes(i, stage)) for stage in range(stages)]
            if stages > 1
            else None,
            host_bytes=self.host_bytes(i) or None,
            start_probability=float(self.start_probability[i]),
        )

    def host_bytes(self, i: int) -> float:
        """Bytes that a device keeps in its host's memory: states, activations, what sleeps."""
        training_bytes = float(self.memory.host_bytes[i])
        asleep = 0.0 if self.reinforcement is None else self.reinforcement.offloaded_bytes[i]
        return max(training_bytes, float(asleep))

    def _by_stage(self, i: int) -> Float:
        """Bytes of each stage of a case."""
        return self.memory.stages_of(i)[: int(self.cases.pp[i])]

    def _stage_bytes(self, i: int, stage: int) -> dict[str, float]:
        return {f"{name}_bytes": float(self.memory.parts[name][i, stage]) for name in PARTS}

    def _figures(self, i: int) -> dict[str, Any]:
        """What a case that runs has besides its memory, by the fields of an estimate."""
        run, training = self.run, self._training(i)
        cost = TrainingCost(**_run_figures(run, TrainingCost, i))
        energy = TrainingEnergy(**_run_figures(run, TrainingEnergy, i))
        intervals = dict(_training_intervals(self.setting, training, cost, energy))
        price = self.setting.cluster.price_basis or "unknown"
        parts = {name: float(part[i]) for name, part in self.parts.items() if part[i] > 0}
        min_nodes = self.setting.failures.min_nodes
        loop = self.reinforcement
        return {
            "training": training,
            "reinforcement": None if loop is None else reinforced_row(self, loop, i),
            "run": TrainingRun(
                **_run_figures(run, TrainingRun, i),
                elastic_nodes=None
                if min_nodes is None
                else elastic_nodes(self.cases, min_nodes, i),
                mfu=float(self.run_mfu[i]),
                time_shares=RunShares(**{k: float(v[i]) for k, v in run.shares.items()}),
                phases=self._phases(i) if self.setting.phases else None,
            ),
            "cost": cost,
            "energy": energy,
            "bands": {name: of[BAND] for name, of in intervals.items()},
            "intervals": intervals,
            "basis": dict.fromkeys(intervals, "computed") | {"usd_per_hour": price},
            "breakdown_s": StepParts(parts),
        }

    def _phases(self, i: int) -> list[TrainingPhase]:
        """What each phase of the run is and takes."""
        out = []
        for phase in self.phases:
            cases, tokens = phase.cases, float(phase.cases.token_budget[i])
            steps, step_s = float(phase.steps(self.setting)[i]), float(phase.step_s[i])
            out.append(
                TrainingPhase(
                    tokens=tokens,
                    sequence_length=int(cases.sequence_length[i]),
                    global_batch=int(cases.global_batch[i]),
                    cp=int(cases.cp[i]),
                    dp=int(cases.dp[i]),
                    steps=steps,
                    step_s=step_s,
                    tokens_per_s=float(phase.step_tokens(self.setting)[i]) / step_s,
                    peak_memory_bytes=float(phase.memory.peak_bytes[i]),
                    wall_s=steps * step_s / float(self.run.goodput[i]),
                )
            )
        return out

    def _training(self, i: int) -> TrainingFigures:
        step_s, devices = float(self.step_s[i]), float(self.cases.all_devices[i])
        rate = float(self.run.tokens_per_s[i]) / devices
        repeats = bool(self.cases.recompute[i])
        by_stage = self._by_stage(i)
        return TrainingFigures(
            step_s=step_s,
            tokens_per_s=rate * devices,
            tokens_per_s_per_gpu=rate,
            flops_per_s_per_gpu=float(self.flops_per_s_per_gpu[i]),
            mfu=float(self.mfu[i]),
            hfu=float(self.hfu[i]) if repeats else None,
            peak_memory_bytes=max(float(by_stage.max()), float(self.peak_bytes[i])),
            memory_by_stage_bytes=by_stage.astype(float).tolist(),
            micro_batches=int(self.cases.micro_batches[i]),
            bubble_share=float(self.parts["bubble"][i]) / step_s,
        )


_RATES = ("tokens_per_s_per_gpu", "flops_per_s_per_gpu", "mfu", "hfu")


def _training_intervals(
    setting: TrainingSetting, training: TrainingFigures, cost: TrainingCost, energy: TrainingEnergy
) -> Iterator[tuple[str, dict[Level, Ends]]]:
    """The intervals of every figure; rates, cost and energy follow the time of a step."""
    step, memory = training_band(setting, "step_s"), training_band(setting, "peak_memory_bytes")
    rates = step.inverse()
    values: dict[str, tuple[float | None, dict[Level, Ends]]] = {
        "step_s": (training.step_s, step.factors),
        **{name: (getattr(training, name), rates) for name in _RATES},
        "peak_memory_bytes": (training.peak_memory_bytes, memory.factors),
    }
    for name in FOLLOWING:
        part = cost if hasattr(cost, name) else energy
        values[name] = (getattr(part, name), step.factors)
    for name, (value, factors) in values.items():
        if value is not None:
            yield (
                name,
                {level: (value * low, value * high) for level, (low, high) in factors.items()},
            )


def _peak_bytes(mem: Memory, phases: Sequence[PhaseEstimates]) -> Float:
    """The peak of the shape that needs most, one per case."""
    return np.asarray(np.max([mem.peak_bytes, *(of.memory.peak_bytes for of in phases)], axis=0))


def _run_figures(run: Run, part: type[Any], i: int) -> dict[str, Any]:
    """What a part of an estimate takes from a run, None where it is unknown."""
    columns = [field.name for field in fields(part) if field.name in Run.__slots__]
    values = ((name, getattr(run, name)[i]) for name in columns)
    return {name: float(value) if np.isfinite(value) else None for name, value in values}


def _phase_memory(
    setting: TrainingSetting, fits: Refusal, phases: Sequence[PhaseEstimates]
) -> Iterator[Refusal]:
    """Refuses splits of which a phase does not fit; ``fits``: the rule of the main shape."""
    for steps in phases:
        if steps.phase is not None:
            rule = memory_rule(setting, steps.memory)
            only = Refusal(rule.code, rule.broken & ~fits.broken, rule.say)
            yield in_phase(steps.phase, steps.cases, only)


def reinforced_row(estimates: TrainingEstimates, loop: Reinforcement, i: int) -> Reinforced:
    """What a step of reinforcement learning has besides its updates, of case ``i``."""
    rollouts, work = loop.rollouts, loop.sampling.work
    price, step_s = float(estimates.run.usd_per_hour[i]), float(estimates.step_s[i])
    return Reinforced(
        phases_s={name: float(seconds[i]) for name, seconds in loop.phases.items()},
        answers=work.sequences,
        updates=loop.sampling.updates,
        rollout_tail_s=float(rollouts.tail_s[i]),
        rollout_tokens_per_s=float(rollouts.tokens_per_s[i]),
        rollout_engine=loop.sampling.serving.engine.name,
        rollout_tp=int(rollouts.tp[i]),
        rollout_copies=int(rollouts.copies[i]),
        rollout_in_flight=float(rollouts.in_flight[i]),
        rollout_memory_share=float(rollouts.share[i]),
        rollout_bytes=float(loop.rollout_bytes[i]),
        training_bytes=float(loop.training_bytes[i]),
        offloaded_bytes=float(loop.offloaded_bytes[i]),
        weight_sync_bytes=loop.sync_bytes,
        usd_per_step=price / HOUR_S * step_s if np.isfinite(price) else None,
    )


def trained_parameters(setting: TrainingSetting) -> float:
    """Parameters in a checkpoint: adapters, or all; with a critic those of two models."""
    critic = setting.sampling is not None and setting.sampling.critic
    per_model = adapter_parameters(setting) if setting.frozen else setting.model.language_parameters
    return float(per_model) * (2 if critic else 1)


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
    """What follows from steps, for ``cases`` whose ``main`` shape counts in the run."""
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


def _model_notes(setting: TrainingSetting) -> list[str]:
    """What to know about the model, with what of its multi-token prediction is trained."""
    notes = [note for note in setting.model.notes if note != DRAFTS_UNCOUNTED]
    if len(notes) < len(setting.model.notes) and not setting.mtp_layers:
        notes.append(
            "The multi-token-prediction layer is not trained here; workload.mtp_layers: 1 "
            "counts it."
        )
    return notes
