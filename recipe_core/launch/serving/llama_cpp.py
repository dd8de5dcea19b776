"""llama.cpp: ``llama-server`` on CUDA, ROCm and CPU, from a GGUF file."""

from __future__ import annotations

from typing import Any

from recipe_core.launch.process import EXACT_LENGTH, Deployment, Launch
from recipe_core.launch.serving import rules
from recipe_core.launch.serving.option_words import make_options
from recipe_core.launch.serving.replicas import launch_replicas

STARTUP_TIMEOUT_S = 900
ALL_LAYERS = 999
_CACHE_WORDS = {"fp16": "f16", "bf16": "bf16", "fp32": "f32"}


def launch_llama_cpp(deployment: Deployment) -> Launch:
    """One server a replica; ``${model}`` is a GGUF file."""
    return launch_replicas(
        deployment,
        ("llama-server",),
        llama_cpp_options(deployment),
        startup_timeout_s=STARTUP_TIMEOUT_S,
        api_model=deployment.served_name,
        api_body=EXACT_LENGTH,
    )


def server_slots(deployment: Deployment) -> int:
    """Requests at once.

    Each slot holds an entire context from the start, so only as many as the estimated cache covers.
    """
    covered = deployment.cache_tokens // deployment.max_context
    return max(1, min(deployment.candidate.max_num_seqs, covered))


def llama_cpp_options(deployment: Deployment) -> dict[str, Any]:
    """Every option that the estimate depends on; nothing is left to be fitted to the memory."""
    candidate = deployment.candidate
    cpu = deployment.setting.cluster.device.runtime == "cpu"
    layers = "layer" if candidate.pp > 1 else "none"
    options = make_options(
        "llama-cpp",
        deployment,
        candidate.split,
        all_contexts=deployment.max_context * server_slots(deployment),
        slots=server_slots(deployment),
        cache=_CACHE_WORDS[candidate.kv_dtype],
        layers=0 if cpu else ALL_LAYERS,
        split_mode=None if cpu else layers,
        tensor_split=",".join(["1"] * candidate.pp) if candidate.pp > 1 else None,
    )
    return options | rules.rule_options(deployment)
