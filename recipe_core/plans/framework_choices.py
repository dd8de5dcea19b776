"""The frameworks that a training request can name, and what each of them cannot launch of it."""

from __future__ import annotations

from dataclasses import dataclass

from recipe_core.base.errors import RecipeError
from recipe_core.engines.frameworks import training_data
from recipe_core.plans.launch_rules import launch_lacks
from recipe_core.plans.problem import resolve_problem
from recipe_core.plans.training_candidates import training_setting
from recipe_core.request.schema import PlanRequest


@dataclass(frozen=True, slots=True)
class FrameworkChoice:
    """A framework, or (with an empty name) whichever is the default of the request.

    ``cannot``: what of the request it cannot launch, as a phrase; empty where it can launch all.
    """

    name: str
    title: str
    cannot: str = ""

    @property
    def label(self) -> str:
        """``torchtitan (cannot launch LoRA)``."""
        return f"{self.title} (cannot launch {self.cannot})" if self.cannot else self.title


def framework_choices(request: PlanRequest, *, folders: bool = True) -> list[FrameworkChoice]:
    """The default first, then every framework."""
    frameworks = training_data().frameworks
    try:
        problem = resolve_problem(request, folders=folders)
    except RecipeError:  # said elsewhere; without a model nothing is known of any of them
        plain = [FrameworkChoice(name, frameworks[name].title) for name in frameworks]
        return [FrameworkChoice("", "Automatic"), *plain]
    candidate, workload = problem.candidate, problem.workload
    usual = training_setting(problem, None, candidate.precision, problem.cluster)
    out = [FrameworkChoice("", f"Automatic: {usual.framework.title}")]
    for name in frameworks:
        built = training_setting(problem, name, candidate.precision, problem.cluster)
        lacks = launch_lacks(built, candidate.offload or "none", bool(workload.fused_loss))
        whats = [lack.phrase.split(",")[0] for lack in lacks]
        out.append(FrameworkChoice(name, frameworks[name].title, " and ".join(whats)))
    return out
