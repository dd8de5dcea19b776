"""How a training split is started: processes, their options, the files they read."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from recipe_core.base.errors import NoAnswer
from recipe_core.launch.process import Launch
from recipe_core.launch.training import accelerate, deepspeed, embedded, megatron, torchtitan
from recipe_core.launch.training.job import Job, No, common, job_of
from recipe_core.physics.training.estimates import TrainingEstimates

_ENGINES: dict[str, tuple[Callable[[Job], Iterator[No]], Callable[[Job], Launch]]] = {
    "torch": (embedded.refusals, embedded.launch),
    "torchtitan": (torchtitan.refusals, torchtitan.launch),
    "deepspeed": (deepspeed.refusals, deepspeed.launch),
    "accelerate": (accelerate.refusals, accelerate.launch),
    "megatron": (megatron.refusals, megatron.launch),
}


def training_launch(estimates: TrainingEstimates, row: int) -> Launch:
    """The processes of an estimated split: every degree, batch and policy as it was estimated.

    Raises:
        NoAnswer: when the framework cannot be told one of them; the first reason and what to change.
    """
    job = job_of(estimates, row)
    if (no := next(_refused(job), None)) is not None:
        raise NoAnswer(no.reason, field=no.field, hint=no.hint)
    return _ENGINES[job.setting.engine][1](job)


def launch_reasons(estimates: TrainingEstimates, row: int) -> list[str]:
    """Why a split that was estimated cannot be started; empty where it can."""
    return [no.reason for no in _refused(job_of(estimates, row))]


def _refused(job: Job) -> Iterator[No]:
    """Refusals one after another: what every framework shares first, since the others build on it."""
    return (
        no for rules in (common, _ENGINES[job.setting.engine][0]) for no in rules(job) if no.asked
    )
