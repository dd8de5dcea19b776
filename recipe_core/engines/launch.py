"""How a chosen split is started: processes, their options, and how to ask them. Typed; rendered to argv, never to a string."""

from __future__ import annotations

from recipe_core.engines import transformers, vllm
from recipe_core.engines.deployment import Deployment, Launch
from recipe_core.errors import NoAnswer

_BUILDERS = {"vllm": vllm.launch, "transformers": transformers.launch}


def launch(deployment: Deployment) -> Launch:
    """The processes of a deployment.

    Raises:
        NoAnswer: when the engine cannot be started this way: several nodes, weights the checkpoint does not hold,
            a cache dtype it cannot be told.
    """
    setting, candidate = deployment.setting, deployment.candidate
    engine, cluster = setting.engine, setting.cluster
    if not engine.buildable:
        raise NoAnswer(f"{engine.title} can be estimated but not built by this version.", field="candidate.engine", hint="Use vllm.")
    if candidate.devices > cluster.per_node:
        raise NoAnswer(
            f"the split uses {candidate.devices} devices and a node has {cluster.per_node}; bundles start on one node in this version.",
            field="candidate",
            hint=f"Choose a split of at most {cluster.per_node} devices and start one bundle a node.",
        )
    stored = setting.model.weight_dtype
    halves = {"bf16", "fp16", "fp32"}
    if (
        setting.weight_dtype != stored
        and not {setting.weight_dtype, stored} <= halves
        and setting.weight_dtype not in engine.online_weight_dtypes
    ):
        raise NoAnswer(
            f"{setting.model.name} stores {stored} weights and {engine.title} does not turn them into {setting.weight_dtype} when loading.",
            field="candidate.weight_dtype",
            hint=f"Use a checkpoint quantised to {setting.weight_dtype}, or weight_dtype: auto.",
        )
    if setting.weight_dtype in engine.online_weight_dtypes and stored not in halves | {setting.weight_dtype}:
        raise NoAnswer(
            f"{setting.model.name} stores {stored} weights, which are not re-quantised to {setting.weight_dtype}.",
            field="candidate.weight_dtype",
            hint="Use weight_dtype: auto.",
        )
    return _BUILDERS[engine.name](deployment)


__all__ = ["Deployment", "Launch", "launch"]
