"""Many training splits of one model on one kind of device, as columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

import numpy as np

from recipe_core.base.arrays import Bool, Float, Int
from recipe_core.engines.frameworks import Calibration, Framework, Optimizer, States, training_data
from recipe_core.engines.quantized_bases import QuantizedBase, checkpoint_base, quantized_bases
from recipe_core.estimates.columns.columns import Columns, stretch_columns
from recipe_core.estimates.columns.dims import ParallelDims
from recipe_core.estimates.columns.rollout import Sampling
from recipe_core.hardware.cluster import Cluster
from recipe_core.hardware.host import StorageTier
from recipe_core.models.spec import ModelSpec
from recipe_core.request.candidate import CudaGraphs, Fp8Recipe, RecomputedModule
from recipe_core.request.phases import Evaluation, Phase, Ramp
from recipe_core.request.training_workload import Attention, Loading

RECOMPUTE = ("none", "selective", "full")
# Parts of a layer that selective recomputation can name; the position is the bit in a column.
RECOMPUTED = get_args(RecomputedModule)
# Pipeline schedules; the position is the code in a column. zb-v has the first and the last chunk on
# the first stage; dualpipe feeds a pipeline from both ends, so each stage is there twice.
SCHEDULES = ("1f1b", "interleaved", "gpipe", "zb-h1", "zb-v", "dualpipe")

# Where states live: on the device; optimizer states in host memory, or on the host's disks; or all
# of them (parameters, gradients and optimizer states) in host memory. The position is the code in a
# column.
OFFLOADS = ("none", "optimizer", "optimizer-nvme", "parameters")

Method = Literal["pretrain", "finetune", "lora", "qlora", "dpo", "grpo", "ppo"]
Precision = Literal["bf16", "fp16", "fp8"]


@dataclass(frozen=True, slots=True)
class Failures:
    """Failures of devices, the time of restarts and repairs, and the writing of checkpoints.

    ``basis``: what the failures rest on. ``node_loss``: share of them that take a node away until
    it is repaired; a restart ends the others. ``storage``: a tier; without one,
    ``storage_bytes_per_s`` is that of all nodes together. ``restart_s`` is without the time to read
    a checkpoint from ``storage`` where ``reads_back``. ``min_nodes``: of an elastic run; None for
    one that waits for a repair. ``interval_s``: None for the interval that loses least.
    ``slow_nodes``: share of nodes that are slower by ``slowdown``. ``limit_s``: longest time of one
    start, None without a limit.
    """

    device_mtbf_s: float
    storage_bytes_per_s: float | None
    restart_s: float
    repair_s: float = 0.0
    min_nodes: int | None = None
    asynchronous: bool = False
    interval_s: float | None = None
    kept_checkpoints: int = 1
    basis: str | None = None
    node_loss: float = 1.0
    spare_nodes: int = 0
    storage: StorageTier | None = None
    reads_back: bool = False
    usd_per_byte_s: float = 0.0
    slow_nodes: float = 0.0
    slowdown: float = 0.0
    limit_s: float | None = None


@dataclass(frozen=True, slots=True)
class TrainingSetting:
    """The facts that all cases of one call share.

    ``ramp``: what ``phases`` are, where they are one; ``sampling``: of reinforcement learning.
    ``mtp_layers``: layers of multi-token prediction, trained beside the model's.
    ``compiles``: as asked, None for the framework's own.
    """

    model: ModelSpec
    cluster: Cluster
    engine: str
    framework: Framework
    precision: Precision
    method: Method
    optimizer_name: str
    optimizer: Optimizer
    attention: Attention
    fused_loss: bool | None
    lora_rank: int
    lora_alpha: float
    lora_targets: Literal["attention", "mlp", "all"]
    calibration: Calibration
    failures: Failures
    data_format: Literal["text", "chat", "preference"] | None = None
    data: str | None = None
    document_tokens: int | None = None
    packed: bool = True
    gradient_dtype: Literal["fp32", "bf16"] | None = None
    state_dtype: Literal["fp32", "bf16"] | None = None
    moment_dtype: Literal["fp32", "bf16", "fp8"] | None = None
    activation_dtype: Literal["bf16", "fp8"] | None = None
    mtp_layers: int = 0
    loading: Loading = field(default_factory=Loading)
    phases: tuple[Phase, ...] = ()
    ramp: Ramp | None = None
    evaluation: Evaluation | None = None
    sampling: Sampling | None = None
    fp8_recipe: Fp8Recipe | None = None
    cuda_graphs: CudaGraphs = "none"
    compiles: bool | None = None

    @property
    def flash(self) -> bool:
        """Return whether attention is fused, so that its scores are never in memory."""
        return self.attention != "eager"

    @property
    def frozen(self) -> bool:
        """Return whether only adapters are trained."""
        sampled = self.sampling is not None and self.sampling.adapters
        return self.method in ("lora", "qlora") or sampled

    @property
    def base(self) -> QuantizedBase | None:
        """The frozen base in four bits: the checkpoint's own, else as the framework makes QLoRA's.

        None for one in 16 bits, and where all weights are trained.
        """
        if self.method not in ("lora", "qlora"):
            return None
        if stored := self.stored_base:
            return stored
        return quantized_bases().bases[self.framework.quantized_base] if self.quantizes else None

    @property
    def stored_base(self) -> QuantizedBase | None:
        """The base in four bits that the checkpoint is (GPTQ, AWQ); None for others."""
        quantization = self.model.quantization
        if quantization is None or quantization.dtype != "int4":
            return None
        value_bytes = quantization.bytes_of(next(iter(quantization.roles)), "bf16")
        return checkpoint_base(quantization.scheme, value_bytes)

    @property
    def quantizes(self) -> bool:
        """Return whether the framework turns the frozen base into four bits."""
        return self.method == "qlora" and self.stored_base is None

    def adapts(self, half: Literal["attention", "mlp"] | str) -> bool:
        """Return whether a half of a layer has gradients, its own or those of adapters."""
        return not self.frozen or self.lora_targets in (half, "all")

    @property
    def fused(self) -> bool:
        """Return whether kernels keep inputs in 8 bits, and nothing between norms and products."""
        return self.precision == "fp8" and self.framework.fused_in_8_bit

    @property
    def trained_layers(self) -> int:
        """Layers of the model with those that predict further ahead."""
        return len(self.model.layers) + self.mtp_layers

    @property
    def states(self) -> States:
        """Bytes per parameter, with the gradients' dtype (16-bit gradients are added in place)."""
        by_precision = {"fp16": self.framework.states_fp16, "fp8": self.framework.states_fp8}
        usual = by_precision.get(self.precision) or self.framework.states
        if self.state_dtype == "bf16":
            half = {"parameter": 2.0, "gradient": 2.0, "reduced": 2.0}
            return usual.model_copy(update={**half, "transient": 0.0, "master": 0.0, "step": 0.0})
        if self.gradient_dtype is None:
            return usual
        wide = 4.0 if self.gradient_dtype == "fp32" else 2.0
        return usual.model_copy(
            update={
                "gradient": wide,
                "reduced": wide,
                "transient": usual.transient if wide > 2 else 0.0,
            }
        )

    def seen(self, sequence_length: Int | Float, window: int | None = None) -> Float:
        """Positions that a token attends to on average, backwards in its document."""
        longest = np.asarray(sequence_length, dtype=float)
        if self.document_tokens is not None:
            longest = np.minimum(longest, self.document_tokens)
        return np.minimum(longest / 2, window or np.inf)

    def useful(self, sequence_length: Int | Float) -> Float:
        """Share of the tokens that are not padding."""
        short = self.document_tokens is not None and not self.packed
        return np.minimum(
            (self.document_tokens if short else np.inf) / np.asarray(sequence_length, dtype=float),
            1.0,
        )

    @property
    def attention_slowdown(self) -> float:
        """Time of attention's kernels in training, of that of a prompt's."""
        framework_figure = self.framework.attention_slowdown
        return (framework_figure or self.calibration.attention_slowdown).value

    @property
    def fragmentation(self) -> float:
        """Memory that the allocator reserves, of what a step allocates and frees."""
        framework_figure = self.framework.fragmentation
        return (framework_figure or self.calibration.fragmentation).value

    def pace(self, dtype: str) -> float:
        """Rate of matrix products in training, relative to the roofline of the products alone."""
        usual_pace = self.calibration.pace(self.cluster.device, dtype)
        framework_pace = self.framework.products.get(self.cluster.device.architecture[:-1])
        return (
            usual_pace
            if framework_pace is None or dtype == "fp8"
            else usual_pace * framework_pace.value
        )

    @property
    def grouped_rate(self) -> float:
        """Rate of the grouped products of routed experts, of that of other products."""
        handling = self.framework.experts
        measured = {} if handling is None else handling.grouped
        rate = measured.get(self.cluster.device.architecture[:-1])
        return 1.0 if rate is None or self.precision == "fp8" else rate.value


@dataclass(frozen=True, slots=True)
class TrainingCases(Columns):
    """One row a case; all columns have the same length.

    tp, pp, cp, dp: degrees; their product is the devices. virtual_stages: chunks of layers a stage
    holds. ep: ranks that share the experts, within tp × cp × dp. shard: ranks over which states are
    divided (fewer than dp × cp: HSDP). zero_stage: 0 none, 1 optimizer and master, 2 gradients too,
    3 all. micro_batch: sequences a replica works on at once. recompute, schedule, offload:
    positions in `RECOMPUTE`, `SCHEDULES`, `OFFLOADS`. recompute_layers: layers of the model that
    are recomputed (0: all). recompute_modules: what selective recomputation names, bits in the
    order of `RECOMPUTED` (0: the framework's own). overlap_experts: 1 where the exchange of tokens
    is hidden behind another micro-batch. activation_offload: 1 where activations wait on the host.
    sync_step: 1 where replicas exchange gradients once a step. fused_loss:
    1 where logits are made piece by piece. token_budget: tokens of the whole run, NaN where none is
    stated. sampling_devices: those that only sample answers, beside the split's.
    """

    tp: Int
    pp: Int
    virtual_stages: Int
    cp: Int
    ep: Int
    dp: Int
    shard: Int
    zero_stage: Int
    micro_batch: Int
    recompute: Int
    recompute_layers: Int
    recompute_modules: Int
    overlap_experts: Int
    schedule: Int
    offload: Int
    activation_offload: Int
    sync_step: Int
    sequence_parallel: Int
    fused_loss: Int
    sequence_length: Int
    global_batch: Int
    per_node: Int
    nodes: Int
    token_budget: Float
    sampling_devices: Int

    def __len__(self) -> int:
        return len(self.tp)

    def in_phase(self, phase: Phase) -> TrainingCases:
        """The same splits with the shape of a phase; cp takes its ranks from dp."""
        cp = self.cp if phase.cp is None else np.full(len(self), phase.cp, dtype=np.int64)
        length, batch = phase.sequence_length, phase.global_batch
        return replace(
            self,
            cp=cp,
            dp=np.maximum(self.dp * self.cp // cp, 1),
            sequence_length=self.sequence_length if length is None else np.full_like(cp, length),
            global_batch=self.global_batch if batch is None else np.full_like(cp, batch),
            token_budget=np.full(len(self), phase.tokens),
        )

    @property
    def devices(self) -> Int:
        """Devices of a case."""
        return self.tp * self.pp * self.cp * self.dp

    @property
    def all_devices(self) -> Int:
        """Devices of a case with those that only sample."""
        return self.devices + self.sampling_devices

    @property
    def replicas(self) -> Int:
        """Ranks that hold the same part of the model, over which states can be divided."""
        return self.dp * self.cp

    @property
    def tokens(self) -> Float:
        """Tokens of a micro-batch on one rank."""
        return self.micro_batch * self.sequence_length / self.cp

    @property
    def step_tokens(self) -> Float:
        """Tokens of a step, padding among them."""
        return (self.global_batch * self.sequence_length).astype(np.float64)

    @property
    def micro_batches(self) -> Int:
        """Micro-batches of a step on one replica (gradient accumulation, or a pipeline's fill)."""
        batches: Int = np.maximum(self.global_batch // np.maximum(self.dp * self.micro_batch, 1), 1)
        return batches

    @property
    def norm_share(self) -> Float:
        """Ranks among which sequence parallelism cuts what tensor parallelism does not."""
        return np.where(self.sequence_parallel > 0, self.tp, 1).astype(np.float64)

    @property
    def nodes_used(self) -> Float:
        """Nodes a case reaches over."""
        return np.ceil(self.devices / self.per_node)

    def dims(self, i: int) -> ParallelDims:
        """Degrees and batch of case ``i``."""
        names = ("tp", "pp", "cp", "dp", "micro_batch", "global_batch", "shard")
        return ParallelDims(**{name: int(getattr(self, name)[i]) for name in names})

    @property
    def host_parameters(self) -> Bool:
        """Mark cases with parameters, gradients and optimizer states in host memory."""
        return np.asarray(self.offload == OFFLOADS.index("parameters"))

    def has(self, schedule: str) -> Bool:
        """Mark where this schedule is used, one per case."""
        return np.asarray(self.schedule == SCHEDULES.index(schedule))


def training_cases(n: int, **columns: Any) -> TrainingCases:
    """Cases from scalars and arrays, every column stretched to ``n`` rows.

    Left out, degrees are 1, there is no recomputation, tensor-parallel ranks cut sequences too,
    states are divided over all replicas, and the schedule is the one that ``virtual_stages`` needs.
    """
    defaults: dict[str, Any] = dict.fromkeys(
        ("tp", "pp", "virtual_stages", "cp", "ep", "dp", "micro_batch", "sequence_parallel"), 1
    )
    nothing = dict.fromkeys(
        (
            "zero_stage",
            "recompute",
            "recompute_layers",
            "recompute_modules",
            "overlap_experts",
            "offload",
            "activation_offload",
            "sync_step",
            "fused_loss",
            "sampling_devices",
        ),
        0,
    )
    values = {**defaults, **nothing, **columns}
    chunked = np.asarray(values["virtual_stages"]) > 1
    values.setdefault("schedule", np.where(chunked, SCHEDULES.index("interleaved"), 0))
    values.setdefault("shard", np.asarray(values["dp"]) * np.asarray(values["cp"]))
    values.setdefault("token_budget", np.nan)
    return stretch_columns(TrainingCases, n, values)


def modules_code(names: Sequence[str]) -> int:
    """Names of `RECOMPUTED` as bits of a column."""
    return sum(1 << RECOMPUTED.index(name) for name in set(names))


def modules_of(code: int) -> tuple[str, ...]:
    """The names in bits of a column."""
    return tuple(name for bit, name in enumerate(RECOMPUTED) if code >> bit & 1)


def training_calibration() -> Calibration:
    """The fitted and assumed constants that this version ships."""
    return training_data().figures
