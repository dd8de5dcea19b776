"""The answer of a training estimate: SI units, in the names.

Memory is per device, of the fullest; throughput is of the whole job unless a name says per_gpu.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field

from recipe_core.estimates.prediction import (
    Amount,
    Count,
    EstimateBase,
    IntervalsByFigure,
    Known,
    Part,
    Positive,
    Seconds,
    Share,
    all_figures,
)

AtLeastOne = Annotated[int, Field(ge=1)]


@dataclass(frozen=True, slots=True)
class TrainingStage(Part):
    """Memory of one device of a pipeline stage when it holds most."""

    parameters_bytes: Amount
    """Parameters in the precision of the computation, in bytes."""
    gradients_bytes: Amount
    """Gradients, in bytes."""
    optimizer_bytes: Amount
    """States of the optimizer, in bytes."""
    master_bytes: Amount
    """Master copy of the parameters, in bytes."""
    reference_bytes: Amount
    """Frozen reference model (DPO), in bytes."""
    gathered_bytes: Amount
    """Parameters gathered from other devices for the layers at work, in bytes."""
    activations_bytes: Amount
    """Activations kept for the backward pass, in bytes."""
    loss_bytes: Amount
    """Logits and their gradients, in bytes."""
    temporary_bytes: Amount
    """Buffers of the operation at work, in bytes."""
    reserve_bytes: Amount
    """Reserve of the allocator and of communication, in bytes."""


@dataclass(frozen=True, slots=True)
class TrainingMemory(TrainingStage):
    """Memory of a device of the fullest stage."""

    total_bytes: Positive
    """Sum of the parts, in bytes."""
    usable_bytes: Positive
    """Memory that a process can have, in bytes."""
    capacity_bytes: Positive
    """Memory of the device, in bytes."""
    fullest_stage: Count
    """Index of the stage that holds most, from 0."""
    stages: list[TrainingStage] | None = None
    """Memory of each pipeline stage, where there are several."""
    host_bytes: Amount | None = None
    """States that a device keeps in its host's memory or on its disks, in bytes, where it does."""
    start_probability: Share | None = None
    """The probability that it starts, by how far measured peaks are from their estimates; None in
    estimates of earlier versions."""


@dataclass(frozen=True, slots=True)
class TrainingFigures(Part):
    """Time, throughput and memory of a step."""

    step_s: Positive
    """Time of a step, in seconds."""
    tokens_per_s: Positive
    """Trained tokens per second, of the whole job while it runs."""
    tokens_per_s_per_gpu: Positive
    """Trained tokens per second and device."""
    flops_per_s_per_gpu: Positive
    """Model floating-point operations per second and device, without recomputation."""
    mfu: Positive
    """Model FLOPs utilisation: ``flops_per_s_per_gpu`` as a share of the device's peak in the
    precision of the computation."""
    peak_memory_bytes: Positive
    """Memory of the fullest device, in bytes."""
    memory_by_stage_bytes: list[Positive]
    """Memory of a device of each pipeline stage, in bytes."""
    micro_batches: AtLeastOne
    """Micro-batches that a replica computes in a step."""
    bubble_share: Share
    """Share of a step in which pipeline stages wait for each other, 0 to 1."""
    hfu: Positive | None = None
    """Hardware FLOPs utilisation: as ``mfu``, with the operations that recomputation repeats; null
    where nothing is recomputed."""


@dataclass(frozen=True, slots=True)
class RunShares(Part):
    """Shares of a run's time by what takes it; they add up to 1."""

    steps: Share
    """Steps: the goodput."""
    slow_nodes: Share
    """Waiting for nodes that are slower than the others."""
    evaluation: Share
    """Evaluations."""
    checkpoints: Share
    """Waiting for checkpoints."""
    lost_work: Share
    """Steps that are done again after a failure."""
    restarts: Share
    """Restarts after failures."""
    waiting: Share
    """Waiting for a node in repair."""
    time_limits: Share = 0.0
    """What ends at the time limit of each start cost: a restart, and steps that are done again."""


@dataclass(frozen=True, slots=True)
class TrainingPhase(Part):
    """A phase of the run: its shape, and what it takes."""

    tokens: Positive
    """Tokens of the phase."""
    sequence_length: AtLeastOne
    """Length of a training sequence, in tokens."""
    global_batch: AtLeastOne
    """Sequences per optimizer step."""
    cp: AtLeastOne
    """Context parallelism."""
    dp: AtLeastOne
    """Data parallelism."""
    steps: Positive
    """Steps of the phase."""
    step_s: Positive
    """Time of a step, in seconds."""
    tokens_per_s: Positive
    """Trained tokens per second while steps run."""
    peak_memory_bytes: Positive
    """Memory of the fullest device, in bytes."""
    wall_s: Positive
    """Time of the phase with its share of all losses, in seconds."""


@dataclass(frozen=True, slots=True)
class TrainingRun(Part):
    """The whole run, with failures and checkpoints.

    Null where it depends on an unstated number of tokens.
    """

    steps: Known
    """Steps of the run."""
    wall_s: Known
    """Time from start to finish, in seconds."""
    checkpoint_bytes: Known
    """Size of a checkpoint, in bytes."""
    checkpoint_s: Known
    """Time to write a checkpoint, in seconds."""
    checkpoint_stall_s: Known
    """Time that training waits for a checkpoint, in seconds."""
    storage_bytes: Known
    """Storage for the checkpoints that are kept, in bytes."""
    mtbf_s: Known
    """Mean time between failures of the whole job, in seconds."""
    checkpoint_interval_s: Known
    """Time between checkpoints, in seconds."""
    goodput: Known
    """Share of the time that steps take whose work ends up in the model, 0 to 1: what evaluations,
    checkpoints, failures and slow nodes leave."""
    data_tokens_per_s: Known
    """Tokens per second that data loading must deliver."""
    data_bytes_per_s: Known
    """Bytes per second that data loading must read."""
    elastic_nodes: list[AtLeastOne] | None = None
    """Numbers of nodes that an elastic run can go on with after failures."""
    run_tokens_per_s: Known = None
    """Trained tokens per second of the whole run, all phases and losses included."""
    mfu: Known = None
    """Model FLOPs utilisation of the whole run: model operations over wall time and peak."""
    failures: Known = None
    """Failures that are expected in the run."""
    restart_s: Known = None
    """Time of a restart, reading the checkpoint included, in seconds."""
    evaluation_s: Known = None
    """Time of one evaluation, in seconds; 0 without any."""
    spares_suffice: Share | None = None
    """Probability that a spare node is there when a node is lost; null without spares."""
    time_shares: RunShares | None = None
    """Shares of the run's time by what takes it."""
    phases: list[TrainingPhase] | None = None
    """Phases of the run in order, where it has several."""


@dataclass(frozen=True, slots=True)
class TrainingCost(Part):
    """Cost of the devices; null where their price, or the number of tokens to train, is unknown."""

    usd_per_hour: Known
    """All devices for an hour, in US dollars."""
    usd_per_million_tokens: Known
    """A million trained tokens, in US dollars."""
    usd: Known
    """The whole run, in US dollars."""
    devices_rented: Known = None
    """Devices that are paid for: those of whole machines, where machines are rented whole, and
    spare nodes."""
    usd_storage: Known = None
    """Storage of the checkpoints, as part of ``usd``, in US dollars."""


@dataclass(frozen=True, slots=True)
class TrainingEnergy(Part):
    """Power and energy of all devices, without their hosts."""

    watts: Known
    """Mean power, in watts."""
    joules_per_token: Known
    """Energy of a trained token, in joules."""
    energy_joules: Known
    """Energy of the whole run, in joules."""


@dataclass(frozen=True, slots=True)
class StepParts(Part):
    """Times by what takes them."""

    step: Seconds
    """Parts of ``step_s``, in seconds."""


@dataclass(frozen=True, slots=True)
class Reinforced(Part):
    """A step of reinforcement learning: how answers are sampled, scored and trained on."""

    phases_s: Seconds
    """Phases in seconds, each whole: ``rollout``, ``old_log_probs``, ``reference``, ``rewards``,
    ``values`` and ``critic`` (PPO), ``update``, ``weight_sync``, ``state_moves``. With
    ``placement: apart`` the rollout runs beside the others, and ``breakdown_s`` has what it adds to
    the step."""
    answers: AtLeastOne
    """Answers of a step."""
    updates: AtLeastOne
    """Optimizer steps of a step."""
    rollout_tail_s: Amount
    """Time of the rollout in which only the longest answers are left, in seconds."""
    rollout_tokens_per_s: Positive
    """Tokens of answers per second while the engine is full, of all its copies."""
    rollout_engine: str
    """Serving engine that samples."""
    rollout_tp: AtLeastOne
    """Tensor-parallel ranks of a copy of the engine."""
    rollout_copies: AtLeastOne
    """Copies of the engine."""
    rollout_in_flight: Positive
    """Answers that a copy decodes at once."""
    rollout_memory_share: Share
    """Share of a device's memory that the engine takes."""
    rollout_bytes: Positive
    """Memory of a device while answers are sampled, in bytes."""
    training_bytes: Positive
    """Memory of the fullest device while the model is trained, in bytes."""
    offloaded_bytes: Amount
    """States that wait in the host's memory meanwhile, in bytes of a device; 0 where none do."""
    weight_sync_bytes: Positive
    """Weights that the engine is sent after each step, in bytes."""
    usd_per_step: Known
    """A step, in US dollars; null where the price of the devices is unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingEstimate(EstimateBase):
    """An estimate of training.

    One that is not feasible has reasons, and memory unless a rule other than memory refuses it.
    """

    schema_version: Literal[1]
    """Version of this schema."""
    feasible: bool
    """Whether the layout can run within the limits of the request."""
    reasons: list[str]
    """Why it cannot run; empty when it can."""
    notes: list[str]
    """What to know beside the figures."""
    memory: TrainingMemory | None = None
    """Memory of the fullest device."""
    training: TrainingFigures | None = None
    """Time, throughput and memory of a step."""
    reinforcement: Reinforced | None = None
    """How answers are sampled and scored, where a method learns from them."""
    run: TrainingRun | None = None
    """The whole run."""
    cost: TrainingCost | None = None
    """Cost of the devices."""
    energy: TrainingEnergy | None = None
    """Power and energy of the devices."""
    bands: dict[str, tuple[float, float]] | None = None
    """Lower and upper end, by figure, of the band in which eight of ten measured runs are expected,
    in the figure's unit."""
    intervals: IntervalsByFigure | None = None
    """The same at 50, 80 and 95 %, by figure and level: that share of measured runs is expected
    inside; the band is that of 80 %."""
    basis: dict[str, str] | None = None
    """What each figure and the price rest on."""
    breakdown_s: StepParts | None = None
    """Parts of a step, in seconds."""

    def figures(self) -> Mapping[str, Any]:
        """Time, throughput and memory of a step, cost and energy of a token, by name."""
        return {} if self.training is None else all_figures(self.training, self.cost, self.energy)


_OPERATORS = {
    "matmul": "matrix products",
    "attention": "attention",
    "elementwise": "elementwise",
    "experts": "experts",
    "dequantize": "4 to 16 bits",
    "tensor_parallel": "all-reduce (TP)",
    "expert_parallel": "all-to-all (EP)",
    "context_parallel": "ring (CP)",
}
# What takes the time of a training run, by the fields of its shares.
RUN_TITLES = {
    "steps": "Steps (goodput)",
    "slow_nodes": "Slow nodes",
    "evaluation": "Evaluations",
    "checkpoints": "Checkpoints",
    "lost_work": "Work done again",
    "restarts": "Restarts",
    "waiting": "Waiting for nodes",
    "time_limits": "Ends at the time limit",
}

# Labels of the phases of a step of reinforcement learning, in their order.
PHASE_TITLES = {
    "rollout": "Rollout",
    "old_log_probs": "Own log-probabilities",
    "reference": "Reference model",
    "rewards": "Rewards",
    "values": "Critic's values",
    "critic": "Update of the critic",
    "update": "Update",
    "weight_sync": "Weights to the engine",
    "state_moves": "States to the host and back",
}

# Labels of the parts of a training step.
STEP_TITLES = {
    **{f"forward_{name}": f"Forward, {label}" for name, label in _OPERATORS.items()},
    **{f"backward_{name}": f"Backward, {label}" for name, label in _OPERATORS.items()},
    "embedding": "Embedding",
    "head": "Language-model head",
    "loss": "Loss",
    "recompute": "Recomputation",
    "reference": "Reference model",
    "data_loading": "Waiting for data",
    "launch": "Kernel launches",
    "bubble": "Pipeline bubble",
    "pipeline_parallel": "Pipeline send/receive (PP)",
    "data_parallel": "Gradients and parameters (DP)",
    "host_parameters": "Parameters from host memory",
    "optimizer": "Optimizer",
    "fixed": "Fixed time per step",
    "stragglers": "Stragglers",
    **{name: label for name, label in PHASE_TITLES.items() if name != "update"},
}
