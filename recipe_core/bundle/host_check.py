"""Whether this machine has what a recipe needs, and which of its variants apply to it."""

from __future__ import annotations

from dataclasses import dataclass

from recipe_core.base.errors import HardwareError
from recipe_core.hardware import cluster
from recipe_core.hardware.request import HardwareRequest
from recipe_core.payload.launcher import machine
from recipe_core.recipe import Recipe
from recipe_core.recipe.resolve import machine_of
from recipe_core.recipe.variants import matching


@dataclass(frozen=True, slots=True)
class HostCheck:
    """Whether this machine can be a node of a recipe, why not, and the variants that apply.

    ``found`` describes the machine's devices.
    """

    ok: bool
    found: str
    reasons: tuple[str, ...]
    variants: tuple[str, ...]


def fit_here(recipe: Recipe) -> HostCheck:
    """Compare the machine, as the vendors' tools describe it, with the recipe's device."""
    host, device = machine.detect(), recipe.device
    names, count = sorted({gpu.name for gpu in host.devices}), len(host.devices)
    devices = f"{count} × {', '.join(names)}" if names else f"no accelerator ({host.runtime})"
    aliases, needed = {name.casefold() for name in device.names}, device.per_node or device.count
    other = aliases and any(name.casefold() not in aliases for name in names)
    reasons = []
    if host.runtime != device.runtime:
        reasons.append(f"the recipe needs {needed} × {device.title}; this machine has {devices}")
    elif host.runtime != "cpu" and other:
        reasons.append(f"the recipe is for {device.title}; this machine has {devices}")
    elif host.runtime != "cpu" and count < needed:
        reasons.append(f"the recipe needs {needed} devices; this machine has {count}")
    return HostCheck(not reasons, devices, tuple(reasons), _variants(recipe, names, count))


def _variants(recipe: Recipe, names: list[str], count: int) -> tuple[str, ...]:
    """Names of the variants for the one kind of device that the driver reports."""
    if len(names) != 1:
        return ()
    try:
        profile = cluster.device(names[0])
    except HardwareError:
        return ()
    host = machine_of(HardwareRequest(device=profile.name, per_node=count), recipe)
    return tuple(variant.name for variant in matching(recipe.variants, host))
