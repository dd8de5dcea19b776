"""What the recipe says about other machines than its own: which of its variants is for this one, and how its bundle is built."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from .fields import Fields
from .machine import Machine


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of device by its ``profile``, what its driver calls it, and where engines find it."""

    profile: str
    runtime: str
    names: tuple[str, ...]

    def holds(self, machine: Machine) -> bool:
        """Whether all devices of a machine are of it."""
        if machine.runtime != self.runtime:
            return False
        known = {name.casefold() for name in self.names}
        return all(device.name.casefold() in known for device in machine.devices)


@dataclass(frozen=True, slots=True)
class Variant:
    """Machines for which the recipe says something else: so many devices of one of the ``kinds``."""

    name: str
    kinds: tuple[Kind, ...]
    at_least: int
    at_most: int | None

    def hardware(self, machine: Machine, nodes: int) -> str | None:
        """The machine as ``recipe resolve`` is told it (``mi300x:8``), None where the variant is for others."""
        count = max(len(machine.devices), 1) * nodes
        if count < self.at_least or (self.at_most is not None and count > self.at_most):
            return None
        return next((f"{kind.profile}:{count}" for kind in self.kinds if kind.holds(machine)), None)


def read_variants(fields: Fields) -> tuple[Variant, ...]:
    """Those of ``launch.json``; bundles of older versions have none."""
    return tuple(map(_variant, fields.children("variants"))) if fields.data.get("variants") else ()


def _variant(fields: Fields) -> Variant:
    kinds = tuple(
        Kind(each.text("profile"), each.text("runtime"), each.texts("names"))
        for each in fields.children("kinds")
    )
    return Variant(
        fields.text("name"),
        kinds,
        fields.optional_integer("at_least") or 1,
        fields.optional_integer("at_most"),
    )


def advice(
    variants: tuple[Variant, ...], machine: Machine, nodes: int, bundle: Path
) -> tuple[str, str] | None:
    """For a machine that is not the recipe's: what it has for it, and what to do; None where it says nothing about others."""
    if not variants:
        return None
    fitting = {
        variant.name: found for variant in variants if (found := variant.hardware(machine, nodes))
    }
    if not fitting:
        named = ", ".join(variant.name for variant in variants)
        return (
            f"none of the recipe's variants ({named}) is for this machine",
            "Plan again for it: `recipe plan`.",
        )
    hardware = next(iter(fitting.values()))
    few = "variant" if len(fitting) == 1 else "variants"
    build = f"Build the bundle of it: recipe resolve {bundle} --hardware {hardware} -o OTHER.zip"
    return f"for {hardware} the recipe has the {few} {', '.join(fitting)}", build
