"""A request with its names looked up.

What its kind of workload does not have is refused by name.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Generic, TypeVar

from recipe_core.base.documents import parse_json, to_json
from recipe_core.base.errors import HardwareError, InputError, ModelError
from recipe_core.estimates.columns.corrections import Corrections
from recipe_core.estimates.columns.scopes import standing_corrections
from recipe_core.hardware.cluster import Cluster, cluster
from recipe_core.hardware.nodes import cluster_beside
from recipe_core.hardware.request import HardwareRequest
from recipe_core.models.catalog import load_model_spec
from recipe_core.models.spec import ModelSpec
from recipe_core.models.towers import PARTS, Modality
from recipe_core.request.candidate import CandidateRequest, ServingCandidate, TrainingCandidate
from recipe_core.request.metrics import goals_of, kind_limits, run_limits
from recipe_core.request.objective import Limits, Objective
from recipe_core.request.schema import Options, PlanRequest
from recipe_core.request.serving_workload import ServingWorkload, Speculative
from recipe_core.request.training_workload import TrainingWorkload

# The largest cluster that is planned, by kind: serving enumerates every product of degrees,
# training divisors only.
MAX_DEVICES = {"serving": 4096, "training": 65_536}

# Options that training has too: what its search may vary, and how a run is kept running.
TRAINING_OPTIONS = frozenset({"engines", "hardware", "nodes", "supervision"})

W = TypeVar("W", ServingWorkload, TrainingWorkload)


@dataclass(frozen=True, slots=True)
class Problem(Generic[W]):
    """A request with its names looked up. The first of ``clusters`` is the request's own.

    ``corrections``: what runs of one's own teach; None without any. ``assumed``: whether number
    formats are taken as given (``Setting.assumed``). ``on_one_machine``: whether a search
    of serving leaves out servers that span machines.
    """

    request: PlanRequest
    workload: W
    model: ModelSpec
    clusters: tuple[Cluster, ...]
    corrections: Corrections | None = None
    assumed: bool = False
    on_one_machine: bool = False

    @property
    def cluster(self) -> Cluster:
        return self.clusters[0]

    @property
    def candidate(self) -> CandidateRequest:
        """Return what the request states of the split; nothing where it has no candidate."""
        return self.request.candidate or CandidateRequest()


ServingProblem = Problem[ServingWorkload]
TrainingProblem = Problem[TrainingWorkload]


def resolve_problem(
    request: PlanRequest, *, folders: bool = True, corrections: Corrections | None = None
) -> Problem[Any]:
    """Look up model, devices and links; estimates are made with ``corrections``.

    Without any, with those that hold by default (``standing_corrections``).

    Raises:
        InputError: for unknown names, for fields that the kind of workload does not have, and for
            what the schema has but this version does not model.
    """
    refuse_other_kind(request)
    own_corrections, corrections = corrections, corrections or standing_corrections()
    refuse_field(
        own_corrections is not None and own_corrections.given and request.is_training,
        "measured runs correct estimates of serving, not of training.",
        "measured",
        "Leave them out, or ask for a serving workload.",
    )
    model = _requested_model(request, folders)
    request, model = _apply_task(request, model)
    first = _requested_cluster(request, request.hardware, 0)
    alternatives = [cluster_beside(hardware, first) for hardware in request.options.hardware]
    rest = [_requested_cluster(request, hardware, k) for k, hardware in enumerate(alternatives, 1)]
    clusters = (first, *rest)
    workload = request.workload
    if isinstance(workload, TrainingWorkload):
        run = Problem(request, workload, model, clusters)
        _check_positions(run)
        _check_budget(run)
        return run
    _check_media(workload, model)
    model = model.serving(workload.modalities)
    service = Problem(request, workload, model, clusters, corrections)
    _check_serving(service)
    return service


def refuse_field(
    is_wrong: object, message: str, field: str, hint: str | None = "Leave it out."
) -> None:
    """Raise InputError about a field where something is wrong with it."""
    if is_wrong:
        raise InputError(message, field=field, hint=hint)


def _requested_cluster(request: PlanRequest, hardware: HardwareRequest, k: int) -> Cluster:
    """The cluster of the request (the first) or of its options.

    Errors name the field it stands in.
    """
    field = f"options.hardware.{k - 1}" if k else "hardware"
    largest = MAX_DEVICES[request.workload.kind]
    refuse_field(
        hardware.devices > largest,
        f"per_node × nodes = {hardware.devices:,}; at most {largest:,} devices are planned.",
        f"{field}.nodes",
        None,
    )
    try:
        return cluster(hardware)
    except HardwareError as error:
        where = (error.field or "hardware").replace("hardware", field, 1)
        raise HardwareError(error.message, field=where, hint=error.hint) from None


def _requested_model(request: PlanRequest, folders: bool) -> ModelSpec:
    if isinstance(request.model, str):
        return load_model_spec(request.model, folders=folders)
    return _inline_model(to_json(request.model, indent=None))


def _apply_task(request: PlanRequest, model: ModelSpec) -> tuple[PlanRequest, ModelSpec]:
    """Request and model as the task has them: stated, or what the model is made for.

    Raises:
        InputError: for a text of a model that makes none, and for training an encoder.
    """
    workload = request.workload
    if isinstance(workload, TrainingWorkload):
        refuse_field(
            model.is_encoder,
            f"{model.name} is an encoder; training of encoders is not modelled.",
            "model",
            "Choose a decoder-only model.",
        )
        return request, model
    task = workload.task or model.task
    if task == "generate":
        refuse_field(
            model.is_encoder,
            f"{model.name} is an encoder and generates no text.",
            "workload.task",
            "Set it to embed or score, or leave it out.",
        )
        return request, model
    workload = workload.as_task(task)
    return request.model_copy(update={"workload": workload}), model.pooled(task)


@lru_cache(maxsize=1024)
def _inline_model(config: str) -> ModelSpec:
    """A model given as a config; the lines of a file repeat few of them."""
    try:
        values = parse_json(config, "the config")
    except InputError as error:
        raise ModelError(error.message, field="model", hint=error.hint) from None
    return load_model_spec(values)


# What the other kind has


def _fields_lacking(kind: type[Any], other_kind: type[Any]) -> tuple[str, ...]:
    return tuple(name for name in kind.model_fields if name not in other_kind.model_fields)


SERVING_FIELDS = _fields_lacking(ServingCandidate, TrainingCandidate)
TRAINING_FIELDS = _fields_lacking(TrainingCandidate, ServingCandidate)


def refuse_other_kind(request: PlanRequest) -> None:
    """Raise InputError for the first field that only the other kind of workload has."""
    candidate, training = request.candidate or CandidateRequest(), request.is_training
    foreign, kinds = SERVING_FIELDS, "serving, not to training"
    if not training:
        foreign, kinds = TRAINING_FIELDS, "training, not to serving"
    for name in foreign:
        has_value = getattr(candidate, name) is not None
        refuse_field(has_value, f"belongs to {kinds}.", f"candidate.{name}")
    for field, hint in _serving_only_fields(request) if training else _foreign_limits(request):
        refuse_field(True, f"belongs to {kinds}.", field, hint)


def _serving_only_fields(request: PlanRequest) -> Iterator[tuple[str, str]]:
    """Fields of a training request that only serving has, each with the fix."""
    objective, options = request.objective, request.options
    goals = "Use " + ", ".join(goals_of("training")) + "."
    if objective.orientation is not None:
        yield "objective.orientation", "Leave it out, or use weights."
    if not objective.weights and objective.optimize not in goals_of("training"):
        yield "objective.optimize", goals
    for goal in objective.weights:
        if goal not in goals_of("training"):
            yield f"objective.weights.{goal}", goals
    if objective.accuracy_of != Objective.model_fields["accuracy_of"].default:
        yield "objective.accuracy_of", "Leave it out."
    yield from _foreign_limits(request)
    for name, field in Options.model_fields.items():
        if name not in TRAINING_OPTIONS and getattr(options, name) != field.get_default():
            yield f"options.{name}", "Leave it out."
    if options.supervision.min_available is not None:
        yield "options.supervision.min_available", "Leave it out: a run has no replicas."


def _foreign_limits(request: PlanRequest) -> Iterator[tuple[str, str]]:
    """Limits that the kind of workload does not have, each with those that it has."""
    kind, limits = request.workload.kind, request.objective.limits
    available = [*kind_limits(getattr(request.workload, "mode", "training"))]
    if kind == "serving":
        available.append("percentile")  # of the times
    for name in Limits.model_fields:
        if getattr(limits, name) is not None and name not in available:
            if kind == "serving" and name in run_limits():
                yield f"objective.limits.{name}", "Serving has it with workload.mode: offline."
                continue
            yield (
                f"objective.limits.{name}",
                f"{kind.title()} has limits on {', '.join(available)}.",
            )


# What fits neither the model nor this version


def _check_positions(problem: TrainingProblem) -> None:
    workload, model = problem.workload, problem.model
    lengths = {"workload.sequence_length": workload.sequence_length}
    for k, phase in enumerate(workload.phases or ()):
        lengths[f"workload.phases.{k}.sequence_length"] = phase.sequence_length or 0
    for field, length in lengths.items():
        refuse_field(
            length > model.max_context,
            f"{length:,} tokens exceed the {model.max_context:,} positions of {model.name}.",
            field,
            "Shorten sequences, or give a config with rope scaling.",
        )


def _check_budget(problem: TrainingProblem) -> None:
    """Raise for a limit on a whole run that has no end."""
    for name in run_limits():
        has_limit = getattr(problem.request.objective.limits, name) is not None
        refuse_field(
            has_limit and problem.workload.tokens is None,
            "bounds a whole run, and workload.tokens does not say how long the run is.",
            f"objective.limits.{name}",
            "State workload.tokens, or leave the limit out.",
        )


def _check_media(workload: ServingWorkload, model: ModelSpec) -> None:
    """Raise for images or sound of a model, or an engine, that reads none."""
    inputs: tuple[tuple[str, Modality, object], ...] = (
        ("images", "image", workload.images),
        ("audio", "audio", workload.audio),
    )
    for field, modality, part in inputs:
        if part is None:
            continue
        refuse_field(
            model.tower(modality) is None,
            f"{model.name} has no {PARTS[modality]} that is known.",
            f"workload.{field}",
            "Leave it out, or choose a model that reads it.",
        )
        refuse_field(
            workload.modalities is not None and modality not in workload.modalities,
            f"contradicts workload.modalities, which leaves {modality} out.",
            f"workload.{field}",
            "Leave one of them out.",
        )


def _check_serving(problem: ServingProblem) -> None:
    request, workload = problem.request, problem.workload
    if workload.pooled:
        _check_pooled(problem)
    check_draft(problem, workload.speculative, "workload.speculative")
    for k, draft in enumerate(request.options.speculative):
        check_draft(problem, draft, f"options.speculative.{k}")
    if request.options.disaggregated:
        check_pools(problem, "options.disaggregated")
    refuse_field(
        workload.mode != "open" and any(load != int(load) for load in request.options.loads),
        f"mode {workload.mode} counts whole requests.",
        "options.loads",
        "Give whole numbers.",
    )


def _check_pooled(problem: ServingProblem) -> None:
    """Raise for what requests without output tokens do not have."""
    request, workload = problem.request, problem.workload
    objective, options = request.objective, request.options
    absent = {
        "objective.limits.tpot_ms": objective.limits.tpot_ms is not None,
        "objective.optimize": "tpot" in objective.goals,
        "options.speculative": bool(options.speculative),
        "options.disaggregated": options.disaggregated,
        "candidate.prefill": problem.candidate.prefill is not None,
        "candidate.speculative": problem.candidate.speculative is not None,
    }
    for field, is_stated in absent.items():
        refuse_field(
            is_stated, f"task {workload.task} has no output tokens after the first.", field
        )
    refuse_field(
        (workload.prefix_hit or workload.prefix_reuse) and problem.model.is_encoder,
        f"{problem.model.name} is an encoder, which caches no prefix.",
        "workload.prefix_hit" if workload.prefix_hit else "workload.prefix_reuse",
    )
    _check_means(objective, "embeddings and scores")


def check_draft(problem: ServingProblem, draft: Speculative | None, field: str) -> None:
    """Raise for a draft that the model does not have, and for percentiles of steps with drafts.

    Tokens of such a step are known on average only.
    """
    if draft is None:
        return
    refuse_field(
        draft.method == "mtp" and not problem.model.draft_layers,
        f"{problem.model.name} has no draft layers.",
        f"{field}.method",
        "Use eagle or ngram.",
    )
    _check_means(problem.request.objective, "speculative decoding")


def check_candidate(problem: ServingProblem, candidate: CandidateRequest) -> None:
    """Raise for a stated split that this version does not model, or that contradicts itself."""
    refuse_field(
        candidate.eager, "eager execution is not modelled by this version.", "candidate.eager"
    )
    refuse_field(
        candidate.engine_version is not None and None in (candidate.tp, candidate.pp, candidate.dp),
        "goes with a layout stated in full.",
        "candidate.engine_version",
        "State TP, PP and DP too, or leave it out.",
    )
    check_draft(problem, candidate.speculative, "candidate.speculative")
    if candidate.prefill is not None:
        check_pools(problem, "candidate.prefill")
        return
    refuse_field(
        candidate.replicas is not None,
        "goes with a prefill pool.",
        "candidate.replicas",
        "Use DP, or add candidate.prefill.",
    )


def check_pools(problem: ServingProblem, field: str) -> None:
    """Raise for what a prefill pool of its own does not go with."""
    refuse_field(
        problem.workload.mode == "static",
        "a static batch is not served by two pools.",
        field,
        "Leave it out or change the mode.",
    )
    _check_means(problem.request.objective, "disaggregated pools")


def _check_means(objective: Objective, subject: str) -> None:
    refuse_field(
        objective.limits.percentile is not None,
        f"percentiles of {subject} are not simulated by this version.",
        "objective.limits.percentile",
    )
