"""Hugging Face Text Generation Inference: ``text-generation-launcher``, one node a server."""

from __future__ import annotations

from typing import Any

from recipe_core.launch.process import Deployment, Launch
from recipe_core.launch.serving import rules
from recipe_core.launch.serving.option_words import make_options
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
    cast = candidate.weight_dtype == "fp8" and setting.model.weight_dtype != "fp8"
    plain = not cast and setting.model.quantization is None
    options = make_options(
        "tgi",
        deployment,
        candidate.split,
        sharded="true" if candidate.tp > 1 else "false",
        max_input=deployment.max_context - 1,
        unquantized=deployment.activation_word if plain else None,
        cache="fp8_e4m3fn" if candidate.kv_dtype == "fp8" else None,
    )
    return options | rules.rule_options(deployment)
