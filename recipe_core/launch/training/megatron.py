"""Megatron-LM's words on NVIDIA; on AMD the same values as a Primus experiment, which runs it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from recipe_core.base.documents import to_yaml
from recipe_core.base.errors import NoAnswer
from recipe_core.launch.process import Launch
from recipe_core.launch.training.job import (
    Job,
    environment,
    processes,
    short_name,
    torchrun,
    training,
)
from recipe_core.model.spec import MoeMlp

_SHARDING = {2: "optim_grads", 3: "optim_grads_params"}
_OPTIMIZERS = {"adamw": "adam", "sgd": "sgd"}
PRIMUS_CONFIG = "primus.yaml"


def launch(job: Job) -> Launch:
    """Torchrun on ``pretrain_gpt``, or Primus' launcher on AMD."""
    options = arguments(job)
    if job.setting.cluster.device.runtime == "rocm":
        return _primus(job, options)
    words = ("-m", "pretrain_gpt", *argv(options))
    variables = environment(job)
    if job.zero_stage < 2:  # Megatron-FSDP must not have it
        variables["CUDA_DEVICE_MAX_CONNECTIONS"] = "1"
    started = processes(job, lambda node: (*torchrun(job, node), *words), variables)
    return training(job, started, options, {})


def argv(options: dict[str, Any]) -> tuple[str, ...]:
    """Megatron's words: ``--some-name value``; true is a flag alone, false is left out."""
    words: list[str] = []
    for name, value in options.items():
        if value is not False:
            words.append(f"--{name.replace('_', '-')}")
            if value is not True:
                words.append(str(value))
    return tuple(words)


def arguments(job: Job) -> dict[str, Any]:
    """Every estimated value, also where it is Megatron's default, by the name of its argument."""
    return _model(job) | _split(job) | _run(job)


def _model(job: Job) -> dict[str, Any]:
    model, a, mlp = job.setting.model, job.attention, job.setting.model.kinds[0][0].mlp
    assert a is not None  # noqa: S101 - refused otherwise
    assert mlp is not None  # noqa: S101
    config = model.config
    out: dict[str, Any] = {
        "num_layers": job.layers,
        "hidden_size": model.hidden,
        "ffn_hidden_size": mlp.intermediate,
        "num_attention_heads": a.heads,
        "group_query_attention": a.kv_heads != a.heads,
        "num_query_groups": a.kv_heads,
        "kv_channels": a.head_dim,
        "max_position_embeddings": max(job.sequence_length, model.max_context),
        "position_embedding_type": "rope",
        "normalization": "RMSNorm",
        "swiglu": True,
        "disable_bias_linear": True,
        "untie_embeddings_and_output_weights": not model.tied_embeddings,
        "make_vocab_size_divisible_by": 1,
        "vocab_size": model.vocabulary,
        "tokenizer_type": "HuggingFaceTokenizer",
        "tokenizer_model": "${model}",
    }
    for name, key in (("rotary_base", "rope_theta"), ("norm_epsilon", "rms_norm_eps")):
        if config.get(key) is not None:
            out[name] = _number(config[key], key)
    if isinstance(mlp, MoeMlp):
        out |= {
            "num_experts": mlp.experts,
            "moe_router_topk": mlp.top_k,
            "moe_ffn_hidden_size": mlp.intermediate,
            "moe_grouped_gemm": True,
            "moe_token_dispatcher_type": "alltoall",
            "moe_router_load_balancing_type": "aux_loss",
        }
        if mlp.shared_intermediate:
            out["moe_shared_expert_intermediate_size"] = mlp.shared_intermediate
    return out


def _number(value: Any, key: str) -> float:
    """A number of the model's config; raises NoAnswer for anything else, such as a text."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        message, hint = f"is {value!r:.80}, not a number.", "Correct the model's config.json."
        raise NoAnswer(message, field=f"model.{key}", hint=hint)
    return value


def _split(job: Job) -> dict[str, Any]:
    out: dict[str, Any] = {
        "tensor_model_parallel_size": job.dims.tp,
        "pipeline_model_parallel_size": job.dims.pp,
        "context_parallel_size": job.dims.cp,
        "sequence_parallel": job.sequence_parallel,
        "use_distributed_optimizer": job.zero_stage > 0,
        "overlap_grad_reduce": True,
        "overlap_param_gather": job.zero_stage > 0,
    }
    if len(set(job.stage_layers)) > 1:
        out["pipeline_model_parallel_layout"] = pipeline_layout(job)
    if job.virtual_stages > 1:
        out["num_virtual_stages_per_pipeline_rank"] = job.virtual_stages
    if job.moe is not None:
        out |= {
            "expert_model_parallel_size": job.ep,
            "expert_tensor_parallel_size": 1 if job.ep > 1 else job.dims.tp,
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


def pipeline_layout(job: Job) -> str:
    """Stages between bars: embedding E, so many layers t, loss L.

    As ``megatron/core/transformer/pipeline_parallel_layer_layout.py`` reads it.
    """
    return f"E{'|'.join(f't*{count}' if count else '' for count in job.stage_layers)}L"


def _run(job: Job) -> dict[str, Any]:
    h, setting = job.hyper, job.setting
    out: dict[str, Any] = {
        "micro_batch_size": job.dims.micro_batch,
        "global_batch_size": job.dims.global_batch,
        "seq_length": job.sequence_length,
        "train_iters": job.steps,
        "attention_backend": "flash" if setting.flash else "unfused",
        "bf16": setting.precision in ("bf16", "fp8"),
        "fp16": setting.precision == "fp16",
        "optimizer": _OPTIMIZERS[setting.optimizer_name],
        "lr": h.learning_rate,
        "min_lr": h.learning_rate * h.least_rate_share,
        "lr_decay_style": "cosine",
        "lr_warmup_iters": h.warmup_steps,
        "weight_decay": h.weight_decay,
        "adam_beta1": h.beta1,
        "adam_beta2": h.beta2,
        "adam_eps": h.epsilon,
        "clip_grad": h.clip_norm,
        "seed": h.seed + 1,  # it takes none below 1
        "mock_data": True,  # until --data-path names a data set in its own format
        "log_interval": 1,
        "log_throughput": True,
        "eval_iters": 0,
        "save": "${run}/checkpoints",
        "load": "${run}/checkpoints",
        "save_interval": job.checkpoint_steps,
        "async_save": job.zero_stage < 2,
        "ckpt_format": "torch_dist" if job.zero_stage < 2 else "fsdp_dtensor",
    }
    if setting.precision == "fp8":
        out["fp8_format"] = "hybrid"
    narrow = setting.states.reduced < 4
    if narrow != (setting.precision == "fp16"):  # otherwise than it keeps them itself
        out["grad_reduce_in_bf16" if narrow else "accumulate_allreduce_grads_in_fp32"] = True
    if job.recompute == "full":
        out |= {
            "recompute_granularity": "full",
            "recompute_method": "uniform",
            "recompute_num_layers": 1,
        }
    elif job.recompute == "selective":
        out |= {"recompute_granularity": "selective", "recompute_modules": "core_attn"}
    return out


def _primus(job: Job, options: dict[str, Any]) -> Launch:
    """Primus takes the same names in a file; its launcher reads torchrun's from the environment."""
    overrides = dict(options)
    if "recompute_modules" in overrides:  # a list in its file
        overrides["recompute_modules"] = [overrides["recompute_modules"]]
    experiment = {
        "work_group": "recipe",
        "user_name": "recipe",
        "exp_name": short_name(job.setting.model.name),
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
    started = processes(job, lambda _: words, environment(job) | meeting)
    ranked = tuple(
        replace(process, env={**process.env, "NODE_RANK": str(process.node)}) for process in started
    )
    return training(job, ranked, overrides, {PRIMUS_CONFIG: to_yaml(experiment)})
