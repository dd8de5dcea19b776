"""The conditions of a recipe's variants as a launcher can hold them against a machine: by what drivers call devices."""

from __future__ import annotations

from typing import Any

from recipe_core.hardware.cluster import device, device_names
from recipe_core.recipe.schema import Recipe
from recipe_core.recipe.variants import Machine, Variant


def launch_variants(recipe: Recipe) -> list[dict[str, Any]]:
    """Each variant that some hardware decides about, the most exact first: kinds of devices, and how many of them."""
    exact_first = sorted(recipe.variants, key=lambda variant: -variant.when.exactness)
    made = ((variant, _kinds(recipe, variant)) for variant in exact_first)
    return [
        {"name": variant.name, "kinds": kinds, **_count(variant)}
        for variant, kinds in made
        if kinds
    ]


def _kinds(recipe: Recipe, variant: Variant) -> list[dict[str, Any]]:
    """Devices that meet the conditions; where none is about the kind of device, the recipe's own."""
    names = (
        device_names()
        if variant.when.exactness
        else [recipe.device.name]
        if variant.when.count
        else []
    )
    found = [device(name) for name in names if name in device_names()]
    return [
        {"profile": profile.name, "runtime": profile.runtime, "names": list(profile.aliases)}
        for profile in found
        if variant.when.model_copy(update={"count": None}).holds(_one(recipe, profile.name))
    ]


def _one(recipe: Recipe, name: str) -> Machine:
    profile = device(name)
    return Machine(
        vendor=profile.vendor,
        architecture=profile.architecture,
        device=profile.name,
        count=1,
        memory_bytes=int(profile.memory_bytes.value),
        engine=recipe.engine.name,
        version=recipe.engine.version,
    )


def _count(variant: Variant) -> dict[str, int]:
    bounds = variant.when.count
    return bounds.model_dump(exclude_none=True) if bounds else {}
