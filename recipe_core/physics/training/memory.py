"""Memory of a rank by part and pipeline stage.

States (bytes a parameter): ZeRO's table, arXiv:1910.02054: stage 1 divides optimizer states and the fp32 master copy over the ranks of a
shard, stage 2 gradients too, stage 3 parameters too. What a layer needs whole while it is computed is the ``gathered`` part: the current
unit, the one fetched ahead, and a unit's gradient before it is scattered; without such units gradients in 16 bit before they are added.
Activations: `activations`. The loss needs ``loss_bytes`` for each value of the logits on the last stage. Allocator blocks that do not fit
each other are a share of what comes and goes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np

from recipe_core.base.arrays import Float, add
from recipe_core.model.dtypes import bytes_per_value
from recipe_core.model.spec import Layer, Tensor
from recipe_core.physics.training.activations import (
    BYTES,
    boundary_bytes,
    in_flight,
    kept_bytes,
    layer_bytes,
)
from recipe_core.physics.training.peak_memory import FP32_LOSS, Stage, fullest
from recipe_core.physics.training.stages import by_length, stage_layers
from recipe_core.space.training import TrainingCases, TrainingSetting

PARTS = (
    "parameters",
    "gradients",
    "optimizer",
    "master",
    "reference",
    "gathered",
    "activations",
    "loss",
    "temporary",
    "reserve",
)
ADAPTED = frozenset({"attention", "linear", "shared", "mixer"})
"""Roles of the matrices that adapters are put beside."""
QUANTIZED_BASE_BYTES = bytes_per_value("nvfp4") - 0.03
"""Bytes a parameter of a 4-bit base: half a byte and double-quantised scales, 0.53 (QLoRA, arXiv:2305.14314)."""
REFERENCE_BYTES = 2.0
"""Bytes a parameter of the frozen model that DPO compares with."""
LOSS_CHUNKS = 8.0
"""Into how many pieces a fused loss cuts the tokens (torchtune's default)."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes by part, each an array of cases × stages (NaN past a case's last stage), and what a process can have.

    ``host_bytes``: what a device keeps in its host's memory, or on its disks, of its fullest stage. ``peak_bytes``: all parts of the
    fullest stage.
    """

    parts: dict[str, Float]
    capacity_bytes: float
    host_bytes: Float
    peak_bytes: Float

    @property
    def by_stage(self) -> Float:
        """All parts together."""
        return add(self.parts.values())

    def stages_of(self, i: int) -> Float:
        """All parts together, of one case."""
        return add(part[i] for part in self.parts.values())


@dataclass(frozen=True, slots=True)
class Held:
    """Parameters that a rank holds whole of something: dense ones, experts, those of embedding and head, and adapters beside them."""

    dense: Float
    experts: Float
    vocabulary: Float
    adapters: Float


def _cut(cases: TrainingCases, item: Tensor) -> Float:
    """Into how many ranks a tensor is cut."""
    if item.shard == "experts":
        return np.where(cases.ep > 1, cases.ep, cases.tp).astype(float)
    return np.ones(len(cases)) if item.shard == "replicated" else cases.tp.astype(float)


def layer_parameters(
    setting: TrainingSetting, cases: TrainingCases, layer: Layer
) -> tuple[Float, Float]:
    """Dense parameters and those of experts that one rank holds of a layer."""
    dense = experts = np.zeros(len(cases))
    for item in layer.tensors(setting.model.hidden):
        held = item.numel / _cut(cases, item)
        dense, experts = (
            (dense, experts + held) if item.shard == "experts" else (dense + held, experts)
        )
    return dense, experts


def _adapters(setting: TrainingSetting, cases: TrainingCases, layer: Layer) -> Float:
    """Parameters of low-rank adapters on one rank: rank · (inputs + outputs) a matrix (arXiv:2106.09685), gate and up apart."""
    out = np.zeros(len(cases))
    for item in layer.tensors(setting.model.hidden):
        if item.role in ADAPTED:
            apart = (
                2
                if item.name == "attention.kv"
                else layer.mlp.matrices - 1
                if item.role in ("linear", "shared") and layer.mlp
                else 1
            )
            sizes = (m.outputs + m.inputs * (1 if m.cuts_inputs else apart) for m in item.matrices)
            out = out + setting.lora_rank * sum(sizes) / _cut(cases, item)
    return out


def held(setting: TrainingSetting, cases: TrainingCases) -> Held:
    """Parameters of each stage on one rank (cases × stages). A tied head is held again where it is another stage's than the embedding."""
    model = setting.model
    count, first, last = stage_layers(setting, cases)
    each = [
        ((*layer_parameters(setting, cases, kind), _adapters(setting, cases, kind)), n)
        for kind, n in model.kinds
    ]
    dense, experts, adapters = (
        add(part[0][k] * part[1] for part in each)[:, None] * count / len(model.layers)
        for k in range(3)
    )
    extras = add(
        [item.numel / _cut(cases, item) for item in model.extras] or [np.zeros(len(cases))]
    )[:, None]
    table = (model.vocabulary * model.hidden / cases.tp)[:, None]
    heads = last * ~((first > 0) & model.tied_embeddings)
    return Held(
        dense + first * extras + last * model.hidden, experts, table * (first + heads), adapters
    )


def _gathered(setting: TrainingSetting, cases: TrainingCases, whole: Held) -> Float:
    """Units that are whole for a while: two of layers (the current and the next), embedding or head, and a layer's gradient."""
    states, model = setting.states, setting.model
    sizes = [add(layer_parameters(setting, cases, kind)) for kind, _ in model.kinds]
    unit, table = (
        np.max(sizes, axis=0)[:, None],
        np.minimum(whole.vocabulary, (model.vocabulary * model.hidden / cases.tp)[:, None]),
    )
    gradient = 0.0 if setting.frozen else states.reduced
    live = states.gathered * (2 * unit + table) + gradient * np.maximum(unit, table)
    sharded = cases.shard[:, None] > 1
    before = (
        0.0
        if setting.frozen or setting.fused
        else states.transient * (whole.dense + whole.experts + whole.vocabulary)
    )
    return np.where(sharded & (cases.zero_stage[:, None] == 3), live, before)


def _stage(
    setting: TrainingSetting, cases: TrainingCases, whole: Held, cut: Float, logits: Float
) -> Stage:
    """What `moments` needs to know of each stage."""
    model, gradient = setting.model, setting.states.gradient
    count, first, last = stage_layers(setting, cases)
    every = whole.dense + whole.experts + whole.vocabulary
    unit = np.max([add(layer_parameters(setting, cases, kind)) for kind, _ in model.kinds], axis=0)[
        :, None
    ]
    table = (model.vocabulary * model.hidden / cases.tp)[:, None]
    trained = whole.adapters if setting.frozen else every
    each = (0.0 if setting.frozen else gradient) / np.where(
        cases.pp[:, None] > 1, 1.0, _divided(cases, 2, cases.shard.astype(float))
    )
    uncut = 0.0 if setting.frozen else first * table * (cases.tp[:, None] - 1)  # see `moments`
    made = np.where(cases.pp[:, None] > 1, gradient * (trained + uncut), cut)
    return Stage(
        count, first, last, every, unit, table, cut, made, each * unit, each * table, logits
    )


def _divided(cases: TrainingCases, stage: int, ranks: Float) -> Float:
    """The divisor of a state that is divided from a ZeRO stage on."""
    return np.where(cases.zero_stage >= stage, np.maximum(ranks, 1), 1)[:, None].astype(float)


def memory(setting: TrainingSetting, cases: TrainingCases) -> Memory:
    """Bytes of every part on the fullest rank of each stage."""
    columns = by_length(cases, partial(_columns, setting))
    host, peak = columns.pop("host"), columns.pop("peak")
    return Memory(
        columns,
        setting.cluster.device.usable_memory_bytes - setting.calibration.context_bytes.value,
        host,
        peak,
    )


def _columns(setting: TrainingSetting, cases: TrainingCases) -> dict[str, Float]:
    """Parts of memory by stage; by case ``host``, what is kept there, and ``peak``, all parts of the fullest stage."""
    whole, divisors = held(setting, cases), _divisors(setting, cases)
    logits = _logits(setting, cases)
    states, host = _offload(cases, _states(setting, whole, divisors))
    frozen_copy = REFERENCE_BYTES if setting.method == "dpo" else 0.0
    parts = states | {"reference": _kept(whole, divisors["parameters"], frozen_copy)}
    parts |= _moving(setting, cases, whole, parts["gradients"], logits)
    parts["reserve"] = _reserve(setting, parts, logits)
    return parts | {"host": host, "peak": np.nanmax(add(parts.values()), axis=1)}


Divisors = dict[str, tuple[Float, Float]]
"""By state: into how many ranks it is divided, of dense parameters and of experts."""


def _divisors(setting: TrainingSetting, cases: TrainingCases) -> Divisors:
    """By ZeRO's stages.

    FSDP divides parameters at stage 2 too, and then keeps gathered ones. Gradients that wait for the end of a step are whole until then.
    """
    shard = cases.shard.astype(float)
    expert_shard = np.where(cases.ep > 1, np.maximum(shard * cases.tp / cases.ep, 1), shard)
    stages = _STAGES | ({"parameters": 2} if setting.framework.sharding == "fsdp" else {})
    out = {
        part: (_divided(cases, stage, shard), _divided(cases, stage, expert_shard))
        for part, stage in stages.items()
    }
    together = np.where(cases.sync_step[:, None] > 0, 1.0, np.inf)
    dense, experts = out["gradients"]
    return out | {"gradients": (np.minimum(dense, together), np.minimum(experts, together))}


def _kept(
    whole: Held, divisors: tuple[Float, Float], each: float, vocabulary: float | None = None
) -> Float:
    """Bytes of a state at ``each`` a parameter, or ``vocabulary`` for those of embedding and head."""
    dense, experts = divisors
    table = whole.vocabulary * (each if vocabulary is None else vocabulary)
    return (each * whole.dense + table) / dense + each * whole.experts / experts


def _states(setting: TrainingSetting, whole: Held, divisors: Divisors) -> dict[str, Float]:
    """What stays from step to step: of all parameters, or a frozen base (its vocabulary in 16 bits) and all of its adapters."""
    states, optimizer = setting.states, setting.optimizer
    state_bytes = (
        8.0 / setting.model.hidden if optimizer.rows_and_columns else optimizer.state_bytes
    )
    each = {
        "parameters": states.parameter,
        "gradients": states.gradient,
        "optimizer": state_bytes,
        "master": states.master,
    }
    if setting.frozen:
        base = QUANTIZED_BASE_BYTES if setting.method == "qlora" else BYTES
        out = {part: size * (whole.adapters / divisors[part][0]) for part, size in each.items()}
        return out | {
            "parameters": _kept(whole, divisors["parameters"], base, BYTES) + out["parameters"]
        }
    tables = {"optimizer": optimizer.vocabulary_bytes}
    return {
        part: _kept(whole, divisors[part], size, tables.get(part)) for part, size in each.items()
    }


def _offload(cases: TrainingCases, states: dict[str, Float]) -> tuple[dict[str, Float], Float]:
    """What is left on the device, and the bytes that a device of the fullest stage keeps on its host."""
    away = cases.offload[:, None] > 0
    host: Float = np.nanmax(np.where(away, states["optimizer"] + states["master"], 0.0), axis=1)
    return states | {
        part: np.where(away, 0.0 * states[part], states[part]) for part in ("optimizer", "master")
    }, host


def _logits(setting: TrainingSetting, cases: TrainingCases) -> Float:
    """How many values the last stage has at once."""
    _, _, last = stage_layers(setting, cases)
    pieces = np.where(cases.fused_loss > 0, LOSS_CHUNKS, 1.0)
    return last * (cases.tokens * setting.model.vocabulary / cases.tp / pieces)[:, None]


def _moving(
    setting: TrainingSetting, cases: TrainingCases, whole: Held, gradients: Float, logits: Float
) -> dict[str, Float]:
    """What comes and goes within a step; with FSDP gradients too."""
    if setting.framework.sharding == "fsdp":
        return fullest(setting, cases, _stage(setting, cases, whole, gradients, logits))
    count, first, _ = stage_layers(setting, cases)
    return {
        "loss": setting.framework.loss_bytes.value * logits,
        "gathered": _gathered(setting, cases, whole),
        "activations": _activations(setting, cases, count, first),
        "temporary": 0.0 * count,
    }


def _reserve(setting: TrainingSetting, parts: dict[str, Float], logits: Float) -> Float:
    """What the allocator holds beside: a share of what comes and goes, and the block of the 16-bit logits where a loss is eager.

    The fp32 copies made after them do not fit into it.
    """
    calibration, eager = setting.calibration, setting.framework.loss_bytes.value >= FP32_LOSS
    unfit = BYTES * logits if setting.framework.sharding == "fsdp" and eager else 0.0
    moving = add(parts[name] for name in ("gathered", "activations", "loss", "temporary"))
    return (
        unfit
        + moving * (calibration.fragmentation.value - 1)
        + np.where(np.isnan(logits), np.nan, calibration.reserve_bytes.value)
    )


_STAGES = {"parameters": 3, "gradients": 2, "optimizer": 1, "master": 1}
"""The ZeRO stage from which a state is divided."""


def _activations(
    setting: TrainingSetting, cases: TrainingCases, count: Float, first: Float
) -> Float:
    """What waits for the backward pass in each stage, and the layer that is being recomputed."""
    model = setting.model
    kinds = [
        (layer_bytes(setting, cases, kind), kept_bytes(setting, cases, kind), n)
        for kind, n in model.kinds
    ]
    mean_kept = add(kept * n for _, kept, n in kinds) / len(model.layers)
    largest = np.max([whole for whole, _, _ in kinds], axis=0)
    redone = np.where(
        cases.recompute > 0, largest - np.min([kept for _, kept, _ in kinds], axis=0), 0.0
    )
    flights = in_flight(cases)
    per_layer = mean_kept[:, None] * count + first * boundary_bytes(setting, cases)[:, None]
    return cases.tokens[:, None] * (flights * per_layer + np.maximum(redone, 0.0)[:, None])
