"""The embedded trainer: ``trainer/`` under torchrun, its settings in ``train.json``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from recipe_core.launch.process import Launch
from recipe_core.launch.training.job import (
    KEPT_CHECKPOINTS,
    Job,
    elastic_torchrun,
    job_launch,
    torch_environment,
    torchrun,
    trainer_processes,
)
from recipe_core.launch.training.sources import TEXT, trainer_files
from recipe_core.request.describe import model_short_name

SCHEDULES = ("1f1b", "interleaved", "gpipe")
OPTIMIZERS = ("adamw", "sgd")


def launch_embedded(job: Job) -> Launch:
    """One torchrun per node; elastic where fewer nodes are asked for, and the run can go on so."""
    min_nodes = job.setting.failures.min_nodes
    fewest = job.nodes if min_nodes is None else max(min_nodes, job.fewest_nodes())
    elastic = fewest < job.nodes
    settings = train_json(job, elastic=elastic)
    model = ("--model", "${model}") if job.has_home else ()
    words = ("${root}/train.py", "--config", "${root}/train.json", "--out", "${run}", *model)
    name = model_short_name(job.setting.model.name)

    def of_node(node: int) -> tuple[str, ...]:
        start = elastic_torchrun(job, fewest, name) if elastic else torchrun(job, node)
        return (*start, *words)

    started = trainer_processes(job, of_node, torch_environment(job))
    launch = job_launch(job, started, settings, trainer_files(settings, "train.py", "main"))
    adapters = ("peft",) if job.setting.frozen else ()
    return replace(launch, requires=(*launch.requires, *adapters))


def launch_hf_trainer(
    job: Job,
    recorded: dict[str, Any],
    files: dict[str, str],
    start: Callable[[int], tuple[str, ...]],
    *options: str,
) -> Launch:
    """Transformers' trainer under a program of its own files, started by its words on a node."""
    settings = train_json(job)
    model = ("--model", "${model}") if job.has_home else ()
    script = ("${root}/train_hf.py", "--config", "${root}/train.json", "--out", "${run}", *model)

    def words(node: int) -> tuple[str, ...]:
        return (*start(node), *script, *options)

    started = trainer_processes(job, words, torch_environment(job))
    every_file = trainer_files(settings, "train_hf.py", "hf") | files
    return job_launch(job, started, settings | recorded, every_file)


def train_json(job: Job, **more: Any) -> dict[str, Any]:
    """The trainer's settings: what was estimated, and customary values for what was not."""
    setting, h = job.setting, job.hyper
    device = setting.cluster.device
    peaks = device.peak_flops_per_s
    peak = peaks.get(setting.precision) or peaks.get("bf16")
    if setting.frozen:
        more["lora"] = {
            "rank": setting.lora_rank,
            "alpha": setting.lora_alpha,
            "targets": setting.lora_targets,
        }
    return {
        "schema_version": 1,
        "name": f"{model_short_name(setting.model.name)} on {job.dims.devices} x {device.title}",
        "model": {
            "config": None if job.has_home else _bare_model_config(job),
            "weights": "pretrained" if job.from_weights else "random",
            "tokenizer": "model" if job.has_home else "data",
        },
        "data": [TEXT],
        "steps": job.steps,
        "batch": {
            "sequence_length": job.sequence_length,
            "global_batch": job.dims.global_batch,
            "micro_batch": job.dims.micro_batch,
        },
        "split": _split_fields(job),
        "precision": setting.precision,
        "recompute": job.recompute,
        "attention": setting.attention,
        "seed": h.seed,
        "optimizer": _optimizer_fields(job),
        "checkpoints": {"every_steps": job.checkpoint_steps, "keep": KEPT_CHECKPOINTS},
        "loading": {"workers": setting.loading.workers, "prefetch": setting.loading.prefetch},
        "figures": {
            "flops_per_token": job.flops_per_token,
            "peak_flops_per_s": peak.value if peak else None,
        },
    } | more


def _split_fields(job: Job) -> dict[str, Any]:
    return {
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


def _optimizer_fields(job: Job) -> dict[str, Any]:
    h = job.hyper
    return {
        "name": job.setting.optimizer_name,
        "learning_rate": h.learning_rate,
        "least_rate_share": h.least_rate_share,
        "warmup_steps": h.warmup_steps,
        "weight_decay": h.weight_decay,
        "beta1": h.beta1,
        "beta2": h.beta2,
        "epsilon": h.epsilon,
        "clip_norm": h.clip_norm,
    }


def _bare_model_config(job: Job) -> dict[str, Any]:
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
