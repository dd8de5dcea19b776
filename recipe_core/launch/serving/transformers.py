"""The embedded engine: Hugging Face ``transformers serve``, one device per server."""

from __future__ import annotations

import json
import math
from pathlib import PurePath
from typing import Any

from recipe_core.launch.process import Deployment, Launch
from recipe_core.launch.serving import rules
from recipe_core.launch.serving.option_words import make_options
from recipe_core.launch.serving.replicas import launch_replicas

STARTUP_TIMEOUT_S = 600
_REQUIRES = ("torch", "openai", "fastapi", "uvicorn", "accelerate")
# The server refuses fields it does not know, so the exact length is stated in its own words.
_EXACT_LENGTH = json.dumps({"eos_token_id": -1, "do_sample": False})


def launch_transformers(deployment: Deployment) -> Launch:
    """One server per replica, on consecutive ports."""
    return launch_replicas(
        deployment,
        ("transformers", "serve", "${model}"),
        _transformers_options(deployment),
        _transformers_environment(deployment),
        startup_timeout_s=STARTUP_TIMEOUT_S,
        api_model="${model}",
        api_body={"generation_config": _EXACT_LENGTH, "stream_options": None},
        requires=_REQUIRES,
    )


def _transformers_options(deployment: Deployment) -> dict[str, Any]:
    candidate = deployment.candidate
    return make_options(
        "transformers",
        deployment,
        candidate.split,
        device="cpu" if deployment.setting.cluster.device.runtime == "cpu" else "cuda",
        blocks=max(1, math.ceil(deployment.cache_tokens / candidate.block_size)),
    )


def _transformers_environment(deployment: Deployment) -> dict[str, str]:
    """A model folder needs no hub."""
    variables = rules.rule_environment(deployment)
    if PurePath(deployment.setting.model.source).is_absolute():
        return {"HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": "${run}/hub", **variables}
    return variables
