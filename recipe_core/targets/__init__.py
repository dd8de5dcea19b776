"""Where a launch is started: one module a target, each a function from a Context to files.

``target_files`` has the files of every target that is offered, by path in the bundle; ``refusals``
says why the others are not. Nothing is started or asked. May import base, hardware, engines,
request, search, launch, commands and recipe.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from recipe_core.base.errors import NoAnswer
from recipe_core.recipe.place import Parameters
from recipe_core.targets import (
    autoscale,
    containers,
    kserve,
    kserve_llm,
    kubernetes,
    llm_d,
    ray_serve,
    skypilot,
    slurm,
    training,
)
from recipe_core.targets.context import Context, Image

Target = Callable[[Context], dict[str, str]]


def _monitoring(context: Context) -> dict[str, str]:
    from recipe_core.targets.monitoring.pack import (
        monitoring_files,
    )  # which finds pods by the names that targets give them

    return monitoring_files(context)


SERVING: Mapping[str, Target] = {
    "docker": containers.docker,
    "compose": containers.compose,
    "kubernetes": kubernetes.files,
    "kubernetes-keda": autoscale.keda,
    "kubernetes-hpa": autoscale.hpa,
    "kserve": kserve.files,
    "kserve-llm": kserve_llm.files,
    "llm-d": llm_d.files,
    "slurm": slurm.files,
    "skypilot": skypilot.files,
    "ray-serve": ray_serve.files,
    "monitoring": _monitoring,
}
TRAINING: Mapping[str, Target] = {
    "slurm": slurm.files,
    "kubeflow-trainjob": training.train_job,
    "kubeflow-pytorchjob": training.pytorch_job,
    "jobset": training.job_set,
    "volcano": training.volcano,
    "skypilot": skypilot.files,
}


def target_names(context: Context) -> list[str]:
    """Targets there are for the recipe's kind, whether offered or not."""
    return list(_targets(context))


def each_target(context: Context) -> dict[str, dict[str, str] | str]:
    """Every target's files by path, or the sentence that refuses it, by the target's name."""
    return {name: _try(target, context) for name, target in _targets(context).items()}


def target_files(context: Context) -> dict[str, str]:
    """Every file of the targets that are offered, by path in the bundle."""
    return {
        path: text
        for made in each_target(context).values()
        if isinstance(made, dict)
        for path, text in made.items()
    }


def refusals(context: Context) -> dict[str, str]:
    """Why the other targets are not offered, by name."""
    return {name: made for name, made in each_target(context).items() if isinstance(made, str)}


def _targets(context: Context) -> Mapping[str, Target]:
    return TRAINING if context.kind == "training" else SERVING


def _try(target: Target, context: Context) -> dict[str, str] | str:
    try:
        return target(context)
    except NoAnswer as error:
        return f"{error.message} {error.hint}" if error.hint else error.message


__all__ = [
    "Context",
    "Image",
    "Parameters",
    "each_target",
    "refusals",
    "target_files",
    "target_names",
]
