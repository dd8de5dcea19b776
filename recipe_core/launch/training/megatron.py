"""Megatron-LM's words on NVIDIA; on AMD the same values as a Primus experiment, which runs it."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from recipe_core.base.documents import to_yaml
from recipe_core.launch.process import Launch
from recipe_core.launch.training.job import (
    Job,
    job_launch,
    torch_environment,
    torchrun,
    trainer_processes,
)
from recipe_core.plans.megatron_model import has_latent_layers, megatron_model
from recipe_core.request.describe import model_short_name

_SHARDING = {2: "optim_grads", 3: "optim_grads_params"}
_OPTIMIZERS = {"adamw": "adam", "sgd": "sgd"}
_SCOPES = {"attention": "attn", "layer": "full", "iteration": "full_iteration"}
PRIMUS_CONFIG = "primus.yaml"


def launch_megatron(job: Job) -> Launch:
    """Torchrun on ``pretrain_gpt``, or Primus' launcher on AMD."""
    options = megatron_arguments(job)
    if job.setting.cluster.device.runtime == "rocm":
        return _launch_primus(job, options)
    words = ("-m", "pretrain_gpt", *megatron_words(options))
    variables = torch_environment(job)
    if job.setting.cuda_graphs != "none":
        variables["NCCL_GRAPH_REGISTER"] = "0"  # it does not go with segments that grow
    if job.zero_stage < 2:  # Megatron-FSDP must not have it
        variables["CUDA_DEVICE_MAX_CONNECTIONS"] = _max_connections(job)
    started = trainer_processes(job, lambda node: (*torchrun(job, node), *words), variables)
    return job_launch(job, started, options, {})


def _max_connections(job: Job) -> str:
    """One keeps kernels of tp and cp in order; an overlapped exchange of tokens wants many."""
    ordered = job.dims.tp > 1 or job.dims.cp > 1
    return "32" if job.overlap_experts and not ordered else "1"


def megatron_words(options: dict[str, Any]) -> tuple[str, ...]:
    """Megatron's words: ``--some-name value``; true is a flag alone, false is left out."""
    words: list[str] = []
    for name, value in options.items():
        if value is not False:
            words.append(f"--{name.replace('_', '-')}")
            values = value if isinstance(value, tuple) else (value,)
            words += (str(element) for element in values if element is not True)
    return tuple(words)


def megatron_arguments(job: Job) -> dict[str, Any]:
    """Every estimated value, also where it is Megatron's default, by the name of its argument."""
    return (
        _megatron_model_arguments(job)
        | _megatron_split_arguments(job)
        | _megatron_run_arguments(job)
        | _megatron_graph_arguments(job)
        | _length_arguments(job)
    )


def _megatron_model_arguments(job: Job) -> dict[str, Any]:
    model = job.setting.model
    out = megatron_model(model).words | {
        "max_position_embeddings": max(job.sequence_length, model.max_context),
        "make_vocab_size_divisible_by": 1,
        "tokenizer_type": "HuggingFaceTokenizer",
        "tokenizer_model": "${model}",
    }
    if job.moe is not None:
        # its grouped products are in bf16 and fp8 only
        out |= {
            "moe_grouped_gemm": job.setting.precision != "fp16",
            "moe_token_dispatcher_type": "alltoall",
        }
    return out


def _megatron_split_arguments(job: Job) -> dict[str, Any]:
    out: dict[str, Any] = {
        "tensor_model_parallel_size": job.dims.tp,
        "pipeline_model_parallel_size": job.dims.pp,
        "context_parallel_size": job.dims.cp,
        "sequence_parallel": job.sequence_parallel,
        "use_distributed_optimizer": job.zero_stage > 0,
        "overlap_grad_reduce": True,
        "overlap_param_gather": job.zero_stage > 0,
    }
    out |= _pipeline_arguments(job)
    if job.moe is not None:
        out |= {
            "expert_model_parallel_size": job.ep,
            "expert_tensor_parallel_size": 1 if job.ep > 1 else job.dims.tp,
            "overlap_moe_expert_parallel_comm": job.overlap_experts,
        }
    if job.zero_stage > 1:
        out |= {
            "use_megatron_fsdp": True,
            "data_parallel_sharding_strategy": _SHARDING[job.zero_stage],
        }
        out["no_gradient_accumulation_fusion"] = True
    if job.zero_stage and job.dims.copies > 1:
        out["num_distributed_optimizer_instances"] = job.dims.copies
    return out


def _pipeline_arguments(job: Job) -> dict[str, Any]:
    """Return how layers lie on stages: evenly, with both ends counted as layers, or as listed."""
    out: dict[str, Any] = {}
    if predictions := job.setting.mtp_layers:
        out["mtp_num_layers"] = predictions
        if job.dims.pp > 1:
            out["pipeline_model_parallel_layout"] = pipeline_layout(job)
    elif reserves_ends(job):
        out["account_for_embedding_in_pipeline_split"] = True
        out["account_for_loss_in_pipeline_split"] = True
    elif len(set(job.stage_layers)) > 1:
        out["pipeline_model_parallel_layout"] = pipeline_layout(job)
    if job.virtual_stages > 1:
        out["num_virtual_stages_per_pipeline_rank"] = job.virtual_stages
    return out


def reserves_ends(job: Job) -> bool:
    """Return whether chunks come out even only with embedding and loss as a layer each."""
    layers_with_ends = job.layers + 2
    if job.layers % job.cuts == 0 or layers_with_ends % job.cuts:
        return False
    full = layers_with_ends // job.dims.pp
    return job.stage_layers == (full - 1, *[full] * (job.dims.pp - 2), full - 1)


def pipeline_layout(job: Job) -> str:
    """Stages between bars: embedding E, so many layers t, multi-token prediction m, loss L.

    As ``megatron/core/transformer/pipeline_parallel_layer_layout.py`` reads it.
    """
    *stages, last = job.stage_layers
    predictions = job.setting.mtp_layers
    counts = (*stages, last - predictions)
    words = "|".join(f"t*{count}" if count else "" for count in counts)
    return f"E{words}{'m' * predictions}L"


def _megatron_run_arguments(job: Job) -> dict[str, Any]:
    h, setting = job.hyper, job.setting
    return {
        "micro_batch_size": job.dims.micro_batch,
        "global_batch_size": job.dims.global_batch,
        "seq_length": job.sequence_length,
        "attention_backend": _attention_backend(job),
        "cross_entropy_loss_fusion": True,  # as estimated: gradients take the place of logits
        "cross_entropy_fusion_impl": "te",
        "bf16": setting.precision in ("bf16", "fp8"),
        "fp16": setting.precision == "fp16",
        "optimizer": _OPTIMIZERS[setting.optimizer_name],
        "lr": h.learning_rate,
        "min_lr": h.learning_rate * h.least_rate_share,
        "lr_decay_style": "cosine",
        "weight_decay": h.weight_decay,
        "adam_beta1": h.beta1,
        "adam_beta2": h.beta2,
        "adam_eps": h.epsilon,
        "clip_grad": h.clip_norm,
        "seed": h.seed + 1,  # it takes none below 1
        "mock_data": True,  # until --data-path names its own format, which it maps
        "num_workers": setting.loading.workers if setting.loading.prefetch else 0,
        "num_dataset_builder_threads": setting.loading.workers,
        "log_interval": 1,
        "log_throughput": True,
        "eval_iters": 0,
        "save": "${run}/checkpoints",
        "load": "${run}/checkpoints",
        "save_interval": job.checkpoint_steps,
        "exit_signal_handler": True,  # SIGTERM: all ranks write a checkpoint and end
        "async_save": job.zero_stage < 2,
        "ckpt_format": "torch_dist" if job.zero_stage < 2 else "fsdp_dtensor",
        **_optimizer_state_arguments(job),
        **_precision_arguments(job),
        **_recompute_arguments(job),
    }


def _optimizer_state_arguments(job: Job) -> dict[str, Any]:
    out: dict[str, Any] = {}
    if job.offload == "optimizer":
        # its optimizer on the host is a part of the precision-aware one
        out |= {
            "use_precision_aware_optimizer": True,
            "optimizer_cpu_offload": True,
            "overlap_cpu_optimizer_d2h_h2d": True,
        }
    if dtype := job.setting.moment_dtype:
        out |= {
            "use_precision_aware_optimizer": True,
            "exp_avg_dtype": dtype,
            "exp_avg_sq_dtype": dtype,
        }
    return out


def _precision_arguments(job: Job) -> dict[str, Any]:
    out: dict[str, Any] = {}
    setting = job.setting
    if setting.precision == "fp8":
        recipe = setting.fp8_recipe or "delayed"  # its own default
        # in blocks it has more range than it needs, so gradients are in e4m3 too, as in its recipes
        out |= {"fp8_format": "e4m3" if recipe == "mxfp8" else "hybrid", "fp8_recipe": recipe}
    narrow = setting.states.reduced < 4
    if narrow != (setting.precision == "fp16"):  # otherwise than it keeps them itself
        out["grad_reduce_in_bf16" if narrow else "accumulate_allreduce_grads_in_fp32"] = True
    return out


def _recompute_arguments(job: Job) -> dict[str, Any]:
    if job.recompute == "full":
        return {
            "recompute_granularity": "full",
            "recompute_method": "uniform",
            "recompute_num_layers": 1,
        }
    if job.recompute == "selective":
        modules = job.recompute_modules or ("core_attn",)
        return {"recompute_granularity": "selective", "recompute_modules": modules}
    return {}


def _megatron_graph_arguments(job: Job) -> dict[str, Any]:
    """Return what is captured: by Transformer Engine, a whole iteration by Megatron Core itself."""
    graphs = job.setting.cuda_graphs
    if graphs == "none":
        return {}
    out: dict[str, Any] = {
        "cuda_graph_impl": "local" if graphs == "iteration" else "transformer_engine",
        "cuda_graph_scope": _SCOPES[graphs],
        "te_rng_tracker": True,  # random numbers of a graph must move on
    }
    if graphs == "iteration":  # the host looks at no loss in the middle of it
        out["no_check_for_nan_in_loss_and_grad"] = True
    return out


def _attention_backend(job: Job) -> str:
    """Return the named backend; else Transformer Engine chooses where cuDNN's is usual.

    FlashAttention 2 takes keys and values of one width only, which latent attention has not.
    """
    setting = job.setting
    backends = {"eager": "unfused", "flash2": "flash", "cudnn": "fused"}
    if setting.attention in backends:
        return backends[setting.attention]
    usual, _ = setting.framework.kernels_on(setting.cluster.device.architecture)
    return "auto" if has_latent_layers(setting.model) or usual != "flash2" else "flash"


def _length_arguments(job: Job) -> dict[str, Any]:
    """Return how long the run is and warms up: in steps, or in sequences where the batch grows.

    Megatron takes a ramp for runs that are counted in samples only; it adds ``increment`` each time
    as many of them have passed, as ``megatron/core/num_microbatches_calculator.py`` counts.
    """
    ramp, warmup, setting = job.setting.ramp, job.hyper.warmup_steps, job.setting
    if ramp is None or not ramp.increment:
        return {"train_iters": job.steps, "lr_warmup_iters": warmup}
    tokens = sum(phase.tokens for phase in setting.phases)
    return {
        "train_samples": math.ceil(tokens / job.sequence_length),
        "lr_warmup_samples": warmup * job.dims.global_batch,
        "rampup_batch_size": (ramp.start, ramp.increment, ramp.sequences),
    }


def _launch_primus(job: Job, options: dict[str, Any]) -> Launch:
    """Primus takes the same names in a file; its launcher reads torchrun's from the environment."""
    overrides = {k: list(v) if isinstance(v, tuple) else v for k, v in options.items()}
    experiment = {
        "work_group": "recipe",
        "user_name": "recipe",
        "exp_name": model_short_name(job.setting.model.name),
        "workspace": "./run",
        "modules": {
            "pre_trainer": {
                "framework": "megatron",
                "config": "pre_trainer.yaml",
                "model": "llama_base.yaml",
                "overrides": overrides,
            }
        },
    }
    train = ("train", "pretrain", "--config", f"${{root}}/{PRIMUS_CONFIG}")
    words = ("primus-cli", "direct", "--", *train)
    meeting = {
        "NNODES": str(job.nodes),
        "GPUS_PER_NODE": str(job.processes_per_node),
        "MASTER_ADDR": "${head}",
        "MASTER_PORT": "${port}",
    }
    started = trainer_processes(job, lambda _: words, torch_environment(job) | meeting)
    ranked = tuple(
        replace(process, env={**process.env, "NODE_RANK": str(process.node)}) for process in started
    )
    return job_launch(job, ranked, overrides, {PRIMUS_CONFIG: to_yaml(experiment)})
