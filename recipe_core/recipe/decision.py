"""A judged split of either kind, serving or training, with all that a recipe and its files are made from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from recipe_core.base.errors import InputError, NoAnswer
from recipe_core.engines.release import ContainerImage
from recipe_core.engines.training_programs import training_engine
from recipe_core.hardware.cluster import Cluster
from recipe_core.launch.process import Candidate, Deployment, Launch
from recipe_core.launch.serving.start import launch
from recipe_core.launch.training.start import launch_reasons, training_launch
from recipe_core.model.spec import ModelSpec
from recipe_core.recipe.user_options import passed_options
from recipe_core.request.describe import short_name
from recipe_core.request.schema import CandidateRequest, PlanRequest
from recipe_core.search.advice import remedies
from recipe_core.search.serving_candidates import served_context
from recipe_core.search.serving_plan import PlanTable, chosen_plan
from recipe_core.search.training_plan import TrainingTable
from recipe_core.search.training_problem import resolve_training
from recipe_core.search.training_search import chosen_training

TRIED = 256
"""Splits, best first, of which one is taken that can be started: a training framework can be told, or an engine of a fallback."""


@dataclass(frozen=True, slots=True)
class Decision:
    """One split that can run. ``request`` is the row's own: on its hardware, under its load, with the split as candidate.

    ``started`` renders the launch, which raises NoAnswer where the engine cannot be started this way. ``deployment``: what it is rendered
    from; None for training. ``image`` and ``floors``: the container that holds the engine, and the host software that it needs. ``gpus``:
    devices used.
    """

    request: PlanRequest
    model: ModelSpec
    cluster: Cluster
    engine: str
    title: str
    version: str
    module: str
    install: str
    candidate: dict[str, Any]
    estimate: dict[str, Any]
    gpus: int
    max_context: int | None
    started: Callable[[], Launch]
    deployment: Deployment | None = None
    image: ContainerImage | None = None
    floors: Mapping[str, str] = field(default_factory=dict)


def decide(request: PlanRequest, *, folders: bool = True) -> Decision:
    """The request's candidate, or the best split when it leaves that open.

    Raises:
        InputError: for a request that cannot be read.
        NoAnswer: when no split, or not the stated one, can run; the message has the reasons and the nearest change.
    """
    return _training(request, folders) if request.is_training else _serving(request, folders)


def _serving(request: PlanRequest, folders: bool) -> Decision:
    table, row = chosen_plan(request, folders=folders)
    if not table.columns["feasible"][row]:
        raise _refused(table, row)
    if (
        len(table) > 1
    ):  # the best of what this checkpoint holds; the best of all where there is none, whose launch says why
        row = next(
            (
                each
                for each in map(int, table.ranked)
                if not table.setting(each).needs_other_checkpoint
            ),
            row,
        )
    if len(table) > 1:  # the row alone: on its own hardware, under its own load
        request = table.asked(row)
        table, row = chosen_plan(request, folders=folders)
    deployment = deployment_of(table, row)
    request = request.model_copy(
        update={
            "options": request.options.model_copy(
                update={"engine_options": deployment.engine_options}
            )
        }
    )
    setting = deployment.setting
    device = setting.cluster.device
    floor = setting.engine.floors.get(device.runtime)
    return Decision(
        request=request,
        model=table.found.model,
        cluster=setting.cluster,
        engine=setting.engine.name,
        title=setting.engine.title,
        version=setting.engine.version,
        module=setting.engine.module,
        install=setting.engine.install,
        image=setting.engine.image(device.runtime, device.architecture),
        floors={floor.what: floor.version} if floor else {},
        deployment=deployment,
        candidate=table.candidate(row),
        estimate=table.estimate(row),
        gpus=int(table.columns["gpus"][row]),
        max_context=deployment.max_context,
        started=lambda: launch(deployment),
    )


def _training(request: PlanRequest, folders: bool) -> Decision:
    for name in ("engine_options", "environment"):
        if getattr(request.options, name):
            raise InputError(
                "is passed on to serving engines; a training run takes none.",
                field=f"options.{name}",
                hint="Leave it out.",
            )
    asked = resolve_training(request, folders=folders)
    estimates, row = chosen_training(request, folders=folders)
    table = TrainingTable(asked, estimates)
    if not table.columns["feasible"][row]:
        which = (
            "the stated split"
            if len(table) == 1
            else f"none of {len(table)} splits can run; the nearest"
        )
        raise NoAnswer(f"{which} cannot run: {'; '.join(table.reasons(row))}.", field="candidate")
    if (
        len(table) > 1
    ):  # the best that the framework can be told; the best of all where there is none, whose launch says why
        row = next(
            (
                each
                for each in map(int, table.ranked[:TRIED])
                if not launch_reasons(estimates, each)
            ),
            row,
        )
    program, candidate = training_engine(estimates.setting.engine), estimates.candidate(row)
    return Decision(
        request=request.model_copy(
            update={"candidate": CandidateRequest.model_validate(candidate)}
        ),
        model=asked.model,
        cluster=asked.cluster,
        engine=estimates.setting.engine,
        title=estimates.setting.framework.title,
        version=program.version,
        module=program.module,
        install=program.install,
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
        candidate=Candidate(
            **{
                f.name: value
                for f in fields(Candidate)
                if (value := table.candidate(row).get(f.name)) is not None
            }
        ),
        max_context=served_context(table.found.workload, table.found.model),
        cache_tokens=table.cache_tokens(row),
        served_name=short_name(table.found.model.name),
        engine_options=passed_options(table.request, table.setting(row).engine),
        environment=table.request.options.environment,
    )


def _refused(table: PlanTable, row: int) -> NoAnswer:
    which = "the stated split" if len(table) == 1 else f"none of {len(table)} splits"
    verb = "cannot run" if len(table) == 1 else "can run; the nearest"
    split = table.candidate(row)
    shown = (
        f"tp {split['tp']} × pp {split['pp']} × dp {split['dp']}, {split['weight_dtype']} weights"
    )
    return NoAnswer(
        f"{which} {verb} ({shown}): {'; '.join(table.reasons(row))}.",
        field="candidate",
        hint=advice(table),
    )


def advice(table: PlanTable) -> str | None:
    """The changes after which something fits, as a sentence."""
    found = remedies(table)
    return f"It works with {'; or '.join(map(str, found))}." if found else None
