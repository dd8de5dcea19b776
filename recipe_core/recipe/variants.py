"""Conditions, not copies: what a recipe says differently on other machines, merged field by field.

A variant applies ``when`` all that it names is so. Of several the less exact come first: default,
vendor, architecture, device; those alike in the order they are written. Each change removes, then
sets (mappings) or adds (lists).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any, Self

from packaging.requirements import InvalidRequirement, Requirement
from pydantic import Field, field_validator, model_validator

from recipe_core.base.documented import DescribedModel
from recipe_core.hardware.profile import Vendor
from recipe_core.recipe.options import Layer

Whole = Annotated[int, Field(ge=1)]
Names = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The machine that conditions are held against.

    ``count`` devices of a kind with ``memory_bytes`` each, and an engine at a version.
    """

    vendor: str
    architecture: str
    device: str
    count: int
    memory_bytes: int
    engine: str
    version: str


class Range(DescribedModel):
    """From ``at_least`` to ``at_most``, both included; an end left out is open."""

    at_least: Whole | None = None
    """Smallest value, in the unit of the field that the range is for; left out, no lower end."""

    at_most: Whole | None = None
    """Largest value, in the unit of the field that the range is for; left out, no upper end."""

    @model_validator(mode="after")
    def _not_empty(self) -> Self:
        if self.at_least is not None and self.at_most is not None and self.at_least > self.at_most:
            raise ValueError(f"at_least {self.at_least} is more than at_most {self.at_most}")
        return self

    def __contains__(self, value: int) -> bool:
        if self.at_least is not None and value < self.at_least:
            return False
        return self.at_most is None or value <= self.at_most


class When(DescribedModel):
    """Conditions, all of which must hold; none at all is the default."""

    vendor: Vendor | None = None
    """Vendor of the device; left out, any."""

    architecture: str | None = None
    """Architecture of the device (``gfx942``); left out, any."""

    device: str | None = None
    """Name of the device's profile; left out, any."""

    count: Range | None = None
    """Number of devices; left out, any."""

    memory_bytes: Range | None = None
    """Memory of one device, in bytes; left out, any."""

    engine: str | None = None
    """Engine and its versions (``vllm>=0.30,<0.33``); left out, any."""

    @field_validator("engine")
    @classmethod
    def _is_requirement(cls, value: str | None) -> str | None:
        if value is not None:
            try:
                Requirement(value)
            except InvalidRequirement:
                example = "'vllm>=0.30,<0.33'"
                raise ValueError(
                    f"{value!r} is not an engine with a range of versions, like {example}",
                ) from None
        return value

    def holds(self, machine: Machine) -> bool:
        """Return whether every condition is met."""
        names = ((name, getattr(machine, name)) for name in ("vendor", "architecture", "device"))
        ranges = ((self.count, machine.count), (self.memory_bytes, machine.memory_bytes))
        return (
            all(getattr(self, name) in (None, actual) for name, actual in names)
            and all(span is None or actual in span for span, actual in ranges)
            and (self.engine is None or _is_version(self.engine, machine))
        )

    @property
    def exactness(self) -> int:
        """3 where it names a device, 2 an architecture, 1 a vendor, else 0."""
        conditions = enumerate((self.vendor, self.architecture, self.device), 1)
        return max((score for score, condition in conditions if condition), default=0)


def _is_version(text: str, machine: Machine) -> bool:
    requirement = Requirement(text)
    return requirement.name == machine.engine and requirement.specifier.contains(
        machine.version,
        prereleases=True,
    )


class _Set(DescribedModel):
    candidate: dict[str, Any] = {}
    """Fields of the layout to set, by name."""

    options: dict[str, Any] = {}
    """Options of the engine to set, by name."""

    environment: dict[str, str] = {}
    """Environment variables to set, by name."""


class Settings(_Set):
    """The settings that variants change."""

    notes: Names = ()
    """What a reader should know, a sentence each."""


class _Add(DescribedModel):
    notes: Names = ()
    """Notes to add; those that are there already are not repeated."""


class _Remove(DescribedModel):
    candidate: Names = ()
    """Names of fields of the layout to remove."""

    options: Names = ()
    """Names of the engine's options to remove."""

    environment: Names = ()
    """Names of environment variables to remove."""

    notes: Names = ()
    """Notes to remove, in full."""


MAPPINGS = ("candidate", "options", "environment")


class Change(DescribedModel):
    """The settings that are removed, then set or added."""

    remove: _Remove = _Remove()
    """What is removed first."""

    set: _Set = _Set()
    """What is set after that; it goes before what was there."""

    add: _Add = _Add()
    """What is added to lists."""

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        for name in MAPPINGS:
            both = sorted(dict(getattr(self.set, name)).keys() & tuple(getattr(self.remove, name)))
            if both:
                raise ValueError(f"{name}.{both[0]} is both set and removed; say one of them")
        return self

    def applied(self, to: Settings) -> Settings:
        """The settings after this change."""
        mappings = {}
        for name in MAPPINGS:
            removed = getattr(self.remove, name)
            unchanged = {k: value for k, value in getattr(to, name).items() if k not in removed}
            mappings[name] = unchanged | getattr(self.set, name)
        notes = [note for note in to.notes if note not in self.remove.notes]
        return Settings(**mappings, notes=tuple(dict.fromkeys([*notes, *self.add.notes])))


class Variant(Change):
    """A change and when it applies."""

    name: str
    """What the variant is called."""

    when: When = When()
    """Conditions under which it applies; none: always."""

    layers: dict[str, Layer] = {}
    """Layer of what it sets, by dotted name, where that is known better than from its
    conditions."""

    def layer(self, field: str) -> Layer:
        """The layer of a field that this sets or removes.

        As stated, else by how exact its conditions are.
        """
        by_exactness: tuple[Layer, ...] = ("base", "architecture", "architecture", "device")
        return self.layers.get(field, by_exactness[self.when.exactness])


def matching(variants: Iterable[Variant], machine: Machine) -> list[Variant]:
    """The variants that apply to a machine, the least exact first."""
    holding = [variant for variant in variants if variant.when.holds(machine)]
    return sorted(holding, key=lambda variant: variant.when.exactness)


def settings_change(before: Settings, after: Settings) -> Change:
    sets, removed = {}, {}
    for name in MAPPINGS:
        old, new = getattr(before, name), getattr(after, name)
        sets[name] = {k: value for k, value in new.items() if k not in old or old[k] != value}
        removed[name] = tuple(key for key in old if key not in new)
    gone = tuple(note for note in before.notes if note not in after.notes)
    new_notes = tuple(note for note in after.notes if note not in before.notes)
    return Change(
        remove=_Remove(**removed, notes=gone),
        set=_Set(**sets),
        add=_Add(notes=new_notes),
    )
