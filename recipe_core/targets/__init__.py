"""Targets, where a launch runs: one module each, a function from a Context to files.

``target_files`` returns the files of every available target by path in the bundle,
``target_refusals`` why the others are unavailable. Nothing is started, nobody is contacted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from recipe_core.base.errors import NoAnswer
from recipe_core.recipe.place import Parameters
from recipe_core.request.scaling import Policy
from recipe_core.targets import (
    autoscale,
    compose,
    containers,
    dynamo_planner,
    kserve,
    kserve_llm,
    kubernetes,
    llm_d,
    monitoring,
    ray_serve,
    skypilot,
    slurm,
    systemd,
    training,
)
from recipe_core.targets.context import Context, Image

Target = Callable[[Context], dict[str, str]]


SERVING: Mapping[str, Target] = {
    "systemd": systemd.systemd_files,
    "docker": containers.docker_files,
    "compose": compose.compose_files,
    "kubernetes": kubernetes.kubernetes_files,
    "kubernetes-keda": autoscale.keda_files,
    "kubernetes-hpa": autoscale.hpa_files,
    "kserve": kserve.kserve_files,
    "kserve-llm": kserve_llm.kserve_llm_files,
    "llm-d": llm_d.llm_d_files,
    "slurm": slurm.slurm_files,
    "skypilot": skypilot.skypilot_files,
    "ray-serve": ray_serve.ray_serve_files,
    "monitoring": monitoring.monitoring_files,
}
# Targets that only recipes with a policy of scaling have.
OF_POLICIES: Mapping[Policy, Mapping[str, Target]] = {
    "kpa": {"knative": kserve.knative_files},
    "dynamo": {"dynamo-planner": dynamo_planner.dynamo_planner_files},
}
TRAINING: Mapping[str, Target] = {
    "slurm": slurm.slurm_files,
    "kubeflow-trainjob": training.train_job_files,
    "kubeflow-pytorchjob": training.pytorch_job_files,
    "jobset": training.job_set_files,
    "volcano": training.volcano_files,
    "skypilot": skypilot.skypilot_files,
}


MADE_FIRST = (
    "What it serves is made first: run `python launch.py compress` on a machine, put the folder "
    "where the target finds it, and set `model` in the deployment settings to that path."
)
UNKNOWN_WEIGHTS = "Where the weights of this model are is not known."
STATE_WEIGHTS = (
    "State them with the model (`weights`: an id of the hub, or an absolute path on the target "
    "machine), or set `model` in the deployment settings."
)


def target_names(context: Context) -> list[str]:
    return list(_recipe_targets(context))


def each_target(context: Context) -> dict[str, dict[str, str] | str]:
    """By target name: its files by path, or the sentence that says why it is unavailable."""
    return {name: _try_target(target, context) for name, target in _recipe_targets(context).items()}


def target_files(context: Context) -> dict[str, str]:
    """The files of every available target, by path in the bundle."""
    files: dict[str, str] = {}
    for result in each_target(context).values():
        if isinstance(result, dict):
            files |= result
    return files


def target_refusals(context: Context) -> dict[str, str]:
    """Say why each unavailable target is unavailable, by its name."""
    results = each_target(context).items()
    return {name: reason for name, reason in results if isinstance(reason, str)}


def _recipe_targets(context: Context) -> Mapping[str, Target]:
    if context.kind == "training":
        return TRAINING
    scaling = context.scaling
    return {**SERVING, **OF_POLICIES.get(scaling.policy, {})} if scaling else SERVING


def _try_target(target: Target, context: Context) -> dict[str, str] | str:
    if context.asks_for_weights and context.makes_checkpoint:
        return MADE_FIRST
    if context.asks_for_weights:
        return f"{UNKNOWN_WEIGHTS} {STATE_WEIGHTS}"
    try:
        return target(context)
    except NoAnswer as error:
        return f"{error.message} {error.hint}" if error.hint else error.message


__all__ = [
    "Context",
    "Image",
    "Parameters",
    "each_target",
    "target_files",
    "target_names",
    "target_refusals",
]
