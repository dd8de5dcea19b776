"""How a training split is started: processes, their options, the files they read.

Each framework has a module here, found by its name.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

from recipe_core.base.errors import NoAnswer
from recipe_core.engines.training_programs import training_engine
from recipe_core.launch.modules import LaunchFolder
from recipe_core.launch.process import Launch
from recipe_core.launch.training.job import Job, Unsupported, common, job_of
from recipe_core.physics.training.estimates import TrainingEstimates

MODULES = LaunchFolder(
    "recipe_core.launch.training",
    (("refusals", "(job: Job) -> Iterator[Unsupported]"), ("launch", "(job: Job) -> Launch")),
)


def training_launch(estimates: TrainingEstimates, row: int) -> Launch:
    """The processes of an estimated split: every degree, batch and policy as it was estimated.

    Raises:
        NoAnswer: when the framework cannot be told one of them, with the first reason and what to
            change; or when no module starts it.
    """
    job = job_of(estimates, row)
    if (refusal := next(_refused(job), None)) is not None:
        raise NoAnswer(refusal.reason, field=refusal.field, hint=refusal.hint)
    started: Launch = _module(job).launch(job)
    return started


def launch_reasons(estimates: TrainingEstimates, row: int) -> list[str]:
    """Why a split that was estimated cannot be started; empty where it can."""
    try:
        return [refusal.reason for refusal in _refused(job_of(estimates, row))]
    except NoAnswer as error:  # no module starts the framework
        return [error.message]


def _refused(job: Job) -> Iterator[Unsupported]:
    """Refusals in order: those that all frameworks share first, since the others build on them."""
    for rules in (common, _module(job).refusals):
        yield from (rule for rule in rules(job) if rule.applies)


def _module(job: Job) -> ModuleType:
    framework = job.setting.engine
    return MODULES.module(framework, training_engine(framework).launcher)
