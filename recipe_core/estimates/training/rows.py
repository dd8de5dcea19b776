"""Estimates of some training cases: their columns become parts, and notes stand beside them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from recipe_core.base.arrays import Float
from recipe_core.base.intervals import BAND, Ends, Level
from recipe_core.base.units import HOUR_S, seconds_text
from recipe_core.estimates.columns.training import TrainingSetting
from recipe_core.estimates.prediction import (
    FOLLOWING,
    all_figures,
    build_estimates,
    build_parts,
    named_rows,
    number_rows,
    positive_rows,
)
from recipe_core.estimates.training.activations import pieces_text
from recipe_core.estimates.training.memory import PARTS
from recipe_core.estimates.training.phases import elastic_nodes
from recipe_core.estimates.training.results import (
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
from recipe_core.estimates.training.starts import training_band
from recipe_core.models.spec import DRAFTS_UNCOUNTED

if TYPE_CHECKING:
    from recipe_core.estimates.training.estimates import TrainingEstimates
    from recipe_core.estimates.training.reinforcement import Reinforcement

# Columns of rollouts that an estimate says under the same names.
_OF_ROLLOUTS = ("tail_s", "tokens_per_s", "tp", "copies", "in_flight")
_RATES = ("tokens_per_s_per_gpu", "flops_per_s_per_gpu", "mfu", "hfu")


def estimate_training_rows(
    e: TrainingEstimates, limits: Sequence[Sequence[str]]
) -> list[TrainingEstimate]:
    """Every case, in order; ``limits``: for each the limits of the request that it breaks."""
    rules = e.reasons_of(np.arange(len(e)))
    reasons = [[*of_case, *more] for of_case, more in zip(rules, limits, strict=True)]
    feasible = np.array([not sentences for sentences in reasons], dtype=np.bool_)
    running = _running_job_parts(e.take(np.flatnonzero(feasible)))
    return build_estimates(
        TrainingEstimate, reasons, _training_notes(e), _training_memory_rows(e), running
    )


def _training_memory_rows(e: TrainingEstimates) -> list[TrainingMemory | None]:
    """Memory of the fullest stage; None where another rule than that of memory refuses a case."""
    by_stage = e.memory.by_stage
    stages = np.arange(by_stage.shape[1]) < e.cases.pp[:, None]
    fullest, rows = np.argmax(np.where(stages, by_stage, -np.inf), axis=1), np.arange(len(e))
    host_bytes, capacity = e.host_bytes, e.setting.cluster.device.usable_memory_bytes
    parts = build_parts(
        TrainingMemory,
        **{f"{name}_bytes": e.memory.parts[name][rows, fullest] for name in PARTS},
        total_bytes=by_stage[rows, fullest],
        usable_bytes=e.memory.capacity_bytes,
        capacity_bytes=np.full(len(e), capacity),
        fullest_stage=fullest,
        stages=[
            _training_stages(e, row, pp) if pp > 1 else None for row, pp in enumerate(e.cases.pp)
        ],
        host_bytes=np.where(host_bytes > 0, host_bytes, np.nan),
        start_probability=e.start_probability,
    )
    other_rules = [rule for rule in e.refusals if rule.code not in ("memory", "host-memory")]
    refused = np.any([np.zeros(len(e)), *(rule.broken for rule in other_rules)], axis=0).tolist()
    return [None if illegal else part for illegal, part in zip(refused, parts, strict=True)]


def _training_stages(e: TrainingEstimates, row: int, pp: int) -> list[TrainingStage]:
    parts = {f"{name}_bytes": e.memory.parts[name][row, :pp] for name in PARTS}
    return build_parts(TrainingStage, **parts)


def _running_job_parts(e: TrainingEstimates) -> Iterator[dict[str, Any]]:
    """Yield what cases that run have besides their memory, by the fields of an estimate."""
    figures, run, loop = _step_figures(e), e.run, e.reinforcement
    costs, energies = build_parts(TrainingCost, run), build_parts(TrainingEnergy, run)
    of_rows = map(all_figures, figures, costs, energies)
    intervals = [dict(_training_intervals(e.setting, values)) for values in of_rows]
    price = {"usd_per_hour": e.setting.cluster.price_basis or "unknown"}
    columns: dict[str, Iterable[Any]] = {
        "training": figures,
        "reinforcement": [None] * len(e) if loop is None else _reinforced_rows(e, loop),
        "run": _run_rows(e),
        "cost": costs,
        "energy": energies,
        "bands": [{name: of[BAND] for name, of in of_row.items()} for of_row in intervals],
        "intervals": intervals,
        "basis": [dict.fromkeys(of_row, "computed") | price for of_row in intervals],
        "breakdown_s": build_parts(StepParts, step=positive_rows(e.parts, len(e))),
    }
    yield from named_rows(columns)


def _step_figures(e: TrainingEstimates) -> list[TrainingFigures]:
    devices, by_stage = e.cases.all_devices, e.memory.by_stage
    rate = e.run.tokens_per_s / devices
    return build_parts(
        TrainingFigures,
        step_s=e.step_s,
        tokens_per_s=rate * devices,
        tokens_per_s_per_gpu=rate,
        flops_per_s_per_gpu=e.flops_per_s_per_gpu,
        mfu=e.mfu,
        hfu=np.where(e.cases.recompute > 0, e.hfu, np.nan),
        peak_memory_bytes=np.maximum(np.nanmax(by_stage, axis=1), e.peak_bytes),
        memory_by_stage_bytes=[
            bytes_of[:pp].tolist() for bytes_of, pp in zip(by_stage, e.cases.pp, strict=True)
        ],
        micro_batches=e.cases.micro_batches,
        bubble_share=e.parts["bubble"] / e.step_s,
    )


def _training_intervals(
    setting: TrainingSetting, values: Mapping[str, float | None]
) -> Iterator[tuple[str, dict[Level, Ends]]]:
    """The intervals of every figure; rates, cost and energy follow the time of a step."""
    step, memory = training_band(setting, "step_s"), training_band(setting, "peak_memory_bytes")
    factors = {
        "step_s": step.factors,
        **dict.fromkeys(_RATES, step.inverse()),
        "peak_memory_bytes": memory.factors,
        **dict.fromkeys(FOLLOWING, step.factors),
    }
    for name, by_level in factors.items():
        if (value := values.get(name)) is not None:
            yield (
                name,
                {level: (value * low, value * high) for level, (low, high) in by_level.items()},
            )


def _run_rows(e: TrainingEstimates) -> list[TrainingRun]:
    fewest, phases = e.setting.failures.min_nodes, None
    if e.setting.phases:
        phases = [[*of_case] for of_case in zip(*_phase_rows(e), strict=True)]
    nodes = None
    if fewest is not None:
        nodes = [elastic_nodes(e.cases, fewest, i) for i in range(len(e))]
    shares = build_parts(RunShares, **e.run.shares)
    return build_parts(
        TrainingRun, e.run, elastic_nodes=nodes, mfu=e.run_mfu, time_shares=shares, phases=phases
    )


def _phase_rows(e: TrainingEstimates) -> Iterator[list[TrainingPhase]]:
    """Yield what each phase of the run is and takes, of every case."""
    for phase in e.phases:
        steps = phase.steps(e.setting)
        yield build_parts(
            TrainingPhase,
            phase.cases,
            phase.memory,
            tokens=phase.cases.token_budget,
            steps=steps,
            step_s=phase.step_s,
            tokens_per_s=phase.step_tokens(e.setting) / phase.step_s,
            peak_memory_bytes=phase.memory.peak_bytes,
            wall_s=steps * phase.step_s / e.run.goodput,
        )


def _reinforced_rows(e: TrainingEstimates, loop: Reinforcement) -> list[Reinforced]:
    """Return what a step of reinforcement learning has besides its updates."""
    rollouts, sampling, count = loop.rollouts, loop.sampling, len(e)
    return build_parts(
        Reinforced,
        loop,
        phases_s=number_rows(loop.phases, count),
        answers=[sampling.work.sequences] * count,
        updates=[sampling.updates] * count,
        rollout_engine=[sampling.serving.engine.name] * count,
        rollout_memory_share=rollouts.share,
        weight_sync_bytes=[loop.sync_bytes] * count,
        usd_per_step=e.run.usd_per_hour / HOUR_S * e.step_s,
        **{f"rollout_{name}": getattr(rollouts, name) for name in _OF_ROLLOUTS},
    )


# What to know beside the figures


def _training_notes(e: TrainingEstimates) -> Iterator[list[str]]:
    """The model's notes, a start that is uncertain, data that is slow."""
    model_notes, general, price = _model_notes(e.setting), [], _price_notes(e.setting)
    if e.reinforcement is not None:
        around = training_band(e.setting, "step_s")
        general.append(
            f"a step that samples answers takes {around.low:.1f} to {around.high:.1f} times its "
            "estimate: updates vary both ways, published steps of GRPO took longer than estimated"
        )
    if e.setting.optimizer.paged:
        general.append(
            f"{e.setting.optimizer_name}: states are counted as on the device; while it is "
            "full the driver moves pages of them to the host, which is not timed"
        )
    pieces = e.setting.framework.pieces
    is_open = e.setting.fused_loss is None and pieces.use != "always"
    fused = (
        f"fused_loss: full logits would not fit, so the loss is computed in {pieces_text(pieces)}"
    )
    waits: Float = e.parts["data_loading"]
    for doubt, in_pieces, waits_s in zip(
        e.doubts(np.arange(len(e))), e.cases.fused_loss.tolist(), waits.tolist(), strict=True
    ):
        of_case = [doubt, fused] if in_pieces and is_open else [doubt]
        out = [*model_notes, *filter(None, of_case), *general]
        if waits_s > 0:
            out.append(
                f"data loading is the bottleneck: a step waits {seconds_text(waits_s)} for its "
                "tokens; use more workers or faster storage"
            )
        yield out + price


def _model_notes(setting: TrainingSetting) -> list[str]:
    """Say what to know about the model, with what of its multi-token prediction is trained."""
    notes = [note for note in setting.model.notes if note != DRAFTS_UNCOUNTED]
    if len(notes) < len(setting.model.notes) and not setting.mtp_layers:
        notes.append(
            "The multi-token-prediction layer is not trained here; workload.mtp_layers: 1 "
            "counts it."
        )
    return notes


def _price_notes(setting: TrainingSetting) -> list[str]:
    """Say what to know of the price; of spot capacity also how often it is taken back."""
    cluster = setting.cluster
    if cluster.price_note is None:
        return []
    if cluster.commitment != "spot":
        return [cluster.price_note]
    if setting.failures.basis is None:
        return []
    return [
        "This is a spot price: devices may be taken back at any time, counted as often as "
        "in published traces. If you know better, set device_mtbf_hours to "
        f"{cluster.per_node} times the hours for which a node is kept."
    ]
