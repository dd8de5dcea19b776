"""Variants of a recipe that apply to a machine, and those computed for other machines."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from recipe_core.base.errors import InputError
from recipe_core.hardware.cluster import device_profile
from recipe_core.hardware.request import HardwareRequest, is_profile_path, read_profile, split_count
from recipe_core.recipe.build import Additions, make_recipe, recipe_request, redecide
from recipe_core.recipe.decision import Decision, decide
from recipe_core.recipe.fallbacks import usual_hardware
from recipe_core.recipe.options import LAYERS, Layer, passing_on, shared_environment
from recipe_core.recipe.place import Parameters
from recipe_core.recipe.schema import Recipe
from recipe_core.recipe.variants import (
    MAPPINGS,
    Change,
    Machine,
    Range,
    Settings,
    Variant,
    When,
    matching,
    settings_change,
)
from recipe_core.request.edit import change
from recipe_core.request.schema import PlanRequest


@dataclass(frozen=True, slots=True)
class Resolved:
    """A recipe as it is on a machine.

    ``provenance``: the layer of each setting; ``applied``: the variants that changed it;
    ``kept_out``: a sentence for each change that a later layer kept out.
    """

    machine: Machine
    settings: Settings
    provenance: dict[str, Layer]
    applied: tuple[str, ...]
    kept_out: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        facts = ("device", "count", "engine")
        return {
            "machine": {name: getattr(self.machine, name) for name in facts},
            "applied": list(self.applied),
            "kept": list(self.kept_out),
            "provenance": dict(self.provenance),
            **self.settings.model_dump(mode="json"),
        }


def hardware_named(text: str, field: str = "hardware", *, files: bool = False) -> HardwareRequest:
    """``mi300x:8`` as hardware: that many devices in usual nodes; without a number one usual node.

    ``files``: the name may be the path of a profile (``mine.yaml:8``), which is read.
    """
    name, count = split_count(text, field)
    custom = read_profile(name) if files and is_profile_path(name) else None
    profile = device_profile(custom or name)
    hardware = usual_hardware(profile, count or profile.node.devices)
    return hardware.model_copy(update={"device": custom or profile.name})


def machine_of(hardware: HardwareRequest, recipe: Recipe) -> Machine:
    """Devices with the recipe's engine, as conditions see them."""
    profile = device_profile(hardware.device)
    return Machine(
        vendor=profile.vendor,
        architecture=profile.architecture,
        device=profile.name,
        count=hardware.devices,
        memory_bytes=int(profile.memory_bytes.value),
        engine=recipe.engine.name,
        version=recipe.engine.version,
    )


def settings_of(recipe: Recipe) -> Settings:
    return Settings(
        candidate=recipe.candidate,
        options=recipe.engine.options,
        environment=recipe.environment,
        notes=recipe.notes,
    )


def resolve_recipe(recipe: Recipe, machine: Machine) -> Resolved:
    """The recipe with every variant that applies; no variant changes what a later layer set."""
    settings, layers = settings_of(recipe), dict(recipe.provenance)
    applied: list[str] = []
    sentences: list[str] = []
    for variant in matching(recipe.variants, machine):
        change, refused = _allowed_change(variant, layers)
        settings = change.applied(settings)
        layers |= {field: variant.layer(field) for field in _changed_fields(change)}
        applied.append(variant.name)
        sentences += [
            f"{field} stays as the {layers[field]} set it; {variant.name} would change it"
            for field in refused
        ]
    return Resolved(machine, settings, layers, tuple(applied), tuple(sentences))


def _changed_fields(change: Change) -> list[str]:
    return [f"{name}.{key}" for name in MAPPINGS for key in getattr(change.set, name)]


def _allowed_change(variant: Variant, layers: dict[str, Layer]) -> tuple[Change, list[str]]:
    """The part of a variant that may apply, and the fields that a later layer set."""
    values = variant.model_dump(include={"remove", "set", "add"})
    refused: list[str] = []

    def allowed(field: str) -> bool:
        if field not in layers or LAYERS.index(layers[field]) <= LAYERS.index(variant.layer(field)):
            return True
        refused.append(field)
        return False

    for name in MAPPINGS:
        sets, removed = values["set"][name], values["remove"][name]
        values["set"][name] = {k: v for k, v in sets.items() if allowed(f"{name}.{k}")}
        values["remove"][name] = tuple(key for key in removed if allowed(f"{name}.{key}"))
    return Change.model_validate(values), refused


def recipe_for(
    recipe: Recipe, hardware: HardwareRequest, *, folders: bool = True
) -> tuple[Recipe, Resolved]:
    """The recipe for other hardware: its variants applied, and their split judged on it.

    Raises:
        NoAnswer: when it cannot run there.
    """
    request, resolved, decision = request_elsewhere(recipe, hardware, folders=folders)
    additions = Additions(parameters=_place_elsewhere(recipe, decision), variants=recipe.variants)
    moved = make_recipe(request, additions, folders=folders)
    layers = {
        name: resolved.provenance.get(name, layer) for name, layer in moved.provenance.items()
    }
    return moved.model_copy(update={"provenance": layers}).locked(), resolved


def request_elsewhere(
    recipe: Recipe, hardware: HardwareRequest, *, folders: bool = True
) -> tuple[PlanRequest, Resolved, Decision]:
    """The request of a recipe on other hardware, with what its variants set there.

    And the decision about it before their options are passed on.

    Raises:
        NoAnswer: when it cannot run there.
    """
    resolved = resolve_recipe(recipe, machine_of(hardware, recipe))
    changes = {
        "hardware": hardware.model_dump(mode="json", exclude_none=True),
        "candidate": resolved.settings.candidate,
        "options.engine_options": {},
        "options.environment": {},
    }
    request = change(recipe_request(recipe), changes)
    decision = decide(request, folders=folders)
    computed = decision.started()
    options = _to_pass("options", recipe, resolved, computed.options)
    environment = _to_pass("environment", recipe, resolved, shared_environment(computed))
    return passing_on(request, options, environment), resolved, decision


def _place_elsewhere(recipe: Recipe, decision: Decision) -> Parameters:
    """The recipe's place without what names its own device: a type, the digest of its image."""
    place, dropped = recipe.parameters, []
    if decision.cluster.device.name != recipe.device.name:
        dropped.append("gpu_type")
    if place.image:
        own_image = redecide(recipe).image
        engine_image = own_image.reference if own_image else None
        pinned = place.image.partition("@")[0] == engine_image
        if pinned and (decision.image is None or decision.image.reference != engine_image):
            dropped.append("image")
    return place.model_copy(update=dict.fromkeys(dropped))


def _to_pass(
    part: str, recipe: Recipe, resolved: Resolved, computed: Mapping[str, Any]
) -> dict[str, Any]:
    """Return what the user or a variant sets beyond what is computed on the other hardware.

    Raises:
        InputError: where a variant says something else than the split does there.
    """
    before, after = getattr(settings_of(recipe), part), getattr(resolved.settings, part)
    options: dict[str, Any] = {}
    for name, value in after.items():
        by_user = recipe.provenance.get(f"{part}.{name}") == "user"
        if not by_user and name in before and before[name] == value:
            continue
        if name not in computed:
            options[name] = value
        elif computed[name] != value:
            variants = ", ".join(resolved.applied)
            message = f"is {value!r} by {variants}, and {computed[name]!r} by the layout there."
            hint = "Set the candidate's field in the variant."
            raise InputError(message, field=f"{part}.{name}", hint=hint)
    return options


def with_variants(
    recipe: Recipe,
    request: PlanRequest,
    additions: Additions,
    clusters: Iterable[HardwareRequest],
    *,
    folders: bool = True,
) -> Recipe:
    """The recipe with a variant for each cluster: what the best recipe there changes.

    It keeps the engine. Variants of one device hold from their number of devices up to the next
    one's.

    Raises:
        NoAnswer: when nothing can run on one of them.
    """
    candidate = request.candidate.model_dump(exclude_none=True) if request.candidate else {}
    candidate |= {"engine": recipe.engine.name}
    recipes = []
    for cluster in clusters:
        hardware = cluster.model_dump(mode="json", exclude_none=True)
        elsewhere = change(request, {"hardware": hardware, "candidate": candidate})
        recipes.append(make_recipe(elsewhere, additions, folders=folders))
    recipes.sort(key=lambda target: (target.device.name, target.device.count))
    pairs = zip_longest(recipes, recipes[1:])
    variants = [_recipe_variant(recipe, target, larger) for target, larger in pairs]
    return recipe.model_copy(update={"variants": (*recipe.variants, *variants)}).locked()


def _recipe_variant(recipe: Recipe, target: Recipe, larger: Recipe | None) -> Variant:
    change = settings_change(settings_of(recipe), settings_of(target))
    device, layers = target.device, target.provenance
    at_most = None
    if larger is not None and larger.device.name == device.name:
        at_most = larger.device.count - 1
    return Variant(
        **dict(change),
        name=f"{device.name}-{device.count}",
        when=When(device=device.name, count=Range(at_least=device.count, at_most=at_most)),
        layers={field: layers[field] for field in _changed_fields(change) if field in layers},
    )
