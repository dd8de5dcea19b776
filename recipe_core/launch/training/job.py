"""One estimated row as a job, and what frameworks share: processes, torchrun's words."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from recipe_core.base.errors import InputError
from recipe_core.engines.training_programs import Hyper, training_engine, usual_hyperparameters
from recipe_core.estimates.columns.dims import ParallelDims
from recipe_core.estimates.columns.rollout import Sampling
from recipe_core.estimates.columns.training import (
    OFFLOADS,
    RECOMPUTE,
    SCHEDULES,
    TrainingSetting,
    modules_of,
)
from recipe_core.estimates.training.estimates import TrainingEstimates
from recipe_core.estimates.training.memory import training_memory
from recipe_core.estimates.training.operators import flops_per_token
from recipe_core.estimates.training.phases import elastic_nodes
from recipe_core.estimates.training.reinforcement import at_longest
from recipe_core.estimates.training.stages import stage_layer_counts
from recipe_core.estimates.training.starts import memory_rule
from recipe_core.launch.process import Launch, Process
from recipe_core.launch.training.sources import RAY_NODE, reward_files
from recipe_core.models.spec import Attention, MoeMlp
from recipe_core.request.rollout import Rollout

KEPT_CHECKPOINTS = 2
DATA = "RECIPE_DATA"  # by which programs of a bundle find other data than its sample
STOP_ROOM, STOP_LEAST_S = 1.5, 60  # of the time to finish a step and a checkpoint
RESTARTS = 3


@dataclass(frozen=True, slots=True)
class RolloutJob:
    """The sampling of answers, as it was estimated.

    ``devices``: those that only sample (0: those that train). ``packed_tokens``: of a micro-batch.
    ``offload``: whether states of the training wait on the host meanwhile.
    """

    sampling: Sampling
    devices: int
    tp: int
    copies: int
    memory_share: float
    offload: bool
    packed_tokens: int
    max_num_seqs: int
    max_batched_tokens: int

    @property
    def work(self) -> Rollout:
        return self.sampling.work


@dataclass(frozen=True, slots=True)
class Job:
    """A training run with nothing left to choose.

    ``dims``: every degree, the batch and what follows from them. ``stage_layers``: layers of each
    pipeline stage as they were estimated. ``steps`` is None without a token budget. ``stop_s``:
    time that a run which is told to stop has for its step and a checkpoint. ``host_bytes``: what a
    device keeps in its host's memory.
    ``fewest_nodes`` (worked out on call): what an elastic run can go on with.
    """

    setting: TrainingSetting
    dims: ParallelDims
    stage_layers: tuple[int, ...]
    virtual_stages: int
    ep: int
    zero_stage: int
    sequence_length: int
    per_node: int
    recompute: str
    recompute_modules: tuple[str, ...]
    overlap_experts: bool
    schedule: str
    sequence_parallel: bool
    recompute_layers: int
    offload: str
    sync_step: bool
    fused_loss: bool
    activation_offload: bool
    steps: int | None
    checkpoint_steps: int
    stop_s: int
    host_bytes: float
    flops_per_token: float
    hyper: Hyper
    fewest_nodes: Callable[[], int]
    rollout: RolloutJob | None = None

    @property
    def nodes(self) -> int:
        return math.ceil(self.dims.devices / self.per_node)

    @property
    def processes_per_node(self) -> int:
        return self.dims.devices // self.nodes

    @property
    def layers(self) -> int:
        return len(self.setting.model.layers)

    @property
    def moe(self) -> MoeMlp | None:
        return self.setting.model.experts

    @property
    def attention(self) -> Attention | None:
        """The one kind of plain attention that all layers share, if they do."""
        return self.setting.model.plain_attention

    @property
    def cuts(self) -> int:
        return self.dims.pp * self.virtual_stages

    @property
    def from_weights(self) -> bool:
        return self.setting.method != "pretrain"

    @property
    def data_format(self) -> str:
        """Say what the run learns from: as stated, or what its framework usually does."""
        if self.setting.method == "dpo":
            return "preference"
        usual = training_engine(self.setting.engine).launches.data[0]
        return self.setting.data_format or usual

    @property
    def has_home(self) -> bool:
        """Return whether a run reads files of the model: known ones, or weights to start from."""
        return self.setting.model.weights is not None or self.from_weights


def training_job(estimates: TrainingEstimates, row: int) -> Job:
    """A row of an estimate; degrees, batch and budget exactly as they were estimated."""
    c, setting = estimates.cases, estimates.setting
    budget = float(estimates.run.steps[row])
    steps = int(budget) if math.isfinite(budget) else None
    interval = float(estimates.run.checkpoint_interval_s[row]) / float(estimates.step_s[row])
    interval_steps = (
        math.floor(interval) if math.isfinite(interval) else 1
    )  # never later than planned
    dims, layers = c.dims(row), stage_layer_counts(setting, c.take([row]))[0][0]
    return Job(
        setting=setting,
        dims=dims,
        stage_layers=tuple(int(count) for count in layers),
        virtual_stages=int(c.virtual_stages[row]),
        ep=int(c.ep[row]),
        zero_stage=int(c.zero_stage[row]),
        sequence_length=int(c.sequence_length[row]),
        per_node=int(c.per_node[row]),
        recompute_layers=int(c.recompute_layers[row]),
        recompute=RECOMPUTE[c.recompute[row]],
        recompute_modules=modules_of(int(c.recompute_modules[row])),
        overlap_experts=bool(c.overlap_experts[row]),
        schedule=SCHEDULES[c.schedule[row]],
        sequence_parallel=bool(c.sequence_parallel[row]) and dims.tp > 1,
        offload=OFFLOADS[c.offload[row]],
        sync_step=bool(c.sync_step[row]),
        fused_loss=bool(c.fused_loss[row]),
        activation_offload=bool(c.activation_offload[row]),
        steps=steps,
        checkpoint_steps=max(1, min(interval_steps, steps or 1)),
        stop_s=stop_grace_s(float(estimates.step_s[row]), float(estimates.run.checkpoint_s[row])),
        host_bytes=float(estimates.host_bytes[row]),
        flops_per_token=float(flops_per_token(setting, estimates.lengths[[row]])[0]),
        hyper=usual_hyperparameters(
            setting.model.language_parameters,
            steps or 1,
            setting.method,
        ),
        fewest_nodes=lambda: fewest_elastic_nodes(estimates, row),
        rollout=_rollout_job(estimates, row),
    )


def _rollout_job(estimates: TrainingEstimates, row: int) -> RolloutJob | None:
    loop = estimates.reinforcement
    if loop is None:
        return None
    rollouts, sampling, cases = loop.rollouts, loop.sampling, estimates.cases.take([row])
    limits = sampling.template
    return RolloutJob(
        sampling=sampling,
        devices=int(cases.sampling_devices[0]),
        tp=int(rollouts.tp[row]),
        copies=int(rollouts.copies[row]),
        memory_share=float(rollouts.share[row]),
        offload=bool(rollouts.offload[row]),
        packed_tokens=int(at_longest(sampling, cases).sequence_length[0]),
        max_num_seqs=int(limits.max_num_seqs[0]),
        max_batched_tokens=int(limits.max_batched_tokens[0]),
    )


def fewest_elastic_nodes(estimates: TrainingEstimates, row: int) -> int:
    """Nodes that a run can go on with: each number from it up divides the batch and fits memory."""
    setting, planned = estimates.setting, estimates.cases.take([row])
    nodes, sizes = int(planned.nodes_used[0]), elastic_nodes(estimates.cases, 1, row)
    for fewer in range(nodes - 1, 0, -1):
        dp = planned.dp * fewer // nodes
        mem = training_memory(setting, replace(planned, dp=dp, shard=dp * planned.cp))
        if fewer not in sizes or memory_rule(setting, mem).broken[0]:
            return fewer + 1
    return 1


@dataclass(frozen=True, slots=True)
class Unsupported:
    """Something that cannot be launched: the field it stands in, why, and what to do."""

    field: str
    reason: str
    hint: str


def run_refusals(job: Job) -> Iterator[Unsupported]:
    """Yield what a run lacks, and products of its split that do not come out."""
    if job.steps is None:
        reason = "a run needs a token budget."
        yield Unsupported("workload.tokens", reason, "State how many tokens it trains on.")
    try:
        job.dims.check(job.nodes * job.processes_per_node)
    except InputError as error:
        yield Unsupported(error.field or "candidate", error.message, error.hint or "")


def stop_grace_s(step_s: float, checkpoint_s: float) -> int:
    """Seconds that a run which is told to stop gets: its step and a checkpoint, with room."""
    return math.ceil(STOP_ROOM * (step_s + checkpoint_s)) + STOP_LEAST_S


def torchrun(job: Job, node: int) -> tuple[str, ...]:
    """Torchrun with a fixed meeting point: node 0's address, one process a device."""
    ranks = ("--nnodes", str(job.nodes), "--node-rank", str(node))
    processes = ("--nproc-per-node", str(job.processes_per_node))
    return ("torchrun", *ranks, *processes, "--master-addr", "${head}", "--master-port", "${port}")


def elastic_torchrun(job: Job, fewest: int, name: str) -> tuple[str, ...]:
    """Torchrun for a range of nodes.

    When one leaves or joins, all start again from the last checkpoint.
    """
    nodes = ("--nnodes", f"{fewest}:{job.nodes}")
    processes = ("--nproc-per-node", str(job.processes_per_node), "--max-restarts", str(RESTARTS))
    meeting = ("--rdzv-backend", "c10d", "--rdzv-endpoint", "${head}:${port}", "--rdzv-id", name)
    return ("torchrun", *nodes, *processes, *meeting)


def trainer_processes(
    job: Job, words: Callable[[int], tuple[str, ...]], env: dict[str, str]
) -> tuple[Process, ...]:
    """One launching process per node, with all of its devices, and the data that it learns from."""
    if job.setting.data is not None:
        env = env | {DATA: job.setting.data}
    devices = tuple(range(job.processes_per_node))
    return tuple(
        Process(f"trainer-{node}", words(node), dict(env), 0, devices, node=node, role="trainer")
        for node in range(job.nodes)
    )


def job_launch(
    job: Job, started: tuple[Process, ...], options: dict[str, Any], files: dict[str, str]
) -> Launch:
    """A launch without addresses to ask."""
    return Launch(
        processes=started,
        options=options,
        health="",
        startup_timeout_s=1800,
        api_path="",
        api_model="",
        requires=training_engine(job.setting.engine).requires,
        files=files,
        kind="training",
        host_bytes=node_host_bytes(job),
    )


def node_host_bytes(job: Job) -> int:
    """Bytes of a node's memory for what devices keep there, and copies of the whole model."""
    copies, sharding = training_engine(job.setting.engine).host_copies, job.setting.framework
    divided = job.zero_stage == 3 or (sharding.sharding == "fsdp" and job.zero_stage > 0)
    # without weights there are none, and those in 4 bits are made piece by piece
    loads = job.from_weights and job.setting.method != "qlora"
    parameters = job.setting.model.language_parameters if loads else 0
    devices = np.array(job.processes_per_node, float)
    copied = copies.node_bytes(devices, parameters, divided=divided)
    return math.ceil(job.processes_per_node * job.host_bytes + float(copied))


def torch_environment(job: Job) -> dict[str, str]:
    """Variables that any framework on torch wants."""
    # torchrun kills its processes 30 s after a signal unless this says otherwise.
    saves = "signal" in training_engine(job.setting.engine).saves_on
    stopping = {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": str(job.stop_s)} if saves else {}
    if job.setting.cluster.device.runtime == "cpu":
        # Idle OpenMP threads must not spin, or any other busy process stalls every step.
        return stopping | {"OMP_WAIT_POLICY": "PASSIVE"}
    return stopping | {
        "PYTORCH_ALLOC_CONF": "expandable_segments:True",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
    }


@dataclass(frozen=True, slots=True)
class Pool:
    """Devices of one kind of work: nodes, and devices on each."""

    nodes: int
    per_node: int


def pool_devices(devices: int, per_node: int) -> Pool:
    """So many devices on as few nodes as they fill."""
    nodes = max(math.ceil(devices / per_node), 1)
    return Pool(nodes, devices // nodes)


def rollout_of(job: Job) -> RolloutJob:
    """The rollout of a job that samples answers."""
    assert job.rollout is not None  # noqa: S101 - only such methods are launched
    return job.rollout


def devices_of(job: Job) -> Pool:
    """All devices, those that only sample among them."""
    return pool_devices(job.dims.devices + rollout_of(job).devices, job.per_node)


def ray_launch(
    job: Job, program: tuple[str, ...], recorded: dict[str, object], files: dict[str, str]
) -> Launch:
    """The program on one node, or on the first of several that Ray joins."""
    all_devices = devices_of(job)
    several = all_devices.nodes > 1
    devices = tuple(range(all_devices.per_node))

    def words(node: int) -> tuple[str, ...]:
        if not several:
            return program
        ranks = ("--nodes", str(all_devices.nodes), "--node-rank", str(node))
        meeting = ("--head", "${head}", "--port", "${port}", "--gpus", str(all_devices.per_node))
        return ("python3", f"${{root}}/{RAY_NODE}.py", *ranks, *meeting, "--", *program)

    started = tuple(
        Process(
            f"trainer-{node}", words(node), _ray_variables(), 0, devices, node=node, role="trainer"
        )
        for node in range(all_devices.nodes)
    )
    more = reward_files(rollout_of(job).work.prompts, several_nodes=several)
    return job_launch(job, started, recorded, more | files)


def _ray_variables() -> dict[str, str]:
    """Without torch's expandable segments, in which a sleeping engine frees nothing."""
    return {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1", "TOKENIZERS_PARALLELISM": "true"}
