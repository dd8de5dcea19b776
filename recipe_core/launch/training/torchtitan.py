"""torchtitan: its configuration of the model, and every estimated value over it (0.3.0)."""

from __future__ import annotations

import math
from typing import Any

from recipe_core.launch.process import Launch
from recipe_core.launch.training.job import (
    KEPT_CHECKPOINTS,
    Job,
    environment,
    processes,
    torchrun,
    training,
)
from recipe_core.launch.training.sources import data_files
from recipe_core.search.launchable import shipped_configuration

_SCHEDULES = {"1f1b": "1F1B", "interleaved": "Interleaved1F1B", "gpipe": "GPipe"}
_RECOMPUTE = {
    "none": "activation-checkpoint:none",
    "selective": "activation-checkpoint:selective",
    "full": "activation-checkpoint:full",
}


def dense_shard(job: Job) -> int:
    """Replicas that divide states, without the context-parallel ranks that divide them too."""
    return max(job.dims.sharded // job.dims.cp, 1) if job.zero_stage else 1


def _reshard(job: Job) -> str:
    """When FSDP shards parameters again after the forward pass.

    ZeRO-3 leaves the head's unit gathered for the backward pass that follows at once; in a pipeline
    that cannot be stated for the head alone.
    """
    if job.zero_stage < 3:
        return "never"
    return "always" if job.dims.pp > 1 else "default"


def _per_stage(job: Job) -> int:
    return math.ceil(job.layers / job.cuts)


def launch(job: Job) -> Launch:
    """One torchrun per node on torchtitan's own entry; its text is a folder of one file."""
    model, options = shipped_configuration(job.setting.model), settings(job)
    assert model is not None  # noqa: S101 - refused otherwise
    program = ("-m", "torchtitan.train", "--module", model.module, "--config", model.config)
    words = (*program, *argv(options), _RECOMPUTE[job.recompute])
    recorded = {
        "module": model.module,
        "config": model.config,
        "activation_checkpoint": job.recompute,
        **options,
    }
    started = processes(job, lambda node: (*torchrun(job, node), *words), environment(job))
    return training(job, started, recorded, data_files())


def argv(options: dict[str, Any]) -> tuple[str, ...]:
    """Words of tyro: ``--section.name value``; what is true or false is a flag of its own."""
    words: list[str] = []
    for name, value in options.items():
        section, dot, last = name.rpartition(".")
        if isinstance(value, bool):
            words.append(f"--{section}{dot}{'' if value else 'no-'}{last}")
        else:
            words += [f"--{name}", str(value)]
    return tuple(words)


def settings(job: Job) -> dict[str, Any]:
    """Every estimated value, also where it is torchtitan's default."""
    h, shard = job.hyper, dense_shard(job)
    piped = job.dims.pp > 1
    local = job.dims.micro_batch * (job.dims.accumulation if piped else 1)
    kwargs = "optimizer.param-groups.0.optimizer-kwargs"
    out: dict[str, Any] = {
        "hf-assets-path": "${model}",
        "dump-folder": "${run}",
        "training.local-batch-size": local,
        "training.global-batch-size": job.dims.global_batch,
        "training.seq-len": job.sequence_length,
        "training.steps": job.steps,
        "training.max-norm": h.clip_norm,
        "training.mixed-precision-param": "bfloat16",
        "compile.enable": True,  # as estimated
        "compile.components": "model,loss",
        "compile.enable-async-tensor-parallel": False,
        # Pipelines and experts cannot have graphs, and no estimate counts on them.
        "training.disable-cuda-graphs": True,
        "parallelism.data-parallel-replicate-degree": job.dims.dp // shard,
        "parallelism.data-parallel-shard-degree": shard,
        "parallelism.fsdp-reshard-after-forward": _reshard(job),
        "parallelism.tensor-parallel-degree": job.dims.tp,
        "parallelism.enable-sequence-parallel": job.sequence_parallel,
        "parallelism.pipeline-parallel-degree": job.dims.pp,
        "parallelism.context-parallel-degree": job.dims.cp,
        "parallelism.expert-parallel-degree": job.ep,
        f"{kwargs}.lr": h.learning_rate,
        f"{kwargs}.weight-decay": h.weight_decay,
        f"{kwargs}.eps": h.epsilon,
        "lr-scheduler.warmup-steps": h.warmup_steps,
        "lr-scheduler.decay-type": "cosine",
        "lr-scheduler.decay-ratio": 1.0 - h.warmup_steps / (job.steps or 1),
        "lr-scheduler.min-lr-factor": h.least_rate_share,
        "loss.num-chunks": 8 if job.fused_loss else 1,
        "dataloader.dataset": "c4_test",  # the one that reads a folder: rows of text
        "dataloader.dataset-path": "${root}/data",
        "metrics.log-freq": 1,
        "checkpoint.enable": True,
        "checkpoint.interval": job.checkpoint_steps,
        "checkpoint.keep-latest-k": KEPT_CHECKPOINTS,
        "checkpoint.async-mode": "async",
        "checkpoint.last-save-in-hf": True,
        "checkpoint.last-save-model-only": True,
        "checkpoint.export-dtype": "bfloat16",
        "debug.seed": h.seed,
    }
    if piped:
        out |= {
            "parallelism.pipeline-parallel-schedule": _SCHEDULES[job.schedule],
            "parallelism.pipeline-parallel-microbatch-size": job.dims.micro_batch,
            "parallelism.pipeline-parallel-layers-per-stage": _per_stage(job),
            "parallelism.pipeline-parallel-first-stage-less-layers": 0,
            "parallelism.pipeline-parallel-last-stage-less-layers": 0,
        }
    if job.from_weights:
        out |= {"checkpoint.initial-load-path": "${model}", "checkpoint.initial-load-in-hf": True}
    return out
