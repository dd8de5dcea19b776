"""The start of a serving split: processes, their options, and how to ask them.

Each engine has a module here, found by its name. Options are typed and rendered to argv, never to a
string.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from typing import Any

from recipe_core.base.data_files import DataFile
from recipe_core.base.errors import NoAnswer
from recipe_core.base.provenance import Quantity, Sourced
from recipe_core.base.resources import PACKAGE
from recipe_core.engines.training_programs import training_engine
from recipe_core.estimates.columns.serving import Setting, no_such_cache
from recipe_core.estimates.training.estimates import TrainingEstimates
from recipe_core.launch.process import Deployment, Launch, LaunchFolder
from recipe_core.launch.training.job import Job, Unsupported, run_refusals, training_job
from recipe_core.launch.user_options import check_environment
from recipe_core.models.tensors import MATRIX_ROLES, Quantization
from recipe_core.models.variants import stored_as
from recipe_core.plans.launch_rules import (
    able_frameworks,
    framework_titles,
    launch_lacks,
    split_rules,
)

FRAMEWORK_LAUNCHES = LaunchFolder("recipe_core.launch.training", "launch", "(job: Job) -> Launch")


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
    """Say why a split that was estimated cannot be started; empty where it can."""
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
    return FRAMEWORK_LAUNCHES.function(framework, training_engine(framework).launcher)


MEGABYTE = 1e6


class Rates(Sourced):
    """Rates at which weights come, in bytes per second."""

    fetch_bytes_per_s: Quantity
    read_bytes_per_s: Quantity


@cache
def startup_rates() -> Rates:
    """The rates that hold where none is stated."""
    return DataFile(PACKAGE / "launch" / "startup.yaml", "startup").read_as(Rates)


def names_folder(model: str) -> bool:
    return model.startswith(("/", "./", "../", "~"))


def limit_s(launch: Launch, weights_bytes: int, model: str, rate_mb_per_s: float | None) -> int:
    """Seconds that a start may take.

    Args:
        launch: what is started; one that reads no weights waits for none.
        weights_bytes: of the whole checkpoint.
        model: a folder or a hub's id.
        rate_mb_per_s: stated rate of the link to the hub or of the folder's storage, in 10^6 bytes
            per second; None where it is not known.
    """
    size = weights_bytes if launch.loads_model else 0
    return math.ceil(launch.startup_timeout_s + weights_s(size, model, rate_mb_per_s))


def weights_s(weights_bytes: int, model: str, rate_mb_per_s: float | None) -> float:
    """Seconds of ``limit_s`` in which the weights arrive and are read."""
    rates = startup_rates()
    rate = rate_mb_per_s * MEGABYTE if rate_mb_per_s else None
    if names_folder(model):
        return weights_bytes / (rate or rates.read_bytes_per_s.value)
    arrival = weights_bytes / (rate or rates.fetch_bytes_per_s.value)
    return arrival + weights_bytes / rates.read_bytes_per_s.value


ENGINE_LAUNCHES = LaunchFolder(
    "recipe_core.launch.serving", "launch", "(deployment: Deployment) -> Launch"
)


def launch_deployment(deployment: Deployment) -> Launch:
    """The processes of a deployment.

    Raises:
        NoAnswer: when the engine cannot be started this way: weights that the checkpoint does not
            hold, a cache dtype it cannot be told, groups that do not pack into nodes; or when no
            module starts the engine.
        InputError: for the user's own options and variables.
    """
    setting = with_made_checkpoint(deployment)
    engine = setting.engine
    if setting.needs_other_checkpoint:
        stored = setting.model.weight_dtype
        dtype = setting.weight_dtype
        message = f"{setting.model.name} stores {stored} weights, which {engine.title} cannot load"
        checkpoint = stored_as(setting.model.name, dtype)
        advice = f"Name {checkpoint}, which" if checkpoint else "Name a checkpoint that"
        hint = (
            f"{advice} stores {dtype}, have it made (options.compression), or use "
            "weight_dtype: auto."
        )
        raise NoAnswer(f"{message} as {dtype}.", field="candidate.weight_dtype", hint=hint)
    if not setting.cache_can_be_had:
        message = f"{no_such_cache(setting)}."
        raise NoAnswer(message, field="candidate.kv_dtype", hint="Use kv_dtype: auto.")
    launch_engine = ENGINE_LAUNCHES.function(engine.name, engine.launcher)
    environment = check_environment(deployment.environment)
    checked = replace(deployment, setting=setting, environment=environment)
    started: Launch = launch_engine(checked)
    return started


def with_made_checkpoint(deployment: Deployment) -> Setting:
    """The setting with the checkpoint that is made: stored in its format, as engines see it."""
    compression, setting = deployment.compression, deployment.setting
    if compression is None or compression.format == "gguf":
        return setting
    stored = Quantization(setting.weight_dtype, MATRIX_ROLES, scheme=compression.tool)
    return replace(setting, model=replace(setting.model, quantization=stored))


__all__ = ["Deployment", "Launch", "launch_deployment"]
