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
    if setting.needs_other_checkpoint:
        stored = setting.model.weight_dtype
        raise NoAnswer(
            f"{setting.model.name} stores {stored} weights and {engine.title} does not load them as {setting.weight_dtype}.",
            field="candidate.weight_dtype",
            hint=f"Name a checkpoint that stores {setting.weight_dtype}, or use weight_dtype: auto.",
        )
    return _BUILDERS[engine.name](deployment)


__all__ = ["Deployment", "Launch", "launch"]
