"""Which variants of a recipe apply to a machine and what they make of it; and variants computed for other machines."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from recipe_core.base.errors import InputError
from recipe_core.hardware.cluster import device
from recipe_core.hardware.custom import is_path, read_profile
from recipe_core.hardware.request import HardwareRequest
from recipe_core.recipe.build import Additions, make_recipe, recipe_request
from recipe_core.recipe.decision import decide
from recipe_core.recipe.provenance import LAYERS, Layer, shared_environment
from recipe_core.recipe.schema import Recipe
from recipe_core.recipe.user_options import passing_on
from recipe_core.recipe.variants import (
    MAPPINGS,
    Change,
    Machine,
    Range,
    Settings,
    Variant,
    When,
    difference,
    matching,
)
from recipe_core.request.edit import change
from recipe_core.request.schema import PlanRequest


@dataclass(frozen=True, slots=True)
class Resolved:
    """A recipe as it is on a machine: settings, the layer of each, the variants that applied, and what they did not get to change."""

    machine: Machine
    settings: Settings
    provenance: dict[str, Layer]
    applied: tuple[str, ...]
    kept: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        named = {
            "device": self.machine.device,
            "count": self.machine.count,
            "engine": self.machine.engine,
        }
        whole = {
            "machine": named,
            "applied": list(self.applied),
            "kept": list(self.kept),
            "provenance": dict(self.provenance),
        }
        return whole | self.settings.model_dump(mode="json")


def hardware_named(text: str, field: str = "hardware", *, files: bool = False) -> HardwareRequest:
    """``mi300x:8`` as hardware: so many devices in usual nodes; without a number one usual node.

    ``files``: the name may be the path of a profile (``mine.yaml:8``), which is read.
    """
    name, colon, count = text.partition(":")
    own = read_profile(name) if files and is_path(name) else None
    profile = device(own or name)
    if colon and not (count.isdecimal() and 0 < int(count[:9]) <= 1 << 20):
        raise InputError(
            f"{text!r} is not a device or device:count.", field=field, hint="For example mi300x:8."
        )
    total = int(count) if colon else profile.node.devices
    per_node = min(total, profile.node.devices)
    return HardwareRequest(
        device=own or profile.name, per_node=per_node, nodes=math.ceil(total / per_node)
    )


def machine_of(hardware: HardwareRequest, recipe: Recipe) -> Machine:
    """Devices with the recipe's engine, as conditions see them."""
    profile = device(hardware.device)
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
    """What variants may change of a recipe."""
    return Settings(
        candidate=recipe.candidate,
        options=recipe.engine.options,
        environment=recipe.environment,
        notes=recipe.notes,
    )


def resolve(recipe: Recipe, machine: Machine) -> Resolved:
    """The recipe with every variant that applies; no variant changes what a later layer set."""
    settings, layers = settings_of(recipe), dict(recipe.provenance)
    applied, kept = [], []
    for variant in matching(recipe.variants, machine):
        change, refused = _allowed(variant, layers)
        settings = change.applied(settings)
        layers |= {field: variant.layer(field) for field in _fields(change)}
        applied.append(variant.name)
        kept += [
            f"{field} stays as the {layers[field]} set it; {variant.name} would change it"
            for field in refused
        ]
    return Resolved(machine, settings, layers, tuple(applied), tuple(kept))


def _fields(change: Change) -> list[str]:
    """Dotted names of what a change sets."""
    return [f"{name}.{key}" for name in MAPPINGS for key in getattr(change.set, name)]


def _allowed(variant: Variant, layers: dict[str, Layer]) -> tuple[Change, list[str]]:
    """The part of a variant that changes nothing a later layer set, and the fields that it may not change."""
    values = variant.model_dump(include={"remove", "set", "add"})
    refused = []
    for name in MAPPINGS:
        for what in ("set", "remove"):
            for key in list(values[what][name]):
                field = f"{name}.{key}"
                if field in layers and LAYERS.index(layers[field]) > LAYERS.index(
                    variant.layer(field)
                ):
                    refused.append(field)
        values["set"][name] = {
            key: value
            for key, value in values["set"][name].items()
            if f"{name}.{key}" not in refused
        }
        values["remove"][name] = tuple(
            key for key in values["remove"][name] if f"{name}.{key}" not in refused
        )
    return Change.model_validate(values), refused


def recipe_for(
    recipe: Recipe, hardware: HardwareRequest, *, folders: bool = True
) -> tuple[Recipe, Resolved]:
    """The recipe of other hardware: its variants applied, and the split they say judged there.

    Raises:
        NoAnswer: when it cannot run there.
    """
    found = resolve(recipe, machine_of(hardware, recipe))
    request = change(
        recipe_request(recipe),
        {
            "hardware": hardware.model_dump(mode="json", exclude_none=True),
            "candidate": found.settings.candidate,
        },
    )
    alone = change(request, {"options.engine_options": {}, "options.environment": {}})
    computed = decide(alone, folders=folders).started()
    options = _to_pass("options", recipe, found, computed.options)
    environment = _to_pass("environment", recipe, found, shared_environment(computed))
    additions = Additions(parameters=recipe.parameters, variants=recipe.variants)
    there = make_recipe(passing_on(alone, options, environment), additions, folders=folders)
    layers = {name: found.provenance.get(name, layer) for name, layer in there.provenance.items()}
    return there.model_copy(update={"provenance": layers}).locked(), found


def _to_pass(
    part: str, recipe: Recipe, found: Resolved, computed: Mapping[str, Any]
) -> dict[str, Any]:
    """What the user or a variant sets beyond what is computed on the other hardware.

    Raises:
        InputError: where a variant says something else than the split does there.
    """
    before, after = getattr(settings_of(recipe), part), getattr(found.settings, part)
    set_by_someone = {
        k: v
        for k, v in after.items()
        if recipe.provenance.get(f"{part}.{k}") == "user" or k not in before or before[k] != v
    }
    for name, value in set_by_someone.items():
        if name in computed and computed[name] != value:
            message = f"is {value!r} by {', '.join(found.applied)}, and {computed[name]!r} by the split there."
            raise InputError(
                message, field=f"{part}.{name}", hint="Set the candidate's field in the variant."
            )
    return {name: value for name, value in set_by_someone.items() if name not in computed}


def with_variants(
    recipe: Recipe,
    asked: PlanRequest,
    additions: Additions,
    elsewhere: Iterable[HardwareRequest],
    *,
    folders: bool = True,
) -> Recipe:
    """The recipe with a variant for each other hardware: how it differs from the recipe that is best there with the same engine.

    Variants of one device hold from their number of devices up to the next one's.

    Raises:
        NoAnswer: when nothing can run on one of them.
    """
    others = sorted(
        (_elsewhere(recipe, asked, additions, hardware, folders) for hardware in elsewhere),
        key=lambda o: (o.device.name, o.device.count),
    )
    variants = []
    for n, other in enumerate(others):
        following = others[n + 1] if n + 1 < len(others) else None
        same = following is not None and following.device.name == other.device.name
        variants.append(
            _variant(recipe, other, following.device.count - 1 if same and following else None)
        )
    whole = recipe.model_copy(update={"variants": (*recipe.variants, *variants)})
    return whole.locked()


def _elsewhere(
    recipe: Recipe,
    asked: PlanRequest,
    additions: Additions,
    hardware: HardwareRequest,
    folders: bool,
) -> Recipe:
    stated = asked.candidate.model_dump(exclude_none=True) if asked.candidate else {}
    request = change(
        asked,
        {
            "hardware": hardware.model_dump(mode="json", exclude_none=True),
            "candidate": stated | {"engine": recipe.engine.name},
        },
    )
    return make_recipe(request, additions, folders=folders)


def _variant(recipe: Recipe, other: Recipe, at_most: int | None) -> Variant:
    differs = difference(settings_of(recipe), settings_of(other))
    return Variant(
        name=f"{other.device.name}-{other.device.count}",
        when=When(
            device=other.device.name, count=Range(at_least=other.device.count, at_most=at_most)
        ),
        layers={
            field: other.provenance[field]
            for field in _fields(differs)
            if field in other.provenance
        },
        remove=differs.remove,
        set=differs.set,
        add=differs.add,
    )
