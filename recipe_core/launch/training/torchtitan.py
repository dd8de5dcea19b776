"""torchtitan: its own configuration of the model, and every estimated value over it, in the words of its command line (0.3.0)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from recipe_core.engines.training_programs import TitanModel, facts
from recipe_core.launch.process import Launch
from recipe_core.launch.training.job import (
    KEPT_CHECKPOINTS,
    Job,
    No,
    environment,
    fsdp,
    processes,
    synchronised,
    torchrun,
    training,
)
from recipe_core.launch.training.sources import data_files

_SCHEDULES = {"1f1b": "1F1B", "interleaved": "Interleaved1F1B", "gpipe": "GPipe"}
_RECOMPUTE = {
    "none": "activation-checkpoint:none",
    "selective": "activation-checkpoint:selective",
    "full": "activation-checkpoint:full",
}


def preset(job: Job) -> TitanModel | None:
    """Torchtitan's configuration of the model, by its dimensions."""
    model, a = job.setting.model, job.attention
    known = (job.layers, model.hidden, model.vocabulary, a.head_dim if a else 0)
    return next(
        (
            each
            for each in facts().torchtitan_models
            if known == (each.layers, each.hidden, each.vocabulary, each.head_dim)
        ),
        None,
    )


def refusals(job: Job) -> Iterator[No]:
    """What torchtitan cannot do, or ships no configuration for."""
    setting = job.setting
    names = ", ".join(each.config for each in facts().torchtitan_models)
    reason = f"torchtitan ships no configuration of {setting.model.name} in bf16."
    yield No(preset(job) is None, "model", reason, f"It ships {names}; or use torch.")
    yield No(
        setting.precision != "bf16",
        "candidate.precision",
        f"its configurations have no {setting.precision}.",
        "Use bf16.",
    )
    yield No(
        setting.optimizer_name != "adamw",
        "workload.optimizer",
        f"they use AdamW, not {setting.optimizer_name}.",
        "Use adamw.",
    )
    yield No(
        not setting.flash,
        "workload.attention",
        "torchtitan has no eager attention.",
        "Use attention: flash.",
    )
    yield from _sharding(job)
    yield from _pipeline(job)
    inner = job.dims.tp * job.dims.cp * dense_shard(job)
    reason = f"experts are shared within tp × cp × shard = {inner} ranks, which {job.ep} does not divide."
    yield No(inner % job.ep != 0, "candidate.ep", reason, "Use a divisor of them.")


def dense_shard(job: Job) -> int:
    """Replicas over which states are divided; context-parallel ranks divide them too and are not counted here."""
    return max(job.dims.sharded // job.dims.cp, 1) if job.zero_stage else 1


def _sharding(job: Job) -> Iterator[No]:
    divided = job.zero_stage > 0 and job.dims.sharded % job.dims.cp != 0
    yield No(
        divided,
        "candidate.shard",
        f"shard {job.dims.sharded} is not a multiple of cp {job.dims.cp}.",
        "Use a multiple.",
    )
    plain = job.zero_stage == 0 and job.dims.cp > 1
    yield No(
        plain,
        "candidate.zero_stage",
        "ranks of context parallelism always divide states in torchtitan.",
        "Use zero_stage: 3.",
    )
    yield fsdp(job)
    if job.dims.pp > 1:  # pipelines exchange gradients once a step
        return
    yield synchronised(job, "torchtitan")
    again = job.zero_stage == 0 and job.dims.dp > 1 and job.dims.accumulation > 1
    reason = "torchtitan exchanges the gradients of whole copies after every micro-batch; estimated is once a step."
    yield No(
        again,
        "candidate.zero_stage",
        reason,
        "Use zero_stage: 2 or 3, or a micro_batch that needs no accumulation.",
    )


def _pipeline(job: Job) -> Iterator[No]:
    piped = job.dims.pp > 1
    unknown = piped and job.schedule not in _SCHEDULES
    reason = f"torch has no {job.schedule} schedule for layers that are compiled."  # both halves of a backward pass are one
    yield No(unknown, "candidate.schedule", reason, f"Use {', '.join(_SCHEDULES)}.")
    uneven = piped and math.ceil(job.layers / _per_stage(job)) != job.cuts
    yield No(
        uneven,
        "candidate.pp",
        f"{job.layers} layers do not fill {job.cuts} chunks alike.",
        "Use a divisor of the layers.",
    )
    rounds = max(1, job.dims.accumulation // job.dims.pp)
    odd = piped and job.virtual_stages > 1 and job.dims.accumulation % rounds != 0
    reason = f"{job.dims.accumulation} micro-batches do not divide into {rounds} rounds of an interleaved schedule."
    yield No(odd, "candidate.virtual_stages", reason, "Use a multiple of pp micro-batches.")
    tied = piped and job.setting.model.tied_embeddings
    yield No(
        tied,
        "candidate.pp",
        f"{job.setting.model.name} shares embedding and head, which are on different stages.",
        "Use pp: 1.",
    )


def _reshard(job: Job) -> str:
    """ZeRO-3 leaves the head's unit whole for the backward pass that follows at once, which in a pipeline cannot be said alone."""
    if job.zero_stage < 3:
        return "never"
    return "always" if job.dims.pp > 1 else "default"


def _per_stage(job: Job) -> int:
    return math.ceil(job.layers / job.cuts)


def launch(job: Job) -> Launch:
    """One torchrun a node on torchtitan's own entry; the text is a folder of one JSON-lines file."""
    found, options = preset(job), settings(job)
    assert found is not None  # noqa: S101 - refused otherwise
    model = ("-m", "torchtitan.train", "--module", found.module, "--config", found.config)
    words = (*model, *argv(options), _RECOMPUTE[job.recompute])
    recorded = {
        "module": found.module,
        "config": found.config,
        "activation_checkpoint": job.recompute,
    } | options
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
        "training.disable-cuda-graphs": True,  # pipelines and experts cannot have them, and no estimate counts on them
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
