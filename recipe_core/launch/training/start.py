"""How a training split is started: processes, their options, the files they read.

Each framework has a module here, found by its name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from recipe_core.base.errors import NoAnswer
from recipe_core.engines.training_programs import training_engine
from recipe_core.estimates.training.estimates import TrainingEstimates
from recipe_core.launch.process import Launch, LaunchFolder
from recipe_core.launch.training.job import Job, Unsupported, run_refusals, training_job
from recipe_core.plans.launch_rules import (
    able_frameworks,
    framework_titles,
    launch_lacks,
    split_rules,
)

MODULES = LaunchFolder("recipe_core.launch.training", "launch", "(job: Job) -> Launch")


def training_launch(estimates: TrainingEstimates, row: int) -> Launch:
    """The processes of an estimated split: every degree, batch and policy as it was estimated.

    Raises:
        NoAnswer: when the framework cannot be told one of them, with the first reason and what to
            change; or when no module starts it.
    """
    job = training_job(estimates, row)
    launch_job = _launch_function(job)
    if (refusal := next(_launch_refusals(job, estimates, row), None)) is not None:
        raise NoAnswer(refusal.reason, field=refusal.field, hint=refusal.hint)
    started: Launch = launch_job(job)
    return started


def launch_reasons(estimates: TrainingEstimates, row: int) -> list[str]:
    """Why a split that was estimated cannot be started; empty where it can."""
    job = training_job(estimates, row)
    try:
        _launch_function(job)
    except NoAnswer as error:  # no module starts the framework
        return [error.message]
    return [refusal.reason for refusal in _launch_refusals(job, estimates, row)]


def _launch_refusals(job: Job, estimates: TrainingEstimates, row: int) -> Iterator[Unsupported]:
    """Refusals in order: what the run lacks, what its framework cannot launch, then the split."""
    yield from run_refusals(job)
    setting, cases = estimates.setting, estimates.cases.take([row])
    frameworks = able_frameworks(setting, job.offload, job.fused_loss)
    instead = f"Use {framework_titles(frameworks)}." if frameworks else ""
    for lack in launch_lacks(setting, job.offload, job.fused_loss):
        reason = f"{setting.framework.title} cannot launch {lack.phrase}."
        elsewhere = bool(frameworks) and not lack.hint
        field = "candidate.engine" if elsewhere else lack.field
        yield Unsupported(field, reason, lack.hint or instead)
    for rule in split_rules(setting, cases):
        if rule.broken[0]:
            yield Unsupported(rule.field, f"{rule.say(0)}.", rule.hint)


def _launch_function(job: Job) -> Callable[[Any], Any]:
    framework = job.setting.engine
    return MODULES.function(framework, training_engine(framework).launcher)
