"""vLLM: ``vllm serve`` on CUDA and ROCm."""

from __future__ import annotations

from typing import Any

from recipe_core.engines.deployment import Deployment, Launch, Process, device_groups
from recipe_core.errors import NoAnswer

STARTUP_TIMEOUT_S = 1800
_ENVIRONMENT = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}


def launch(deployment: Deployment) -> Launch:
    """Servers for the split.

    Replicas of a dense model, and data-parallel attention with shared experts, are vLLM's own data parallelism behind one
    address. Replicas of a mixture of experts are separate servers on consecutive ports: under vLLM's data parallelism their
    experts would be cut over all replicas, which is another split than the one estimated.
    """
    candidate = deployment.candidate
    apart = candidate.dp > 1 and candidate.ep == 1 and deployment.setting.model.is_moe
    count = candidate.dp if apart else 1
    options = _options(deployment, data_parallel=1 if apart else candidate.dp)
    argv = ("vllm", "serve", "${model}", *deployment.setting.engine.argv(options))
    groups = device_groups(candidate, count)
    processes = tuple(Process(f"server-{n}", argv, dict(_ENVIRONMENT), n, groups[n]) for n in range(count))
    return Launch(
        processes=processes,
        options=options,
        health="/health",
        startup_timeout_s=STARTUP_TIMEOUT_S,
        api_path="/v1/completions",
        api_model=deployment.served_name,
        api_body={"ignore_eos": True, "temperature": 0},
    )


def _options(deployment: Deployment, data_parallel: int) -> dict[str, Any]:
    """Every option that the estimate depends on, stated even where it is the default.

    The default block size is not stated: attention backends demand different ones (16 is refused by some), and vLLM finds
    the one that fits when it is left to choose. The estimate depends on it by less than a block a request.
    """
    candidate = deployment.candidate
    options: dict[str, Any] = {
        "host": "${host}",
        "port": "${port}",
        "served_model_name": deployment.served_name,
        "tensor_parallel_size": candidate.tp,
        "pipeline_parallel_size": candidate.pp,
        "data_parallel_size": data_parallel,
        "enable_expert_parallel": candidate.ep > 1,
        "dtype": deployment.activation_word,
        "kv_cache_dtype": _cache_word(deployment),
        "max_model_len": deployment.max_context,
        "max_num_seqs": candidate.max_num_seqs,
        "max_num_batched_tokens": candidate.max_batched_tokens,
        "gpu_memory_utilization": candidate.memory_fraction,
    }
    if candidate.cp > 1:
        options["decode_context_parallel_size"] = candidate.cp
    if candidate.block_size != deployment.setting.engine.memory.block_tokens:
        options["block_size"] = candidate.block_size
    if candidate.weight_dtype != deployment.setting.model.weight_dtype and candidate.weight_dtype == "fp8":
        options["quantization"] = "fp8"
    return options


def _cache_word(deployment: Deployment) -> str:
    """VLLM's name for the cache format: "auto" follows the activations."""
    wanted = deployment.candidate.kv_dtype
    if wanted == "fp8":
        return "fp8"
    follows = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}[deployment.activation_word]
    if wanted != follows:
        raise NoAnswer(
            f"vLLM keeps a 16-bit cache in the activations' format, {follows}, not in {wanted}.",
            field="candidate.kv_dtype",
            hint=f"Use kv_dtype: {follows}, fp8 or auto.",
        )
    return "auto"
