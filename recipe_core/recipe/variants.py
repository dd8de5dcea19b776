"""Conditions, not copies: what a recipe says differently on other machines, with an explicit merge field by field.

A variant applies ``when`` all that it names is so. Of several the less exact come first: default, vendor, architecture, device; those
alike in the order they are written. Each change removes, then sets (mappings) or adds (lists).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Self

from packaging.requirements import InvalidRequirement, Requirement
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from recipe_core.hardware.profile import Vendor
from recipe_core.recipe.provenance import Layer

Whole = Annotated[int, Field(ge=1)]
Names = tuple[str, ...]


class _Data(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What conditions are held against: ``count`` devices of a kind with ``memory_bytes`` each, and an engine at a version."""

    vendor: str
    architecture: str
    device: str
    count: int
    memory_bytes: int
    engine: str
    version: str


class Range(_Data):
    """From ``at_least`` to ``at_most``, both included; an end left out is open."""

    at_least: Whole | None = None
    at_most: Whole | None = None

    @model_validator(mode="after")
    def _not_empty(self) -> Self:
        if self.at_least is not None and self.at_most is not None and self.at_least > self.at_most:
            raise ValueError(f"at_least {self.at_least} is more than at_most {self.at_most}")
        return self

    def __contains__(self, value: int) -> bool:
        return (self.at_least is None or value >= self.at_least) and (
            self.at_most is None or value <= self.at_most
        )


class When(_Data):
    """Conditions, all of which must hold; none at all is the default. ``engine``: a name and its versions, ``vllm>=0.30,<0.33``."""

    vendor: Vendor | None = None
    architecture: str | None = None
    device: str | None = None
    count: Range | None = None
    memory_bytes: Range | None = None
    engine: str | None = None

    @field_validator("engine")
    @classmethod
    def _is_requirement(cls, value: str | None) -> str | None:
        if value is not None:
            try:
                Requirement(value)
            except InvalidRequirement:
                raise ValueError(
                    f"{value!r} is no engine with a range of versions, like 'vllm>=0.30,<0.33'"
                ) from None
        return value

    def holds(self, machine: Machine) -> bool:
        """Whether every condition is met."""
        named = (
            (self.vendor, machine.vendor),
            (self.architecture, machine.architecture),
            (self.device, machine.device),
        )
        ranged = ((self.count, machine.count), (self.memory_bytes, machine.memory_bytes))
        return (
            all(wanted is None or wanted == found for wanted, found in named)
            and all(wanted is None or found in wanted for wanted, found in ranged)
            and (self.engine is None or _is_version(self.engine, machine))
        )

    @property
    def exactness(self) -> int:
        """3 where it names a device, 2 an architecture, 1 a vendor, else 0."""
        return 3 if self.device else 2 if self.architecture else 1 if self.vendor else 0


def _is_version(wanted: str, machine: Machine) -> bool:
    requirement = Requirement(wanted)
    return requirement.name == machine.engine and requirement.specifier.contains(
        machine.version, prereleases=True
    )


class Settings(_Data):
    """What variants change: a candidate's fields, the engine's options, variables of the environment, notes."""

    candidate: dict[str, Any] = {}
    options: dict[str, Any] = {}
    environment: dict[str, str] = {}
    notes: Names = ()


class _Set(_Data):
    candidate: dict[str, Any] = {}
    options: dict[str, Any] = {}
    environment: dict[str, str] = {}


class _Add(_Data):
    notes: Names = ()


class _Remove(_Data):
    candidate: Names = ()
    options: Names = ()
    environment: Names = ()
    notes: Names = ()


MAPPINGS = ("candidate", "options", "environment")


class Change(_Data):
    """What is removed, then set or added. Changes one after another are one change (``then``), however they are grouped."""

    remove: _Remove = _Remove()
    set: _Set = _Set()
    add: _Add = _Add()

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        for name in MAPPINGS:
            both = sorted(dict(getattr(self.set, name)).keys() & tuple(getattr(self.remove, name)))
            if both:
                raise ValueError(f"{name}.{both[0]} is both set and removed; say one of them")
        return self

    def applied(self, to: Settings) -> Settings:
        """The settings after this change."""
        mappings = {
            name: _without(getattr(to, name), getattr(self.remove, name)) | getattr(self.set, name)
            for name in MAPPINGS
        }
        kept = [note for note in to.notes if note not in self.remove.notes]
        return Settings(**mappings, notes=tuple(dict.fromkeys([*kept, *self.add.notes])))

    def then(self, later: Change) -> Change:
        """One change that does what this and then ``later`` do."""
        sets = {
            name: _without(getattr(self.set, name), getattr(later.remove, name))
            | getattr(later.set, name)
            for name in MAPPINGS
        }
        removed = {
            name: tuple(
                each
                for each in _joined(getattr(self.remove, name), getattr(later.remove, name))
                if each not in sets[name]
            )
            for name in MAPPINGS
        }
        added = [note for note in self.add.notes if note not in later.remove.notes]
        return Change(
            remove=_Remove(**removed, notes=_joined(self.remove.notes, later.remove.notes)),
            set=_Set(**sets),
            add=_Add(notes=_joined(added, later.add.notes)),
        )


def _without(values: Mapping[str, Any], names: Names) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name not in names}


def _joined(first: Iterable[str], second: Iterable[str]) -> Names:
    return tuple(dict.fromkeys([*first, *second]))


class Variant(Change):
    """A change and when it applies. ``layers`` of what it sets, where they are known better than from its conditions."""

    name: str
    when: When = When()
    layers: dict[str, Layer] = {}

    def layer(self, field: str) -> Layer:
        """The layer of a field that this sets or removes: as stated, else by how exact its conditions are."""
        by_exactness: tuple[Layer, ...] = ("base", "architecture", "architecture", "device")
        return self.layers.get(field, by_exactness[self.when.exactness])


def matching(variants: Iterable[Variant], machine: Machine) -> list[Variant]:
    """The variants that apply to a machine, the least exact first."""
    return sorted(
        (variant for variant in variants if variant.when.holds(machine)),
        key=lambda variant: variant.when.exactness,
    )


def difference(before: Settings, after: Settings) -> Change:
    """The change that makes ``after`` of ``before``."""
    sets, removed = {}, {}
    for name in MAPPINGS:
        old, new = getattr(before, name), getattr(after, name)
        sets[name] = {
            key: value for key, value in new.items() if key not in old or old[key] != value
        }
        removed[name] = tuple(key for key in old if key not in new)
    gone = tuple(note for note in before.notes if note not in after.notes)
    new_notes = tuple(note for note in after.notes if note not in before.notes)
    return Change(
        remove=_Remove(**removed, notes=gone), set=_Set(**sets), add=_Add(notes=new_notes)
    )
