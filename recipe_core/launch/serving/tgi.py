"""Hugging Face Text Generation Inference: ``text-generation-launcher``, one node a server."""

from __future__ import annotations

from typing import Any

from recipe_core.launch.process import Deployment, Launch
from recipe_core.launch.serving import rules
from recipe_core.launch.serving.replicas import launch_replicas

STARTUP_TIMEOUT_S = 1800


def launch_tgi(deployment: Deployment) -> Launch:
    """One launcher per replica; it starts one process per shard."""
    # TGI makes a cache of what a full prefill leaves free, times this share.
    share = {"TGI_WIGGLE_ROOM": str(deployment.candidate.memory_fraction)}
    return launch_replicas(
        deployment,
        ("text-generation-launcher",),
        tgi_options(deployment),
        rules.rule_environment(deployment) | share,
        _shard_environment,
        startup_timeout_s=STARTUP_TIMEOUT_S,
        api_model="tgi",
        api_body={"temperature": 0},
    )


def _shard_environment(number: int) -> dict[str, str]:
    return {"MASTER_PORT": str(29500 + number), "SHARD_UDS_PATH": f"${{run}}/shard-{number}"}


def tgi_options(deployment: Deployment) -> dict[str, Any]:
    """Every option that the estimate depends on."""
    candidate, setting = deployment.candidate, deployment.setting
    options: dict[str, Any] = {
        "model_id": "${model}",
        "hostname": "${host}",
        "port": "${port}",
        "sharded": "true" if candidate.tp > 1 else "false",
        "num_shard": candidate.tp,
        "max_total_tokens": deployment.max_context,
        "max_input_tokens": deployment.max_context - 1,
        "max_batch_prefill_tokens": candidate.max_batched_tokens,
        "max_batch_size": candidate.max_num_seqs,
        "max_concurrent_requests": 4 * candidate.max_num_seqs,
        "cuda_memory_fraction": 1.0,
    }
    online = candidate.weight_dtype == "fp8" and setting.model.weight_dtype != "fp8"
    if online:
        options["quantize"] = "fp8"
    elif setting.model.quantization is None:
        # TGI refuses it beside a quantisation, the checkpoint's own too.
        options["dtype"] = deployment.activation_word
    if candidate.kv_dtype == "fp8":
        options["kv_cache_dtype"] = "fp8_e4m3fn"
    return options | rules.rule_options(deployment)
