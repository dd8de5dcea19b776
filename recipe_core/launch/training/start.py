"""How a training split is started: processes, their options, the files they read."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from recipe_core.base.errors import NoAnswer
from recipe_core.launch.process import Launch
from recipe_core.launch.training import accelerate, deepspeed, embedded, megatron, torchtitan
from recipe_core.launch.training.job import Job, Unsupported, common, job_of
from recipe_core.physics.training.estimates import TrainingEstimates

_ENGINES: dict[str, tuple[Callable[[Job], Iterator[Unsupported]], Callable[[Job], Launch]]] = {
    "torch": (embedded.refusals, embedded.launch),
    "torchtitan": (torchtitan.refusals, torchtitan.launch),
    "deepspeed": (deepspeed.refusals, deepspeed.launch),
    "accelerate": (accelerate.refusals, accelerate.launch),
    "megatron": (megatron.refusals, megatron.launch),
}


def training_launch(estimates: TrainingEstimates, row: int) -> Launch:
    """The processes of an estimated split: every degree, batch and policy as it was estimated.

    Raises:
        NoAnswer: when the framework cannot be told one of them; names the first and a change.
    """
    job = job_of(estimates, row)
    if (refusal := next(_refused(job), None)) is not None:
        raise NoAnswer(refusal.reason, field=refusal.field, hint=refusal.hint)
    return _ENGINES[job.setting.engine][1](job)


def launch_reasons(estimates: TrainingEstimates, row: int) -> list[str]:
    """Why a split that was estimated cannot be started; empty where it can."""
    return [refusal.reason for refusal in _refused(job_of(estimates, row))]


def _refused(job: Job) -> Iterator[Unsupported]:
    """Refusals in order: those that all frameworks share first, since the others build on them."""
    for rules in (common, _ENGINES[job.setting.engine][0]):
        yield from (rule for rule in rules(job) if rule.applies)
