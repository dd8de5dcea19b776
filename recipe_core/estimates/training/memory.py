"""Memory of a rank by part and pipeline stage.

States (bytes per parameter) follow ZeRO's table, arXiv:1910.02054: stage 1 divides optimizer states
and the fp32 master copy over the ranks of a shard, stage 2 gradients too, stage 3 parameters too.
What a layer needs unsharded while it is computed is the ``gathered`` part: the current unit, the
prefetched one, and a unit's gradient before it is scattered; without such units 16-bit gradients
before they are added. Activations: `activations`. The loss needs ``loss_bytes`` for each logit on
the last stage. Fragmentation is a share of what is allocated and freed within a step. Beside what
torch counts each group of ranks has a communicator with buffers of its own (NCCL, issues 864 and
964); those of the first group are in ``context_bytes``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np

from recipe_core.base.arrays import Float, add
from recipe_core.estimates.columns.columns import Columns
from recipe_core.estimates.columns.training import TrainingCases, TrainingSetting, training_cases
from recipe_core.estimates.training.activations import BYTES, in_flight, is_eager, logits_at_once
from recipe_core.estimates.training.frozen_base import (
    buffer_bytes,
    gathered_weight_bytes,
    matrix_bytes,
    weight_bytes,
)
from recipe_core.estimates.training.optimizer_states import (
    offload_states,
    optimizer_state_bytes,
    table_state_bytes,
)
from recipe_core.estimates.training.peak_memory import Stage, fullest_moment
from recipe_core.estimates.training.stages import (
    RankParameters,
    by_length,
    layer_parameters,
    parameters_by_stage,
    stage_layer_counts,
    with_mirror,
)
from recipe_core.estimates.training.unsharded_peak import loss_or_layer, offloaded_activations

# Parts of a device's memory, as a person calls them.
MEMORY_TITLES = {
    "parameters": "Parameters",
    "gradients": "Gradients",
    "optimizer": "Optimizer states",
    "master": "Master copy",
    "reference": "Reference model",
    "gathered": "Gathered units",
    "activations": "Activations",
    "loss": "Logits and loss",
    "temporary": "Temporary buffers",
    "reserve": "Allocator reserve",
}
PARTS = tuple(MEMORY_TITLES)
# Bytes a parameter of the frozen reference model of DPO.
REFERENCE_BYTES = 2.0


@dataclass(frozen=True, slots=True)
class Memory(Columns):
    """Bytes by part, each of shape (cases, stages) with NaN past a case's last stage.

    By case, ``capacity_bytes``: what a process can have; ``host_bytes``: what a device of the
    fullest stage keeps in its host's memory or on its disks; ``peak_bytes``: all parts of the
    fullest stage.
    """

    parts: dict[str, Float]
    capacity_bytes: Float
    host_bytes: Float
    peak_bytes: Float

    @property
    def by_stage(self) -> Float:
        """All parts together, of shape (cases, stages)."""
        return add(self.parts.values())

    def stages_of(self, i: int) -> Float:
        """All parts together by stage, of one case."""
        return add(part[i] for part in self.parts.values())


def _gathered_bytes(setting: TrainingSetting, cases: TrainingCases, rank: RankParameters) -> Float:
    """Bytes of unsharded units: two layers (current and next), embedding or head, a gradient.

    A 4-bit base in host memory is divided by the first FSDP, whose root unit, embedding and head,
    stays gathered (torch 2.13, ``distributed/fsdp/_runtime_utils.py``, ``_post_forward_reshard``).
    """
    states, model = setting.states, setting.model
    sizes = [add(layer_parameters(setting, cases, kind)) for kind, _ in model.kinds]
    unit = np.max(sizes, axis=0)[:, None]
    hosted = cases.host_parameters[:, None]
    table = np.minimum(rank.vocabulary, (model.vocabulary * model.hidden / cases.tp)[:, None])
    if setting.quantizes:
        table = np.where(hosted, rank.vocabulary, table)
    gradient = 0.0 if setting.frozen else states.reduced
    live = gathered_weight_bytes(setting) * 2 * unit + states.gathered * table
    live = live + gradient * np.maximum(unit, table)
    sharded = (cases.shard[:, None] > 1) | hosted
    before: Float | float = 0.0
    if not (setting.frozen or setting.fused):
        before = states.transient * (rank.dense + rank.experts + rank.vocabulary)
    return np.where(sharded & (cases.zero_stage[:, None] == 3), live, before)


def _peak_stage(
    setting: TrainingSetting,
    cases: TrainingCases,
    rank: RankParameters,
    sharded: Float,
    logits: Float,
) -> Stage:
    """Return the facts of each stage for `peak_memory`; ``sharded``: bytes of sharded gradients."""
    model, piped = setting.model, cases.pp[:, None] > 1
    gradient = 0.0 if setting.frozen else setting.states.gradient
    count, first, last = stage_layer_counts(setting, cases)
    parameters = rank.dense + rank.experts + rank.vocabulary
    sizes = [add(layer_parameters(setting, cases, kind)) for kind, _ in model.kinds]
    unit = np.max(sizes, axis=0)[:, None]
    table = (model.vocabulary * model.hidden / cases.tp)[:, None]
    trained = rank.adapters if setting.frozen else parameters
    per_parameter = gradient / np.where(
        piped, 1.0, _zero_divisor(cases, 2, cases.shard.astype(float))
    )
    per_parameter = np.where(cases.host_parameters[:, None] & ~piped, 0.0, per_parameter)
    # DTensor makes the embedding's gradient of the whole vocabulary, which a pipeline keeps
    unsplit = 0.0 if setting.frozen else first * table * (cases.tp[:, None] - 1)
    gradients = np.where(piped, setting.states.gradient * (trained + unsplit), sharded)
    return Stage(
        count,
        first,
        last,
        parameters,
        unit,
        table,
        tables=rank.vocabulary / table,
        sharded_gradients=sharded,
        gradients=gradients,
        unit_gradients=per_parameter * unit,
        table_gradients=per_parameter * table,
        logits=logits,
    )


def _zero_divisor(cases: TrainingCases, stage: int, ranks: Float) -> Float:
    """The divisor, of shape (cases, 1), of a state that is divided from a ZeRO stage on."""
    return np.where(cases.zero_stage >= stage, np.maximum(ranks, 1), 1)[:, None].astype(float)


def training_memory(setting: TrainingSetting, cases: TrainingCases) -> Memory:
    """Bytes of every part on the fullest rank of each stage, and what a process can have."""
    columns = by_length(cases, partial(_memory_part_columns, setting))
    host, peak = columns.pop("host"), columns.pop("peak")
    return Memory(
        columns,
        process_usable_bytes(setting, cases),
        host,
        peak,
    )


def _memory_part_columns(setting: TrainingSetting, cases: TrainingCases) -> dict[str, Float]:
    """Parts of memory by stage; by case bytes on the ``host``, and the ``peak`` over stages."""
    rank, divisors = parameters_by_stage(setting, cases), _state_divisors(setting, cases)
    logits = _stage_logits(setting, cases)
    undivided = _undivided_ranks(rank)
    states = _lasting_states(setting, rank, divisors)
    states["reference"] = _reference_bytes(setting, rank, divisors["parameters"])
    buffers = buffer_bytes(setting) * (rank.dense + rank.experts)
    states, host = offload_states(setting, cases, states, parameter_bytes(setting, rank, undivided))
    states["parameters"] = states["parameters"] + buffers
    count, _, _ = stage_layer_counts(setting, cases)
    waiting = in_flight(cases) * count * offloaded_activations(setting, cases)[:, None]
    host = host + np.nanmax(waiting, axis=1)
    moving = _moving_bytes(setting, cases, rank, states["gradients"], logits)
    parts = {**states, **moving}
    parts["reserve"] = _reserve_bytes(setting, cases, parts, logits)
    return {**parts, "host": host, "peak": np.nanmax(add(parts.values()), axis=1)}


# By state: ranks over which it is divided, of dense parameters and of experts.
Divisors = dict[str, tuple[Float, Float]]


def _state_divisors(setting: TrainingSetting, cases: TrainingCases) -> Divisors:
    """Divisors by ZeRO's stages.

    FSDP divides parameters at stage 2 too, and then keeps gathered ones. Gradients that wait for
    the end of a step are unsharded until then. Where a pipeline is fed from both ends every stage
    is there twice, so twice as many ranks share its states.
    """
    shard = cases.shard.astype(float) * np.where(cases.has("dualpipe"), 2.0, 1.0)
    expert_shard = np.where(cases.ep > 1, np.maximum(shard * cases.tp / cases.ep, 1), shard)
    stages = dict(_STAGES)
    if setting.framework.sharding == "fsdp":
        stages["parameters"] = 2
    out = {
        part: (_zero_divisor(cases, stage, shard), _zero_divisor(cases, stage, expert_shard))
        for part, stage in stages.items()
    }
    synced = np.where(cases.sync_step[:, None] > 0, 1.0, np.inf)
    dense, experts = out["gradients"]
    out["gradients"] = (np.minimum(dense, synced), np.minimum(experts, synced))
    return out


def _divided_bytes(
    rank: RankParameters,
    divisors: tuple[Float, Float],
    size: float,
    vocabulary: float | None = None,
) -> Float:
    """Bytes of a state on each rank, of ``size`` bytes a parameter, divided over the others.

    ``vocabulary``: bytes a parameter of embedding and head, where they differ.
    """
    dense, experts = divisors
    table = rank.vocabulary * (size if vocabulary is None else vocabulary)
    return (size * rank.dense + table) / dense + size * rank.experts / experts


def _lasting_states(
    setting: TrainingSetting, rank: RankParameters, divisors: Divisors
) -> dict[str, Float]:
    """Bytes of what stays from step to step.

    Of all parameters, or of a frozen base (its vocabulary in 16 bits) and all of its adapters.
    """
    states = setting.states
    sizes = {
        "parameters": states.parameter,
        "gradients": states.gradient,
        "optimizer": optimizer_state_bytes(setting),
        "master": states.master,
    }
    parameters = parameter_bytes(setting, rank, divisors["parameters"])
    if setting.frozen:
        out = {part: size * (rank.adapters / divisors[part][0]) for part, size in sizes.items()}
        return {**out, "parameters": parameters}
    tables = {"optimizer": table_state_bytes(setting)}
    return {
        part: _divided_bytes(rank, divisors[part], size, tables.get(part))
        for part, size in sizes.items()
    }


def _undivided_ranks(rank: RankParameters) -> tuple[Float, Float]:
    return np.ones_like(rank.dense), np.ones_like(rank.dense)


def _reference_bytes(
    setting: TrainingSetting, rank: RankParameters, divisors: tuple[Float, Float]
) -> Float:
    """Bytes of DPO's frozen model, which some have whole on every device, on a CPU in fp32."""
    undivided = not setting.framework.reference_divided
    wider = undivided and setting.cluster.device.runtime == "cpu"
    size = REFERENCE_BYTES * (2 if wider else 1) if setting.method == "dpo" else 0.0
    return _divided_bytes(
        rank, divisors if setting.framework.reference_divided else _undivided_ranks(rank), size
    )


def stored_parameters(
    setting: TrainingSetting, cases: TrainingCases, rank: RankParameters
) -> tuple[Float, Float]:
    """Bytes of a device's part of the parameters and of a divided reference, by stage."""
    divisors = _state_divisors(setting, cases)["parameters"]
    reference = _reference_bytes(setting, rank, divisors)
    divided = 1.0 if setting.framework.reference_divided else 0.0
    return parameter_bytes(setting, rank, divisors), divided * reference


def adapter_parameters(setting: TrainingSetting) -> float:
    """Parameters of all adapters of the model."""
    sizes = dict.fromkeys(("sequence_length", "global_batch", "per_node", "nodes"), 1)
    return float(parameters_by_stage(setting, training_cases(1, **sizes)).adapters.sum())


def parameter_bytes(
    setting: TrainingSetting, rank: RankParameters, divisors: tuple[Float, Float]
) -> Float:
    """Bytes of parameters as they are stored, with those of adapters, each over its ``divisors``.

    A frozen base is in 16 or in 4 bits, its vocabulary always in 16; without buffers, which are not
    divided.
    """
    if not setting.frozen:
        return _divided_bytes(rank, divisors, setting.states.parameter)
    adapters = setting.states.parameter * (rank.adapters / divisors[0])
    return _divided_bytes(rank, divisors, weight_bytes(setting), BYTES) + adapters


def _stage_logits(setting: TrainingSetting, cases: TrainingCases) -> Float:
    """Logits that the last stage has at once, of shape (cases, stages).

    Those of every loss: each layer of multi-token prediction has its own.
    """
    _, _, last = stage_layer_counts(setting, cases)
    return with_mirror(cases, last * logits_at_once(setting, cases)[:, None])


def _moving_bytes(
    setting: TrainingSetting,
    cases: TrainingCases,
    rank: RankParameters,
    gradients: Float,
    logits: Float,
) -> dict[str, Float]:
    """Bytes allocated and freed within a step; with FSDP gradients too."""
    if setting.framework.sharding == "fsdp":
        return fullest_moment(setting, cases, _peak_stage(setting, cases, rank, gradients, logits))
    loss, activations = loss_or_layer(setting, cases, logits)
    count, _, _ = stage_layer_counts(setting, cases)
    return {
        "loss": loss,
        "gathered": _gathered_bytes(setting, cases, rank),
        "activations": activations,
        "temporary": np.where(count > 0, matrix_bytes(setting, cases)[:, None], 0.0 * count),
    }


def _reserve_bytes(
    setting: TrainingSetting, cases: TrainingCases, parts: dict[str, Float], logits: Float
) -> Float:
    """Return what the allocator reserves beside.

    A share of what is allocated and freed and, where a loss is eager, the block of the 16-bit
    logits, into which the fp32 copies made after them do not fit.
    """
    calibration, sharded = setting.calibration, setting.framework.sharding == "fsdp"
    eager = is_eager(setting, cases)[:, None] & sharded
    unfit = np.where(eager, BYTES * logits, 0.0)
    moving = add(parts[name] for name in ("gathered", "activations", "loss", "temporary"))
    fixed = np.where(np.isnan(logits), np.nan, calibration.reserve_bytes.value)
    return unfit + moving * (setting.fragmentation - 1) + fixed


# The ZeRO stage from which a state is divided.
_STAGES = {"parameters": 3, "gradients": 2, "optimizer": 1, "master": 1}


# Communicators

# Runtimes whose library (NCCL, RCCL) keeps buffers on the device.
_LIBRARIES = ("cuda", "rocm")


def communicator_bytes(setting: TrainingSetting, cases: TrainingCases) -> Float:
    """Bytes of the communicators of a rank beside its first (one per case).

    Groups: tensor, pipeline, context and expert parallelism, and replicas.
    """
    kinds = (cases.tp, cases.pp, cases.cp, cases.ep, cases.replicas)
    groups = np.sum([np.asarray(ranks) > 1 for ranks in kinds], axis=0)
    buffered = setting.cluster.device.runtime in _LIBRARIES
    each_bytes = setting.calibration.communicator_bytes.value if buffered else 0.0
    return np.asarray(each_bytes * np.maximum(groups - 1, 0), dtype=float)


def process_usable_bytes(setting: TrainingSetting, cases: TrainingCases) -> Float:
    """Bytes of a device that its process's tensors can have (one per case)."""
    outside = setting.calibration.context_bytes.value + communicator_bytes(setting, cases)
    return np.asarray(setting.cluster.device.usable_memory_bytes - outside)
