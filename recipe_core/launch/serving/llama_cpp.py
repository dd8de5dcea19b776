"""llama.cpp: ``llama-server`` on CUDA, ROCm and CPU, from a GGUF file."""

from __future__ import annotations

from typing import Any

from recipe_core.launch.process import Deployment, Launch, Split
from recipe_core.launch.serving import rules
from recipe_core.launch.serving.groups import engine_groups, group_processes
from recipe_core.launch.user_options import check_options

STARTUP_TIMEOUT_S = 900
ALL_LAYERS = 999
_CACHE_WORDS = {"fp16": "f16", "bf16": "bf16", "fp32": "f32"}


def launch_llama_cpp(deployment: Deployment) -> Launch:
    """One server a replica; ``${model}`` is a GGUF file."""
    engine = deployment.setting.engine
    placed = engine_groups(deployment)
    options = llama_cpp_options(deployment, placed[0].split)
    extra = check_options(deployment.engine_options, engine, engine.options, options)
    argv = ("llama-server", *engine.argv(options | extra))
    started = group_processes(
        placed, lambda group, rank: argv, lambda group, rank: rules.rule_environment(deployment)
    )
    return Launch(
        processes=tuple(started),
        options=options | extra,
        health="/health",
        startup_timeout_s=STARTUP_TIMEOUT_S,
        api_path="/v1/completions",
        api_model=deployment.served_name,
        api_body={"ignore_eos": True, "temperature": 0},
    )


def server_slots(deployment: Deployment) -> int:
    """Requests at once.

    Each slot holds an entire context from the start, so only as many as the estimated cache covers.
    """
    covered = deployment.cache_tokens // deployment.max_context
    return max(1, min(deployment.candidate.max_num_seqs, covered))


def llama_cpp_options(deployment: Deployment, split: Split) -> dict[str, Any]:
    """Every option that the estimate depends on; nothing is left to be fitted to the memory."""
    candidate = deployment.candidate
    cache = _CACHE_WORDS[candidate.kv_dtype]
    cpu = deployment.setting.cluster.device.runtime == "cpu"
    options: dict[str, Any] = {
        "model": "${model}",
        "alias": deployment.served_name,
        "host": "${host}",
        "port": "${port}",
        "ctx_size": deployment.max_context * server_slots(deployment),
        "parallel": server_slots(deployment),
        "no_kv_unified": True,
        "batch_size": candidate.max_batched_tokens,
        "cache_type_k": cache,
        "cache_type_v": cache,
        "n_gpu_layers": 0 if cpu else ALL_LAYERS,
        "fit": "off",
        "metrics": True,
    }
    if not cpu:
        options["split_mode"] = "layer" if split.pp > 1 else "none"
    if split.pp > 1:
        options["tensor_split"] = ",".join(["1"] * split.pp)
    return options | rules.rule_options(deployment)
