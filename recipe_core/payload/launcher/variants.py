"""The recipe's variants for other machines: which one fits this one, and how to build it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from .fields import Fields
from .machine import Machine


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of device: its ``profile``, and what its driver calls it."""

    profile: str
    runtime: str
    names: tuple[str, ...]

    def holds(self, machine: Machine) -> bool:
        """Whether all devices of a machine are of this kind."""
        if machine.runtime != self.runtime:
            return False
        device_names = {name.casefold() for name in self.names}
        return all(device.name.casefold() in device_names for device in machine.devices)


@dataclass(frozen=True, slots=True)
class Variant:
    """Machines with a variant of the recipe: a number of devices of one of the ``kinds``."""

    name: str
    kinds: tuple[Kind, ...]
    at_least: int
    at_most: int | None

    def hardware(self, machine: Machine, nodes: int) -> str | None:
        """The machine for ``recipe resolve`` (``mi300x:8``); None if the variant is for others."""
        count = max(len(machine.devices), 1) * nodes
        if count < self.at_least or (self.at_most is not None and count > self.at_most):
            return None
        return next((f"{kind.profile}:{count}" for kind in self.kinds if kind.holds(machine)), None)


def parse_variants(fields: Fields) -> tuple[Variant, ...]:
    """The variants of ``launch.json``; bundles of older versions have none."""
    return (
        tuple(map(_parse_variant, fields.children("variants")))
        if fields.data.get("variants")
        else ()
    )


def _parse_variant(fields: Fields) -> Variant:
    kinds = tuple(
        Kind(kind.text("profile"), kind.text("runtime"), kind.texts("names"))
        for kind in fields.children("kinds")
    )
    return Variant(
        fields.text("name"),
        kinds,
        fields.optional_integer("at_least") or 1,
        fields.optional_integer("at_most"),
    )


def advise_variant(
    variants: tuple[Variant, ...], machine: Machine, nodes: int, bundle: Path
) -> tuple[str, str] | None:
    """What the recipe has for a machine that is not its own, and what to do.

    None where it has no variants.
    """
    if not variants:
        return None
    hardware_of = {variant.name: variant.hardware(machine, nodes) for variant in variants}
    fitting = {name: hardware for name, hardware in hardware_of.items() if hardware}
    if not fitting:
        text = f"none of the recipe's variants ({', '.join(hardware_of)}) is for this machine"
        return text, "Plan again for it: `recipe plan`."
    hardware = next(iter(fitting.values()))
    noun = "variant" if len(fitting) == 1 else "variants"
    build = f"Build its bundle: recipe resolve {bundle} --hardware {hardware} -o OTHER.zip"
    return f"for {hardware} the recipe has the {noun} {', '.join(fitting)}", build
