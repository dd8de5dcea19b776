"""The embedded engine: Hugging Face ``transformers serve`` on CUDA, ROCm or CPU, one device a server."""

from __future__ import annotations

from typing import Any

from recipe_core.engines.deployment import Deployment, Launch, Process, device_groups

STARTUP_TIMEOUT_S = 600


def launch(deployment: Deployment) -> Launch:
    """One server a replica, on consecutive ports."""
    candidate = deployment.candidate
    options = _options(deployment)
    argv = ("transformers", "serve", "${model}", *deployment.setting.engine.argv(options))
    groups = device_groups(candidate, candidate.dp)
    return Launch(
        processes=tuple(Process(f"server-{n}", argv, {}, n, groups[n]) for n in range(candidate.dp)),
        options=options,
        health="/health",
        startup_timeout_s=STARTUP_TIMEOUT_S,
        api_path="/v1/completions",
        api_model="${model}",
        requires=("fastapi", "uvicorn", "torch"),
    )


def _options(deployment: Deployment) -> dict[str, Any]:
    runtime = deployment.setting.cluster.device.runtime
    return {
        "host": "${host}",
        "port": "${port}",
        "device": "cpu" if runtime == "cpu" else "cuda",
        "dtype": deployment.activation_word,
        "continuous_batching": runtime != "cpu",
    }
