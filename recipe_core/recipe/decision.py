"""A judged split of either kind, serving or training, with all that a recipe and its files are made from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from recipe_core.advice import remedies
from recipe_core.candidates import served_context
from recipe_core.engines.deployment import Candidate, Deployment, Launch
from recipe_core.engines.launch import launch
from recipe_core.errors import NoAnswer
from recipe_core.hardware.catalog import Cluster
from recipe_core.model.spec import ModelSpec
from recipe_core.plan import PlanTable, chosen_plan
from recipe_core.recipe.names import short_name
from recipe_core.request import CandidateRequest, PlanRequest
from recipe_core.training.engines.facts import training_engine
from recipe_core.training.launch import first_launchable, training_launch
from recipe_core.training.plan import chosen_training, is_training, resolve_training
from recipe_core.training.table import TrainingTable


@dataclass(frozen=True, slots=True)
class Decision:
    """One split that can run. ``request`` is the row's own: on its hardware, under its load, with the split as candidate.

    ``started`` renders the launch, which raises NoAnswer where the engine cannot be started this way. ``table`` is what the split was
    chosen from (None: a training split). ``gpus``: devices used.
    """

    request: PlanRequest
    model: ModelSpec
    cluster: Cluster
    engine: str
    title: str
    version: str
    install: str
    candidate: dict[str, Any]
    estimate: dict[str, Any]
    gpus: int
    max_context: int | None
    started: Callable[[], Launch]
    table: PlanTable | None = None


def decide(request: PlanRequest, *, folders: bool = True) -> Decision:
    """The request's candidate, or the best split when it leaves that open.

    Raises:
        InputError: for a request that cannot be read.
        NoAnswer: when no split, or not the stated one, can run; the message has the reasons and the nearest change.
    """
    return _training(request, folders) if is_training(request) else _serving(request, folders)


def _serving(request: PlanRequest, folders: bool) -> Decision:
    table, row = chosen_plan(request, folders=folders)
    if not table.columns["feasible"][row]:
        raise _refused(table, row)
    if len(table) > 1:  # the row alone: on its own hardware, under its own load
        request = table.asked(row)
        table, row = chosen_plan(request, folders=folders)
    deployment = deployment_of(table, row)
    setting = deployment.setting
    return Decision(
        request=request,
        model=table.found.model,
        cluster=setting.cluster,
        engine=setting.engine.name,
        title=setting.engine.title,
        version=setting.engine.version,
        install=setting.engine.install,
        candidate=table.candidate(row),
        estimate=table.estimate(row),
        gpus=int(table.columns["gpus"][row]),
        max_context=deployment.max_context,
        started=lambda: launch(deployment),
        table=table,
    )


def _training(request: PlanRequest, folders: bool) -> Decision:
    asked = resolve_training(request, folders=folders)
    estimates, row = chosen_training(request, folders=folders)
    table = TrainingTable(asked, estimates)
    if len(table) > 1 and (startable := first_launchable(table)) is not None:  # the best that its framework can be told
        row = startable
    candidate = estimates.candidate(row)
    if not table.columns["feasible"][row]:
        which = "the stated split" if len(table) == 1 else f"none of {len(table)} splits can run; the nearest"
        raise NoAnswer(f"{which} cannot run: {'; '.join(table.reasons(row))}.", field="candidate")
    framework = training_engine(estimates.setting.engine)
    return Decision(
        request=request.model_copy(update={"candidate": CandidateRequest.model_validate(candidate)}),
        model=asked.model,
        cluster=asked.cluster,
        engine=estimates.setting.engine,
        title=estimates.setting.framework.title,
        version=framework.version,
        install=framework.install,
        candidate=candidate,
        estimate=estimates.row(row),
        gpus=int(table.columns["gpus"][row]),
        max_context=None,
        started=lambda: training_launch(estimates, row),
    )


def deployment_of(table: PlanTable, row: int) -> Deployment:
    """A row of a plan as an engine module takes it."""
    return Deployment(
        setting=table.setting(row),
        candidate=Candidate(**{f.name: value for f in fields(Candidate) if (value := table.candidate(row).get(f.name)) is not None}),
        max_context=served_context(table.found.workload, table.found.model),
        cache_tokens=table.cache_tokens(row),
        served_name=short_name(table.found.model.name),
        engine_options=table.request.options.engine_options,
        environment=table.request.options.environment,
    )


def _refused(table: PlanTable, row: int) -> NoAnswer:
    which = "the stated split" if len(table) == 1 else f"none of {len(table)} splits"
    verb = "cannot run" if len(table) == 1 else "can run; the nearest"
    split = table.candidate(row)
    shown = f"tp {split['tp']} × pp {split['pp']} × dp {split['dp']}, {split['weight_dtype']} weights"
    return NoAnswer(f"{which} {verb} ({shown}): {'; '.join(table.reasons(row))}.", field="candidate", hint=advice(table))


def advice(table: PlanTable) -> str | None:
    """The changes after which something fits, as a sentence."""
    found = remedies(table)
    return f"It works with {'; or '.join(map(str, found))}." if found else None
