"""Whether this machine is what a recipe needs, and which of its variants are for it."""

from __future__ import annotations

from dataclasses import dataclass

from recipe_core.base.errors import HardwareError
from recipe_core.hardware.cluster import device
from recipe_core.hardware.request import HardwareRequest
from recipe_core.launcher import machine
from recipe_core.recipe import Recipe
from recipe_core.recipe.resolve import machine_of
from recipe_core.recipe.variants import matching


@dataclass(frozen=True, slots=True)
class HostCheck:
    """Whether a recipe fits on this machine (one of its nodes), why not, and the variants that apply here."""

    ok: bool
    found: str
    reasons: tuple[str, ...]
    variants: tuple[str, ...]


def fit_here(recipe: Recipe) -> HostCheck:
    """Ask the vendors' tools what is here and compare."""
    here, needed = machine.detect(), recipe.device
    names = sorted({each.name for each in here.devices})
    count = len(here.devices)
    found = f"{count} × {', '.join(names)}" if names else f"no accelerator ({here.runtime})"
    known = {name.casefold() for name in needed.names}
    wanted = needed.per_node or needed.count
    reasons = []
    if here.runtime != needed.runtime:
        reasons.append(f"the recipe needs {wanted} × {needed.title}; here is {found}")
    elif here.runtime != "cpu" and known and any(name.casefold() not in known for name in names):
        reasons.append(f"the recipe is for {needed.title}; here is {found}")
    elif here.runtime != "cpu" and count < wanted:
        reasons.append(f"the recipe needs {wanted} devices; here are {count}")
    return HostCheck(not reasons, found, tuple(reasons), _variants(recipe, names, count))


def _variants(recipe: Recipe, names: list[str], count: int) -> tuple[str, ...]:
    """The variants that apply to the device which the driver names."""
    if len(names) != 1:
        return ()
    try:
        profile = device(names[0])
    except HardwareError:
        return ()
    return tuple(
        each.name
        for each in matching(
            recipe.variants,
            machine_of(HardwareRequest(device=profile.name, per_node=count), recipe),
        )
    )
