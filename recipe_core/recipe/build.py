"""From a request to a recipe, and from a recipe back to a request and a launch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from recipe_core import __version__
from recipe_core.base.errors import InputError, NoAnswer
from recipe_core.estimates.columns.scopes import without_corrections
from recipe_core.hardware.cluster import device_profile, device_values
from recipe_core.hardware.request import HardwareRequest
from recipe_core.hardware.slices import starting_note
from recipe_core.launch.process import Launch
from recipe_core.models.catalog import in_catalog
from recipe_core.plans.serving_settings import served_context
from recipe_core.recipe.decision import Decision, decide
from recipe_core.recipe.fallbacks import fallbacks, without_load
from recipe_core.recipe.figures import Claim, claim_of, is_calibrated
from recipe_core.recipe.locking import image_digest, image_lock, make_lock
from recipe_core.recipe.options import provenance, shared_environment
from recipe_core.recipe.place import Parameters
from recipe_core.recipe.schema import DeviceFacts, EngineFacts, ModelFacts, Recipe, recipe_name
from recipe_core.recipe.secrets import refuse_secrets
from recipe_core.recipe.variants import Variant
from recipe_core.request.schema import PlanRequest
from recipe_core.request.serving_workload import ServingWorkload
from recipe_core.request.training_workload import TrainingWorkload
from recipe_core.scaling.summary import rented_replicas

SECONDS_PER_MINUTE = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Additions:
    """The additions to a recipe beside what its request leads to.

    ``parameters`` fill what differs between places. Options and variables of the engine are the
    request's (``options.engine_options``, ``options.environment``).
    """

    parameters: Parameters = field(default_factory=Parameters)
    variants: tuple[Variant, ...] = ()
    claims: tuple[Claim, ...] = ()


def make_recipe(
    request: PlanRequest, additions: Additions | None = None, *, folders: bool = True
) -> Recipe:
    """The recipe of a request: its candidate, or the best split when it leaves that open.

    Raises:
        InputError: for a request or an addition that cannot be read.
        NoAnswer: when no split, or not the stated one, can run; the message has the reasons and the
            nearest change.
    """
    request = whole_profiles(request)
    return recipe_of(decide(request, folders=folders), request, additions, folders=folders)


def recipe_of(
    decision: Decision,
    request: PlanRequest,
    additions: Additions | None = None,
    *,
    folders: bool = True,
) -> Recipe:
    """The recipe of a decision; ``request`` is what was asked before the split was chosen.

    Raises:
        InputError: for an addition that cannot be read.
        NoAnswer: when the split cannot be started on its engine.
    """
    additions = additions or Additions()
    limited = limited_request(decision.request, additions.parameters)
    if limited is not decision.request:
        decision = decide(limited, folders=folders)
    decision = replace(decision, request=whole_profiles(decision.request))
    started = decision.started()
    recipe = Recipe(
        kind=started.kind,
        name=recipe_name(decision.model.name, decision.cluster.device.name, decision.candidate),
        built_by=f"recipe-builder {__version__}",
        request=decision.request.to_json(),
        model=_model_facts(decision),
        device=decision_device_facts(decision),
        engine=EngineFacts(
            name=decision.engine,
            title=decision.title,
            version=decision.version,
            options=started.options,
        ),
        environment=shared_environment(started),
        candidate=decision.candidate,
        provenance=provenance(decision, started, request),
        max_context=decision.max_context,
        estimate=decision.estimate | _rented_scaling(decision),
        fallbacks=fallbacks(decision, request, folders=folders),
        variants=additions.variants,
        parameters=additions.parameters,
        claims=additions.claims,
        notes=(
            *decision.estimate["notes"],
            *_checkpoint_notes(decision),
            *_open_weights_notes(decision, started, additions.parameters),
            *((starting_note(part),) if (part := decision.cluster.device.slice_of) else ()),
        ),
    )
    _refuse_secrets(recipe)
    return recipe.model_copy(update={"lock": make_lock(decision, started, recipe, folders=folders)})


def _rented_scaling(decision: Decision) -> dict[str, Any]:
    """Return what the policy of scaling rents, beside the estimate of one replica."""
    if decision.request.options.scaling is None or decision.deployment is None:
        return {}
    rented = rented_replicas(decision.request, decision.cluster, decision.gpus)
    return {"scaling": rented.to_json()}


def _checkpoint_notes(decision: Decision) -> tuple[str, ...]:
    """That the bundle makes its checkpoint, and with what."""
    compression = decision.deployment.compression if decision.deployment else None
    if compression is None:
        return ()
    return (f"The bundle makes its checkpoint: python launch.py compress ({compression.title}).",)


def _open_weights_notes(decision: Decision, started: Launch, place: Parameters) -> tuple[str, ...]:
    """Say what a start will ask for: the weights of a model of which only the config is known."""
    if decision.model.weights or place.model or not started.loads_model:
        return ()
    return (
        f"Where the weights of {decision.model.name} are is not stated: start it with "
        "python launch.py up --model FOLDER_OR_ID, or state its weights with the model.",
    )


def whole_profiles(request: PlanRequest) -> PlanRequest:
    """The request with complete profiles of devices that are not shipped.

    A profile may build on a shipped one, whose figures may differ in another version.
    """
    clusters = tuple(map(_whole_profile, request.options.hardware))
    options = request.options.model_copy(update={"hardware": clusters})
    return request.model_copy(
        update={"hardware": _whole_profile(request.hardware), "options": options}
    )


def _whole_profile(hardware: HardwareRequest) -> HardwareRequest:
    if isinstance(hardware.device, str):
        return hardware
    return hardware.model_copy(update={"device": device_values(device_profile(hardware.device))})


def _refuse_secrets(recipe: Recipe) -> None:
    values = recipe.model_dump(mode="json")
    # Of these a name alone can tell a secret; of the others only the value can.
    by_name = {
        "options": values["engine"]["options"],
        "environment": values["environment"],
        "parameters": values["parameters"],
    }
    parts = ("name", "request", "model", "variants", "claims", "notes")
    by_value = {part: values[part] for part in parts}
    refuse_secrets({**by_name, **by_value}, by_name=tuple(by_name))


def with_claims(recipe: Recipe, measurements: Iterable[Mapping[str, Any]]) -> Recipe:
    """The recipe with a claim for each measurement.

    Raises:
        InputError: for one that is not a measurement, or of something else.
    """
    claims = tuple(claim_of(recipe, measurement) for measurement in measurements)
    return recipe.model_copy(update={"claims": (*recipe.claims, *claims)}).locked()


def with_parameters(recipe: Recipe, parameters: Parameters) -> Recipe:
    """The recipe for another place: the same decision, and nothing of it is computed again.

    But for the time limit of a training run, within which its checkpoints are planned.

    Raises:
        InputError: for an image that moves, and for a parameter that holds a secret.
        NoAnswer: for a time limit in which no checkpoint is written.
    """
    if parameters.time_limit_minutes != recipe.parameters.time_limit_minutes:
        recipe = _apply_time_limit(recipe, parameters)
    moved = recipe.model_copy(update={"parameters": parameters})
    if recipe.lock:
        image = image_lock(redecide(recipe), parameters)
        moved = moved.model_copy(update={"lock": recipe.lock.model_copy(update={"image": image})})
    _refuse_secrets(moved)
    return moved.locked()


def _apply_time_limit(recipe: Recipe, place: Parameters) -> Recipe:
    if recipe.kind != "training":
        return recipe
    request = without_limit(recipe_request(recipe), recipe.parameters)
    additions = Additions(parameters=place, variants=recipe.variants, claims=recipe.claims)
    return recipe_of(decide(limited_request(request, place)), request, additions)


def with_image_digest(recipe: Recipe) -> Recipe:
    """The recipe with its image by digest: what the image's tag means in its registry now.

    Raises:
        NoAnswer: where no image is known, or its registry does not answer.
    """
    image = recipe.lock.image if recipe.lock else None
    if image is None:
        raise NoAnswer(
            "no container image is known for this recipe.",
            field="lock.image",
            hint="Name one: recipe build … --set image=NAME:TAG.",
        )
    pinned = f"{image.reference}@{image_digest(image.reference)}"
    return with_parameters(recipe, recipe.parameters.model_copy(update={"image": pinned}))


def recipe_request(recipe: Recipe) -> PlanRequest:
    """The request with the recipe's split, readable on any machine.

    A model folder is replaced by the config it held; the longest request is the recipe's own.

    Raises:
        InputError: for a request that cannot be read, and for one that leaves its load open.
    """
    request = {**recipe.request, "candidate": recipe.candidate}
    if recipe.model.config is not None:
        config = dict(recipe.model.config)
        if isinstance(recipe.request["model"], str):  # only an inline config says so itself
            config = {key: config[key] for key in config if key not in ("name", "weights")}
        request["model"] = {**config, "_name_or_path": recipe.model.id}
    parsed = PlanRequest.parse(request)
    if parsed.load_searched:
        raise InputError(
            "is missing: a recipe holds the load that its layout was judged under.",
            field="request.workload.concurrency",
            hint="State it, or build the recipe again.",
        )
    workload = parsed.workload
    if not isinstance(workload, ServingWorkload) or recipe.max_context is None:
        return parsed
    if served_context(workload, recipe.model) == recipe.max_context:
        return parsed
    # made when another longest request was usual
    workload = workload.model_copy(update={"max_context": recipe.max_context})
    return parsed.model_copy(update={"workload": workload})


def rebuild_recipe(recipe: Recipe, *, folders: bool = True) -> Recipe:
    """The recipe made again by this version, from its request and what the user added."""
    additions = Additions(
        parameters=recipe.parameters, variants=recipe.variants, claims=recipe.claims
    )
    request = whole_profiles(recipe_request(recipe))
    decision, original = decide(request, folders=folders), request
    if any("workload.concurrency" in fallback.changes for fallback in recipe.fallbacks):
        original = without_load(request)  # each fallback is under the load that it holds
    fresh = recipe_of(decision, original, additions, folders=folders)
    layers = {name: recipe.provenance.get(name, layer) for name, layer in fresh.provenance.items()}
    return fresh.model_copy(update={"provenance": layers}).locked()


def redecide(recipe: Recipe) -> Decision:
    """The decision behind a recipe, as this version takes it; raises NoAnswer where it refuses.

    Without own runs, which may be others by now. How fast the split is was judged with those that
    were known when the recipe was made.
    """
    with without_corrections():
        return decide(recipe_request(recipe), fast_enough=is_calibrated(recipe.estimate))


def relaunch(recipe: Recipe) -> Launch:
    return redecide(recipe).started()


def _model_facts(decision: Decision) -> ModelFacts:
    model = decision.model
    return ModelFacts(
        id=model.name,
        digest=model.digest,
        parameters=model.parameters,
        active_parameters=model.active_parameters,
        weight_dtype=model.weight_dtype,
        max_context=model.max_context,
        config=None if in_catalog(model.name) else model.config,
    )


def decision_device_facts(decision: Decision) -> DeviceFacts:
    """The device of a decision, and how many of them it uses."""
    profile = decision.cluster.device
    return DeviceFacts(
        name=profile.name,
        title=profile.title,
        vendor=profile.vendor,
        runtime=profile.runtime,
        architecture=profile.architecture,
        names=profile.aliases,
        memory_bytes=int(profile.memory_bytes.value),
        count=decision.gpus,
        per_node=min(decision.gpus, decision.cluster.per_node),
    )


def limited_request(request: PlanRequest, place: Parameters) -> PlanRequest:
    """The request with the time limit of its place, so that checkpoints are planned within it.

    Raises:
        InputError: where the place ends a start before the request's ``workload.time_limit_s``.
    """
    workload = request.workload
    if not isinstance(workload, TrainingWorkload) or place.time_limit_minutes is None:
        return request
    limit_s = float(place.time_limit_minutes * SECONDS_PER_MINUTE)
    if workload.time_limit_s is None:
        limited = workload.model_copy(update={"time_limit_s": limit_s})
        return request.model_copy(update={"workload": limited})
    if limit_s < workload.time_limit_s:
        raise InputError(
            f"{place.time_limit_minutes} ends a start before workload.time_limit_s, "
            f"{workload.time_limit_s:.0f} s.",
            field="parameters.time_limit_minutes",
            hint="State one of them, or the same time in both.",
        )
    return request


def without_limit(request: PlanRequest, place: Parameters) -> PlanRequest:
    """The request without a time limit that came from this place."""
    workload = request.workload
    if not isinstance(workload, TrainingWorkload) or place.time_limit_minutes is None:
        return request
    if workload.time_limit_s != place.time_limit_minutes * SECONDS_PER_MINUTE:
        return request
    free = workload.model_copy(update={"time_limit_s": None})
    return request.model_copy(update={"workload": free})
