"""The embedded trainer: ``trainer/`` under torchrun, its settings in ``train.json``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from recipe_core.launch.process import Launch
from recipe_core.launch.training.job import (
    KEPT_CHECKPOINTS,
    Job,
    Unsupported,
    elastic_torchrun,
    environment,
    fsdp,
    processes,
    short_name,
    torchrun,
    training,
)
from recipe_core.launch.training.sources import DATA, trainer_files

SCHEDULES = ("1f1b", "interleaved", "gpipe")
OPTIMIZERS = ("adamw", "sgd")


def refusals(job: Job) -> Iterator[Unsupported]:
    """What the embedded trainer cannot do."""
    setting, model = job.setting, job.setting.model
    cp = job.dims.cp
    yield Unsupported(
        cp > 1,
        "candidate.cp",
        f"the embedded trainer does not cut sequences (cp {cp}).",
        "Use torchtitan or megatron.",
    )
    yield Unsupported(
        job.ep > 1,
        "candidate.ep",
        f"the embedded trainer does not share experts (ep {job.ep}).",
        "Use torchtitan or megatron.",
    )
    fp8 = setting.precision == "fp8"
    yield Unsupported(
        fp8,
        "candidate.precision",
        "the embedded trainer has no 8-bit matrix products.",
        "Use bf16, or megatron.",
    )
    unknown = job.dims.pp > 1 and job.schedule not in SCHEDULES
    yield Unsupported(
        unknown,
        "candidate.schedule",
        f"the embedded trainer has no {job.schedule} schedule.",
        f"Use {', '.join(SCHEDULES)}.",
    )
    other = setting.optimizer_name not in OPTIMIZERS
    yield Unsupported(
        other,
        "workload.optimizer",
        f"the embedded trainer has no {setting.optimizer_name}.",
        f"Use {' or '.join(OPTIMIZERS)}.",
    )
    yield Unsupported(
        job.fused_loss,
        "workload.fused_loss",
        "the embedded trainer computes full logits.",
        "Leave fused_loss out.",
    )
    bare = setting.method == "lora" and not job.has_home
    yield Unsupported(
        bare,
        "model",
        "adapters need the weights of a checkpoint, and a config has none.",
        "Give the model's folder or id.",
    )
    yield fsdp(job)
    yield from _pipeline(job)
    yield from _tensor(job)
    fused = job.moe is not None and job.from_weights
    yield Unsupported(
        fused,
        "workload.method",
        f"{model.name}: the embedded trainer does not read checkpoints with experts.",
        "Use method: pretrain.",
    )


def _pipeline(job: Job) -> Iterator[Unsupported]:
    piped, several = job.dims.pp > 1, job.virtual_stages > 1
    tied = piped and job.setting.model.tied_embeddings
    yield Unsupported(
        tied,
        "candidate.pp",
        f"{job.setting.model.name} ties embedding and head, which are on different stages.",
        "Use pp: 1.",
    )
    rounds = max(1, job.dims.accumulation // job.dims.pp)
    uneven = piped and several and job.dims.accumulation % rounds != 0
    reason = (
        f"{job.dims.accumulation} micro-batches are not divisible by {rounds} interleaved rounds."
    )
    hint = "Use a multiple of pp micro-batches."
    yield Unsupported(uneven, "candidate.virtual_stages", reason, hint)


def _tensor(job: Job) -> Iterator[Unsupported]:
    model, tp = job.setting.model, job.dims.tp
    if tp == 1:
        return
    plain = job.attention is not None and job.moe is None
    yield Unsupported(
        not plain,
        "candidate.tp",
        f"{model.name}: the embedded trainer cuts plain attention and dense layers only.",
        "Use tp: 1.",
    )
    heads = job.attention.kv_heads if job.attention else 0
    yield Unsupported(
        heads % tp != 0,
        "candidate.tp",
        f"{heads} key/value heads are not divisible by tp {tp}.",
        "Use a divisor of them.",
    )
    rows = model.vocabulary
    yield Unsupported(
        rows % tp != 0,
        "candidate.tp",
        f"a vocabulary of {rows} is not divisible by tp {tp}.",
        "Use a divisor of it.",
    )


def launch(job: Job) -> Launch:
    """One torchrun per node; elastic where the run can go on with fewer nodes."""
    fewest = job.fewest_nodes() if job.nodes > 1 else 1
    elastic = fewest < job.nodes
    settings = train_json(job, elastic=elastic)
    model = ("--model", "${model}") if job.has_home else ()
    words = ("${root}/train.py", "--config", "${root}/train.json", "--out", "${run}", *model)
    name = short_name(job.setting.model.name)

    def of_node(node: int) -> tuple[str, ...]:
        start = elastic_torchrun(job, fewest, name) if elastic else torchrun(job, node)
        return (*start, *words)

    started = processes(job, of_node, environment(job))
    return training(job, started, settings, trainer_files(settings, "train.py", "main"))


def train_json(job: Job, **more: Any) -> dict[str, Any]:
    """The trainer's settings: what was estimated, and customary values for what was not."""
    setting, h = job.setting, job.hyper
    device = setting.cluster.device
    peaks = device.peak_flops_per_s
    peak = peaks.get(setting.precision) or peaks.get("bf16")
    split = {
        "tp": job.dims.tp,
        "pp": job.dims.pp,
        "virtual_stages": job.virtual_stages,
        "dp": job.dims.dp,
        "shard": job.dims.sharded,
        "zero_stage": job.zero_stage,
        "schedule": job.schedule if job.schedule in SCHEDULES else "1f1b",
        "sequence_parallel": job.sequence_parallel,
        "gradient_sync": "step" if job.sync_step or job.zero_stage == 0 else "micro-batch",
    }
    optimizer = {
        "name": setting.optimizer_name,
        "learning_rate": h.learning_rate,
        "least_rate_share": h.least_rate_share,
        "warmup_steps": h.warmup_steps,
        "weight_decay": h.weight_decay,
        "beta1": h.beta1,
        "beta2": h.beta2,
        "epsilon": h.epsilon,
        "clip_norm": h.clip_norm,
    }
    model: dict[str, Any] = {
        "config": None if job.has_home else _config(job),
        "weights": "pretrained" if job.from_weights else "random",
        "tokenizer": "model" if job.has_home else "data",
    }
    if setting.method == "lora":
        more["lora"] = {"rank": setting.lora_rank, "alpha": setting.lora_alpha}
    return {
        "schema_version": 1,
        "name": f"{short_name(setting.model.name)} on {job.dims.devices} x {device.title}",
        "model": model,
        "data": [DATA],
        "steps": job.steps,
        "batch": {
            "sequence_length": job.sequence_length,
            "global_batch": job.dims.global_batch,
            "micro_batch": job.dims.micro_batch,
        },
        "split": split,
        "precision": setting.precision,
        "recompute": job.recompute,
        "attention": "flash" if setting.flash else "eager",
        "seed": h.seed,
        "optimizer": optimizer,
        "checkpoints": {"every_steps": job.checkpoint_steps, "keep": KEPT_CHECKPOINTS},
        "figures": {
            "flops_per_token": job.flops_per_token,
            "peak_flops_per_s": peak.value if peak else None,
        },
    } | more


def _config(job: Job) -> dict[str, Any]:
    """The model's ``config.json`` without what only a stored checkpoint has."""
    dropped = (
        "_name_or_path",
        "architectures",
        "torch_dtype",
        "dtype",
        "quantization_config",
        "transformers_version",
    )
    return {name: value for name, value in job.setting.model.config.items() if name not in dropped}
