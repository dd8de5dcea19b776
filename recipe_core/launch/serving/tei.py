"""Hugging Face Text Embeddings Inference: ``text-embeddings-router``, one device a server."""

from __future__ import annotations

from typing import Any

from recipe_core.launch.process import Deployment, Launch
from recipe_core.launch.serving import rules
from recipe_core.launch.serving.option_words import make_options
from recipe_core.launch.serving.replicas import launch_replicas

STARTUP_TIMEOUT_S = 1800
# It computes in these two formats only; a checkpoint in bf16 is cast while it is loaded.
_DTYPES = {"bf16": "float16", "fp16": "float16", "fp32": "float32"}


def launch_tei(deployment: Deployment) -> Launch:
    """One router per replica, each on a device of its own.

    Its answers are vectors or scores, for which the launcher has no benchmark.
    """
    return launch_replicas(
        deployment,
        (deployment.setting.engine.program,),
        tei_options(deployment),
        startup_timeout_s=STARTUP_TIMEOUT_S,
        api_path="/embed" if deployment.setting.model.task == "embed" else "/rerank",
        api_model="tei",
    )


def tei_options(deployment: Deployment) -> dict[str, Any]:
    """Every option that the estimate depends on."""
    candidate, setting = deployment.candidate, deployment.setting
    longest = min(deployment.max_context, setting.model.max_context)
    options = make_options(
        "tei",
        deployment,
        candidate.split,
        truncate="true" if candidate.max_batched_tokens < longest else "false",
        word=_DTYPES.get(setting.weight_dtype),
    )
    return options | rules.rule_options(deployment)
