"""From a request to one split that can run, and to what its engine is started with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from recipe_core.base.errors import NoAnswer, RecipeError
from recipe_core.compression.required import can_start, required_compression, row_estimate_json
from recipe_core.engines.release import ContainerImage
from recipe_core.engines.training_programs import install_on, training_engine
from recipe_core.hardware.cluster import Cluster
from recipe_core.launch.process import Candidate, Deployment, Launch
from recipe_core.launch.start import launch_deployment, launch_reasons, training_launch
from recipe_core.models.spec import ModelSpec
from recipe_core.plans.admission import admit_row
from recipe_core.plans.limits import LIMITS
from recipe_core.plans.plan import Plan
from recipe_core.plans.plan_json import split_label
from recipe_core.plans.plans import plan_candidate
from recipe_core.plans.remedies import advice_text
from recipe_core.plans.replicas import one_replica, replicas_of
from recipe_core.plans.serving_kind import count_cache_tokens
from recipe_core.plans.serving_settings import served_context
from recipe_core.plans.splits import Split, broken_rules, row_estimates, row_reasons, row_request
from recipe_core.recipe.options import passed_options
from recipe_core.request.describe import model_short_name
from recipe_core.request.schema import PlanRequest

# Splits, best first, of which one is looked for that its engine or framework can start.
TRIED = 256


# Rules about how fast a split is.
SPEED = frozenset({"rate", "confidence", *LIMITS})


@dataclass(frozen=True, slots=True)
class Decision:
    """One layout that can run.

    ``request`` is the row's own: on its hardware, under its load, with the layout as candidate.
    ``started`` renders the launch, which raises NoAnswer where the engine cannot be started this
    way. ``deployment``: what it is rendered from; None for training. ``image`` and ``floors``: the
    container that holds the engine, and the host software that it needs. ``gpus``: devices used.
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


def decide(request: PlanRequest, *, folders: bool = True, fast_enough: bool = False) -> Decision:
    """The request's candidate, or the best split when it leaves that open.

    Of a request with a policy of scaling one replica of it, under its share of the load: it is what
    the policy counts, and what its pods are.

    ``fast_enough``: that a stated split keeps its limits and serves its load is known already.

    Raises:
        InputError: for a request that cannot be read.
        NoAnswer: when no split, or not the stated one, can run; the message has the reasons and the
            nearest change.
    """
    plan, row = plan_candidate(request, folders=folders)
    if not plan.feasible[row] and not (fast_enough and broken_rules(plan, row) <= SPEED):
        raise _plan_refusal(plan, row)
    if _scales(request) and replicas_of(plan, row).count > 1:
        plan, row = one_replica(plan, row if len(plan) == 1 else _startable(plan, row))
        if not plan.feasible[row] and not (fast_enough and broken_rules(plan, row) <= SPEED):
            raise _plan_refusal(plan, row)
        return decision_of(plan, row)
    if len(plan) == 1:  # the request states the split already, in its own words
        if plan.request.load_searched:  # what is built holds the load that it was judged under
            request = request.model_copy(update={"workload": row_request(plan, row).workload})
        plan, row = admit_row(plan, row)
        return _DECISIONS[plan.kind](plan, row, request)
    return decision_of(plan, _startable(plan, row))


def decide_split(split: Split) -> Decision:
    """A split of a plan, of which nothing is searched again.

    Raises:
        NoAnswer: when it is refused; the message has the reasons.
    """
    if not split.feasible:
        reasons = "; ".join(split.reasons)
        raise NoAnswer(f"the layout {split} cannot run: {reasons}.", field="candidate")
    return decision_of(split.plan, split.row)


def decision_of(plan: Plan, row: int) -> Decision:
    """Return what a recipe is made from, for a feasible row: one replica where it scales."""
    if _scales(plan.request):
        plan, row = one_replica(plan, row)
    plan, row = admit_row(plan, row)
    return _DECISIONS[plan.kind](plan, row, row_request(plan, row))


def _scales(request: PlanRequest) -> bool:
    return request.options.scaling is not None and not request.is_training


def _startable(plan: Plan, row: int) -> int:
    """The best row whose checkpoint exists; the best of all where there is none.

    A training plan refuses what its framework cannot be told, so its best row starts.
    """
    if plan.kind != "serving":
        return row
    rows = (i for i in map(int, plan.order) if can_start(plan.request, plan.setting(i)))
    return next(rows, row)


def _serving_decision(plan: Plan, row: int, request: PlanRequest) -> Decision:
    deployment = row_deployment(plan, row)
    options = request.options.model_copy(update={"engine_options": deployment.engine_options})
    setting = deployment.setting
    device, spec = setting.cluster.device, setting.engine
    floor = spec.floors.get(device.runtime)
    return Decision(
        request=request.model_copy(update={"options": options}),
        model=plan.problem.model,
        cluster=setting.cluster,
        engine=spec.name,
        title=spec.title,
        version=spec.version,
        module=spec.module,
        install=spec.install_on(device.runtime, device.architecture),
        image=spec.image(device.runtime, device.architecture),
        floors={floor.what: floor.version} if floor else {},
        deployment=deployment,
        candidate=plan.candidate(row),
        estimate=row_estimate_json(plan, row),
        gpus=int(plan.columns["gpus"][row]),
        max_context=deployment.max_context,
        started=lambda: launch_deployment(deployment),
    )


def _training_decision(plan: Plan, row: int, _request: PlanRequest) -> Decision:
    setting = plan.setting(row)
    program = training_engine(setting.engine)
    return Decision(
        request=row_request(plan, row),
        model=plan.problem.model,
        cluster=setting.cluster,
        engine=setting.engine,
        title=setting.framework.title,
        version=program.version,
        module=program.module,
        install=install_on(setting.engine, setting.cluster.device.runtime),
        candidate=plan.candidate(row),
        estimate=row_estimate_json(plan, row),
        gpus=int(plan.columns["gpus"][row]),
        max_context=None,
        started=lambda: training_launch(*row_estimates(plan, row)),
    )


_DECISIONS: dict[str, Callable[[Any, int, PlanRequest], Decision]] = {
    "serving": _serving_decision,
    "training": _training_decision,
}


def row_deployment(plan: Plan, row: int) -> Deployment:
    """A row of a plan as an engine module takes it.

    Raises:
        NoAnswer: for a row that is estimated at a release which bundles do not start.
    """
    candidate, problem, setting = plan.candidate(row), plan.problem, plan.setting(row)
    if setting.engine.as_of is not None:
        raise NoAnswer(
            f"bundles start {setting.engine.title} {setting.engine.version}, "
            f"not {setting.engine.as_of}.",
            field="candidate.engine_version",
            hint="Leave it out.",
        )
    return Deployment(
        setting=setting,
        candidate=Candidate.of(candidate),
        max_context=served_context(problem.workload, problem.model),
        cache_tokens=count_cache_tokens(plan, row),
        served_name=model_short_name(problem.model.name),
        engine_options=passed_options(plan.request, setting.engine),
        environment=plan.request.options.environment,
        compression=required_compression(plan.request, setting),
    )


def start_reasons(plan: Plan, row: int) -> list[str]:
    """Say why a feasible row cannot be started on its engine or framework; empty where it can."""
    if plan.kind == "training":
        return launch_reasons(*row_estimates(plan, row))
    try:
        launch_deployment(row_deployment(plan, row))
    except RecipeError as error:
        return [error.message]
    return []


def _plan_refusal(plan: Plan, row: int) -> NoAnswer:
    changes = plan.changes()
    subject = "the stated layout" if len(plan) == 1 else f"none of {len(plan)} layouts"
    verb = "cannot run" if len(plan) == 1 else "can run; the nearest"
    return NoAnswer(
        f"{subject} {verb} ({split_label(plan, row)}): {'; '.join(row_reasons(plan, row))}.",
        field="candidate",
        hint=advice_text(changes, plan.candidate(row)) if changes else None,
    )
