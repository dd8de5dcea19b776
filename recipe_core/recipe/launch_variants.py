"""The conditions of a recipe's variants in a launcher's terms: by what drivers call devices."""

from __future__ import annotations

from typing import Any

from recipe_core.hardware.cluster import device, device_names
from recipe_core.recipe.schema import Recipe
from recipe_core.recipe.variants import Machine, Variant


def launch_variants(recipe: Recipe) -> list[dict[str, Any]]:
    """Each variant that depends on hardware, the most exact first, with devices and counts."""
    return [
        {"name": variant.name, "kinds": kinds, **_count(variant)}
        for variant in sorted(recipe.variants, key=lambda variant: -variant.when.exactness)
        if (kinds := _kinds(recipe, variant))
    ]


def _kinds(recipe: Recipe, variant: Variant) -> list[dict[str, Any]]:
    """Devices that meet the conditions; where none names a kind of device, the recipe's own."""
    names: list[str] = []
    if variant.when.exactness:
        names = list(device_names())
    elif variant.when.count and recipe.device.name in device_names():
        names = [recipe.device.name]
    return [
        {"profile": profile.name, "runtime": profile.runtime, "names": list(profile.aliases)}
        for profile in map(device, names)
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
