"""torchtitan (0.3.0): a model of its registry, and every estimated value on its command line.

``model_spec``, a model with the number formats of its products, is what its command line cannot
say: a file of the bundle does.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from recipe_core.launch.process import Launch
from recipe_core.launch.training.job import (
    KEPT_CHECKPOINTS,
    Job,
    job_launch,
    torch_environment,
    torchrun,
    trainer_processes,
)
from recipe_core.launch.training.sources import START, starter_files, text_data_files
from recipe_core.plans.titan_models import TitanModel, shipped_configuration

# The script that starts torchtitan, and the module that torchtitan finds it as.
SCRIPT, MODULE = "train.py", "run_config"

_PADDING = "pad_multiple=128"  # of an expert's tokens: Blackwell's kernels take whole blocks
_CONFIGURATION = '''"""The model of this run for torchtitan; its command line says the rest."""

import os
import sys

# Nothing beside this file stands in for an installed package.
HERE = os.path.dirname(os.path.realpath(__file__))
sys.path[:] = [entry for entry in sys.path if os.path.realpath(entry) != HERE]

{quantization}from torchtitan.components.loss import ChunkedLossWrapper, CrossEntropyLoss
from torchtitan.components.optimizer import default_adamw
from torchtitan.hf_datasets.text_datasets import HuggingFaceTextDataLoader
from torchtitan.models.common.config_utils import decoder_vocab_size
from torchtitan.models.{module} import model_registry
from torchtitan.train import main
from torchtitan.trainer import Trainer


def run() -> Trainer.Config:
    model = model_registry(
        "{flavor}",
        attn_backend="{attention}",{converters}
    )
    loss = CrossEntropyLoss.Config(global_vocab_size=decoder_vocab_size(model))
    return Trainer.Config(
        model_spec=model,
        loss=ChunkedLossWrapper.Config(loss_fn=loss),
        optimizer=default_adamw(betas={betas}),
        dataloader=HuggingFaceTextDataLoader.Config(),
    )


if __name__ == "__main__":
    sys.modules["{name}"] = sys.modules["__main__"]  # where torchtitan looks for run()
    main()
'''

_SCHEDULES = {"1f1b": "1F1B", "interleaved": "Interleaved1F1B", "gpipe": "GPipe"}
_USUAL_CHUNKS = 2
_RECOMPUTE = {
    "none": "activation-checkpoint:none",
    "selective": "activation-checkpoint:selective",
    "full": "activation-checkpoint:full",
}


def dense_shard(job: Job) -> int:
    """Replicas that divide states, without the context-parallel ranks that divide them too."""
    return max(job.dims.sharded // job.dims.cp, 1) if job.zero_stage else 1


def _reshard_policy(job: Job) -> str:
    """Return when FSDP shards parameters again after the forward pass.

    ZeRO-3 leaves the head's unit gathered for the backward pass that follows at once; in a pipeline
    that cannot be stated for the head alone.
    """
    if job.zero_stage < 3:
        return "never"
    return "always" if job.dims.pp > 1 else "default"


def launch_torchtitan(job: Job) -> Launch:
    """One torchrun per node on torchtitan's own entry; its text is a folder of one file."""
    model, options = shipped_configuration(job.setting.model), torchtitan_settings(job)
    assert model is not None  # noqa: S101 - refused otherwise
    # It reads a tokenizer, and weights to start from, in a folder, and downloads neither.
    fetch = ("--model", "${model}", "--fetch", "model" if job.from_weights else "tokenizer", "--")
    program = (f"${{root}}/{SCRIPT}", "--module", MODULE, "--config", "run")
    words = (*program, *torchtitan_words(options), _RECOMPUTE[job.recompute])
    recorded = {
        "module": model.module,
        "flavor": model.flavor,
        "converters": [name for name, _ in float8_converters(job)],
        "activation_checkpoint": job.recompute,
        **options,
    }
    started = trainer_processes(
        job, lambda node: (*START, *fetch, *torchrun(job, node), *words), torch_environment(job)
    )
    files = text_data_files() | starter_files() | {SCRIPT: torchtitan_configuration(job, model)}
    needs = ("torchao",) * bool(float8_converters(job)) + ("fla",) * ("l" in model.shape["mixers"])
    trainer_launch = job_launch(job, started, recorded, files)
    return replace(trainer_launch, requires=(*trainer_launch.requires, *needs))


def attention_backend(job: Job, model: TitanModel) -> str:
    """Gpt-oss has kernels of variable lengths, which ranks of one sequence cannot share."""
    return "varlen" if model.module == "gpt_oss" and job.dims.cp == 1 else "flex"


def float8_converters(job: Job) -> tuple[tuple[str, str], ...]:
    """Classes of ``torchtitan.components.quantization``, each with its arguments, for 8 bits.

    As the registry's own configurations in 8 bits have them: the head and routers stay in bf16.
    From Blackwell on values share a scale in blocks (MXFP8), before that in rows.
    """
    if job.setting.precision != "fp8":
        return ()
    if blocks_scales(job.setting.cluster.device.architecture):
        layers = 'fqns=["attention", "shared_experts", "feed_forward"]'
        converter_classes = (
            ("MXFP8LinearConverter", layers),
            ("MXFP8GroupedExpertsConverter", _PADDING),
        )
    else:
        unconverted = 'filter_fqns=["lm_head", "router.gate", "vision_encoder"]'
        converter_classes = (
            ("Float8LinearConverter", unconverted),
            ("Float8GroupedExpertsConverter", ""),
        )
    return converter_classes if job.moe else converter_classes[:1]


def blocks_scales(architecture: str) -> bool:
    """Return whether tensor cores take a scale a block: sm_100 and later."""
    kind, _, number = architecture.partition("_")
    return kind == "sm" and number.isdigit() and int(number) >= 100


def torchtitan_configuration(job: Job, model: TitanModel) -> str:
    """The Python file with the function that gives torchtitan its configuration."""
    classes = float8_converters(job)
    converter_lines = "".join(
        f"\n            quantization.{name}.Config(model_compile_enabled=True"
        f"{', ' * bool(arguments)}{arguments}),"
        for name, arguments in classes
    )
    more = f"\n        converters=[{converter_lines}\n        ]," if classes else ""
    return _CONFIGURATION.format(
        name=MODULE,
        module=model.module,
        flavor=model.flavor,
        attention=attention_backend(job, model),
        converters=more,
        quantization="from torchtitan.components import quantization\n" if classes else "",
        betas=(job.hyper.beta1, job.hyper.beta2),
    )


def torchtitan_words(options: dict[str, Any]) -> tuple[str, ...]:
    """Words of tyro: ``--section.name value``; what is true or false is a flag of its own."""
    words: list[str] = []
    for name, value in options.items():
        section, dot, last = name.rpartition(".")
        if isinstance(value, bool):
            words.append(f"--{section}{dot}{'' if value else 'no-'}{last}")
        else:
            words += [f"--{name}", str(value)]
    return tuple(words)


def torchtitan_settings(job: Job) -> dict[str, Any]:
    """Every estimated value, also where it is torchtitan's default."""
    accumulated = job.dims.accumulation if job.dims.pp > 1 else 1
    return {
        "hf-assets-path": "${model}",
        "dump-folder": "${run}",
        "training.local-batch-size": job.dims.micro_batch * accumulated,
        "training.global-batch-size": job.dims.global_batch,
        "training.seq-len": job.sequence_length,
        "training.steps": job.steps,
        "training.max-norm": job.hyper.clip_norm,
        "training.mixed-precision-param": "bfloat16",
        "compile.enable": True,  # as estimated
        "compile.components": "model,loss",
        "compile.enable-async-tensor-parallel": False,
        # Pipelines and experts cannot have graphs, and no estimate counts on them.
        "training.disable-cuda-graphs": True,
        **_split_settings(job),
        **_optimizer_settings(job),
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
        "debug.seed": job.hyper.seed,
        **_optional_settings(job),
    }


def _split_settings(job: Job) -> dict[str, Any]:
    shard = dense_shard(job)
    return {
        "parallelism.data-parallel-replicate-degree": job.dims.dp // shard,
        "parallelism.data-parallel-shard-degree": shard,
        "parallelism.fsdp-reshard-after-forward": _reshard_policy(job),
        "parallelism.tensor-parallel-degree": job.dims.tp,
        "parallelism.enable-sequence-parallel": job.sequence_parallel,
        "parallelism.pipeline-parallel-degree": job.dims.pp,
        "parallelism.context-parallel-degree": job.dims.cp,
        "parallelism.expert-parallel-degree": job.ep,
    }


def _optimizer_settings(job: Job) -> dict[str, Any]:
    h, kwargs = job.hyper, "optimizer.param-groups.0.optimizer-kwargs"
    return {
        f"{kwargs}.lr": h.learning_rate,
        f"{kwargs}.weight-decay": h.weight_decay,
        f"{kwargs}.eps": h.epsilon,
        "lr-scheduler.warmup-steps": h.warmup_steps,
        "lr-scheduler.decay-type": "cosine",
        "lr-scheduler.decay-ratio": 1.0 - h.warmup_steps / (job.steps or 1),
        "lr-scheduler.min-lr-factor": h.least_rate_share,
    }


def _optional_settings(job: Job) -> dict[str, Any]:
    piped = job.dims.pp > 1
    out: dict[str, Any] = {}
    if job.setting.loading.prefetch:
        # One process: more would each read all rows of a text that is not divided among workers.
        out |= {
            "dataloader.num-workers": 1,
            "dataloader.persistent-workers": True,
            "dataloader.prefetch-factor": job.setting.loading.prefetch,
            "dataloader.pin-memory": True,
        }
    if job.offload == "parameters":
        out["training.enable-cpu-offload"] = True
    if piped:
        out |= {
            "parallelism.pipeline-parallel-schedule": _SCHEDULES[job.schedule],
            "parallelism.pipeline-parallel-microbatch-size": job.dims.micro_batch,
            "parallelism.pipeline-parallel-first-stage-less-layers": 0,
            "parallelism.pipeline-parallel-last-stage-less-layers": 0,
        }
    if piped and job.virtual_stages > _USUAL_CHUNKS:
        # Of one chunk a stage, or two of an interleaved schedule, it makes as many as are asked.
        out["parallelism.pipeline-parallel-layers-per-stage"] = math.ceil(job.layers / job.cuts)
    if job.from_weights:
        out |= {"checkpoint.initial-load-path": "${model}", "checkpoint.initial-load-in-hf": True}
        if job.setting.model.quantization:
            out["checkpoint.initial-load-in-hf-quantized"] = True
    return out
