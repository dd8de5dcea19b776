"""Hugging Face Text Generation Inference: ``text-generation-launcher``, one node a server."""

from __future__ import annotations

from typing import Any

from recipe_core.launch.process import Deployment, Launch, Split
from recipe_core.launch.serving import rules
from recipe_core.launch.serving.groups import engine_groups, group_processes
from recipe_core.launch.user_options import check_options

STARTUP_TIMEOUT_S = 1800


def launch_tgi(deployment: Deployment) -> Launch:
    """One launcher per replica; it starts one process per shard."""
    engine = deployment.setting.engine
    placed = engine_groups(deployment)
    options = tgi_options(deployment, placed[0].split)
    extra = check_options(deployment.engine_options, engine, engine.options, options)
    argv = ("text-generation-launcher", *engine.argv(options | extra))
    # TGI makes a cache of what a full prefill leaves free, times this share.
    share = {"TGI_WIGGLE_ROOM": str(deployment.candidate.memory_fraction)}
    environment = rules.rule_environment(deployment) | share
    started = group_processes(
        placed,
        lambda group, rank: argv,
        lambda group, rank: dict(environment) | _shard_environment(group.number),
    )
    return Launch(
        processes=tuple(started),
        options=options | extra,
        health="/health",
        startup_timeout_s=STARTUP_TIMEOUT_S,
        api_path="/v1/completions",
        api_model="tgi",
        api_body={"temperature": 0},
    )


def _shard_environment(number: int) -> dict[str, str]:
    return {"MASTER_PORT": str(29500 + number), "SHARD_UDS_PATH": f"${{run}}/shard-{number}"}


def tgi_options(deployment: Deployment, split: Split) -> dict[str, Any]:
    """Every option that the estimate depends on."""
    candidate, setting = deployment.candidate, deployment.setting
    options: dict[str, Any] = {
        "model_id": "${model}",
        "hostname": "${host}",
        "port": "${port}",
        "sharded": "true" if split.tp > 1 else "false",
        "num_shard": split.tp,
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
