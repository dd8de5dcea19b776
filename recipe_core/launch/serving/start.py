"""How a serving split is started: its processes as words, never as a string for a shell."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from recipe_core.base.errors import NoAnswer
from recipe_core.launch.process import Deployment, Launch
from recipe_core.launch.serving import (
    dynamo,
    llama_cpp,
    sglang,
    tensorrt_llm,
    tgi,
    transformers,
    triton,
    vllm,
)
from recipe_core.launch.user_options import check_environment
from recipe_core.space.serving import no_such_cache

BUILDERS: dict[str, Callable[[Deployment], Launch]] = {
    "dynamo": dynamo.launch,
    "llama-cpp": llama_cpp.launch,
    "sglang": sglang.launch,
    "tensorrt-llm": tensorrt_llm.launch,
    "tgi": tgi.launch,
    "transformers": transformers.launch,
    "triton": triton.launch,
    "triton-tensorrt-llm": triton.launch,
    "vllm": vllm.launch,
}


def launch(deployment: Deployment) -> Launch:
    """The processes of a deployment.

    Raises:
        NoAnswer: when the engine cannot be started this way: weights the checkpoint does not hold,
            a cache dtype it cannot be told, groups that do not pack into nodes.
        InputError: for the user's own options and variables.
    """
    setting = deployment.setting
    engine = setting.engine
    if setting.needs_other_checkpoint:
        stored = setting.model.weight_dtype
        dtype = setting.weight_dtype
        message = f"{setting.model.name} stores {stored} weights, which {engine.title} cannot load"
        hint = f"Name a checkpoint that stores {dtype}, or use weight_dtype: auto."
        raise NoAnswer(f"{message} as {dtype}.", field="candidate.weight_dtype", hint=hint)
    if not setting.cache_can_be_had:
        message = f"{no_such_cache(setting)}."
        raise NoAnswer(message, field="candidate.kv_dtype", hint="Use kv_dtype: auto.")
    environment = check_environment(deployment.environment)
    return BUILDERS[engine.name](replace(deployment, environment=environment))


__all__ = ["BUILDERS", "Deployment", "Launch", "launch"]
