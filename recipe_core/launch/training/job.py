"""One estimated row as a job, and what frameworks share: refusals, processes, torchrun's words."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from recipe_core.base.errors import InputError
from recipe_core.engines.training_programs import Hyper, training_engine, usual
from recipe_core.launch.process import Launch, Process
from recipe_core.model.spec import Attention, LatentAttention, LinearAttention, MoeMlp
from recipe_core.physics.training.elastic import elastic_nodes
from recipe_core.physics.training.estimates import TrainingEstimates, flops_per_token
from recipe_core.physics.training.fits import memory_rule
from recipe_core.physics.training.memory import memory
from recipe_core.physics.training.stages import stage_layers
from recipe_core.space.dims import ParallelDims
from recipe_core.space.training import OFFLOADS, RECOMPUTE, SCHEDULES, TrainingSetting

KEPT_CHECKPOINTS = 2
RESTARTS = 3


@dataclass(frozen=True, slots=True)
class Job:
    """A training run with nothing left to choose.

    ``dims``: every degree, the batch and what follows from them. ``stage_layers``: layers of each
    pipeline stage as they were estimated. ``steps`` is None without a token budget.
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
    schedule: str
    sequence_parallel: bool
    recompute_layers: int
    offload: str
    sync_step: bool
    fused_loss: bool
    steps: int | None
    checkpoint_steps: int
    flops_per_token: float
    hyper: Hyper
    fewest_nodes: Callable[[], int]

    @property
    def nodes(self) -> int:
        """Nodes used."""
        return math.ceil(self.dims.devices / self.per_node)

    @property
    def processes_per_node(self) -> int:
        """Processes of a node, one per device."""
        return self.dims.devices // self.nodes

    @property
    def layers(self) -> int:
        """Layers of the model."""
        return len(self.setting.model.layers)

    @property
    def moe(self) -> MoeMlp | None:
        """The experts, where the model has some."""
        blocks = (layer.mlp for layer, _ in self.setting.model.kinds)
        return next((block for block in blocks if isinstance(block, MoeMlp)), None)

    @property
    def attention(self) -> Attention | None:
        """The one kind of plain attention that all layers share, if they do."""
        kinds = {layer.attention for layer, _ in self.setting.model.kinds}
        only = next(iter(kinds)) if len(kinds) == 1 else None
        return None if isinstance(only, (LatentAttention, LinearAttention)) else only

    @property
    def cuts(self) -> int:
        """Stages and their chunks."""
        return self.dims.pp * self.virtual_stages

    @property
    def from_weights(self) -> bool:
        """Whether the run starts from the model's weights."""
        return self.setting.method != "pretrain"

    @property
    def has_home(self) -> bool:
        """Whether the model has files (a folder, an id), and so a tokenizer."""
        return "/" in self.setting.model.name


def job_of(estimates: TrainingEstimates, row: int) -> Job:
    """A row of an estimate; degrees, batch and budget exactly as they were estimated."""
    c, setting = estimates.cases, estimates.setting
    budget = float(estimates.run.steps[row])
    steps = int(budget) if math.isfinite(budget) else None
    interval = float(estimates.run.checkpoint_interval_s[row]) / float(estimates.step_s[row])
    dims, layers = c.dims(row), stage_layers(setting, c.take([row]))[0][0]
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
        schedule=SCHEDULES[c.schedule[row]],
        sequence_parallel=bool(c.sequence_parallel[row]) and dims.tp > 1,
        offload=OFFLOADS[c.offload[row]],
        sync_step=bool(c.sync_step[row]),
        fused_loss=bool(c.fused_loss[row]),
        steps=steps,
        checkpoint_steps=max(1, min(round(interval), steps or 1)) if math.isfinite(interval) else 1,
        flops_per_token=float(flops_per_token(setting, c.sequence_length[[row]].astype(float))[0]),
        hyper=usual(
            setting.model.parameters,
            steps or 1,
            finetune=setting.method not in ("pretrain", "lora"),
        ),
        fewest_nodes=lambda: fewest_nodes(estimates, row),
    )


def fewest_nodes(estimates: TrainingEstimates, row: int) -> int:
    """Nodes that a run can go on with: each number from it up divides the batch and fits memory."""
    setting, planned = estimates.setting, estimates.cases.take([row])
    nodes, sizes = int(planned.nodes_used[0]), elastic_nodes(estimates.cases, 1, row)
    for fewer in range(nodes - 1, 0, -1):
        dp = planned.dp * fewer // nodes
        mem = memory(setting, replace(planned, dp=dp, shard=dp * planned.cp))
        if fewer not in sizes or memory_rule(setting, mem).broken[0]:
            return fewer + 1
    return 1


@dataclass(frozen=True, slots=True)
class Unsupported:
    """Something that a framework cannot do, and whether the job needs it (``applies``)."""

    applies: bool
    field: str
    reason: str
    hint: str


_INSTEAD = {"qlora": "Use lora, whose frozen weights have 16 bits.", "dpo": "Use finetune or lora."}


def common(job: Job) -> Iterator[Unsupported]:
    """What no framework can do."""
    yield Unsupported(
        job.steps is None, "workload.tokens", "a run needs a token budget.", "Set workload.tokens."
    )
    uneven = job.dims.devices > job.per_node and job.dims.devices % job.per_node != 0
    yield Unsupported(
        uneven,
        "candidate",
        f"{job.dims.devices} devices do not fill nodes of {job.per_node}.",
        "Use whole nodes.",
    )
    yield _invariant(job)
    s = job.setting
    yield Unsupported(
        s.method in ("qlora", "dpo"),
        "workload.method",
        f"{s.method} is estimated, not launched by this version.",
        _INSTEAD.get(s.method, ""),
    )
    other_engine = s.method == "lora" and s.engine != "torch"
    yield Unsupported(
        other_engine,
        "candidate.engine",
        f"{s.framework.title} is not launched with adapters; the embedded trainer is.",
        "Use engine: torch.",
    )
    documents = s.document_tokens is not None
    reason = "document_tokens is estimated, not launched by this version."
    yield Unsupported(documents, "workload.document_tokens", reason, "Leave it out.")
    partial = 0 < job.recompute_layers < job.layers
    reason = "a launch recomputes all layers or none."
    yield Unsupported(partial, "candidate.recompute_layers", reason, "Leave it out.")
    away = job.offload != "none" and (s.engine, job.offload) != ("deepspeed", "optimizer")
    yield Unsupported(
        away,
        "candidate.offload",
        f"{s.framework.title} is not launched with offload: {job.offload}.",
        "Use deepspeed and optimizer.",
    )
    usual = "bf16" if s.framework.states.reduced < 4 else "fp32"
    wide = s.gradient_dtype not in (None, usual) and s.engine != "megatron"
    yield Unsupported(
        wide,
        "workload.gradient_dtype",
        f"{s.framework.title} is launched with {usual} gradients.",
        f"Use {usual}.",
    )


def _invariant(job: Job) -> Unsupported:
    """Whether processes, batch and shards multiply up, in the words of ``ParallelDims``."""
    try:
        job.dims.check(job.nodes * job.processes_per_node)
    except InputError as error:
        return Unsupported(True, error.field or "candidate", error.message, error.hint or "")
    return Unsupported(False, "candidate", "", "")


def only_replicas(job: Job, title: str) -> Iterator[Unsupported]:
    """Degrees that a framework lacks which divides states over replicas and nothing else."""
    for name in ("tp", "pp", "cp", "ep"):
        degree = job.ep if name == "ep" else getattr(job.dims, name)
        yield Unsupported(
            degree > 1,
            f"candidate.{name}",
            f"{title} is launched with {name} 1 only, not {degree}.",
            "Use torch or megatron.",
        )


def fsdp(job: Job) -> Unsupported:
    """FSDP has no ZeRO-1."""
    reason = "FSDP divides parameters and gradients with the optimizer: ZeRO-2 or 3, not 1."
    return Unsupported(job.zero_stage == 1, "candidate.zero_stage", reason, "Use zero_stage: 2.")


def synchronised(job: Job, title: str) -> Unsupported:
    """Frameworks that divide gradients exchange them after every micro-batch."""
    waits = job.sync_step and job.zero_stage > 1 and job.dims.accumulation > 1
    reason = f"{title} exchanges divided gradients after every micro-batch."
    return Unsupported(waits, "candidate.gradient_sync", reason, "Use gradient_sync: micro-batch.")


Engine = Callable[[Job], Launch]


def short_name(model: str) -> str:
    """The last part of a model's id or folder, in letters that any program takes for a name."""
    return re.sub(r"[^A-Za-z0-9.]+", "-", model.rstrip("/").split("/")[-1]).strip("-.") or "model"


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


def processes(
    job: Job, words: Callable[[int], tuple[str, ...]], env: dict[str, str]
) -> tuple[Process, ...]:
    """One launching process per node, with all of its devices."""
    devices = tuple(range(job.processes_per_node))
    return tuple(
        Process(f"trainer-{node}", words(node), dict(env), 0, devices, node=node, role="trainer")
        for node in range(job.nodes)
    )


def training(
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
    )


def environment(job: Job) -> dict[str, str]:
    """Variables that any framework on torch wants."""
    if job.setting.cluster.device.runtime == "cpu":
        # Idle OpenMP threads must not spin, or any other busy process stalls every step.
        return {"OMP_WAIT_POLICY": "PASSIVE"}
    return {
        "PYTORCH_ALLOC_CONF": "expandable_segments:True",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
    }
