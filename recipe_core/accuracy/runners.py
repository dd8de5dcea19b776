"""``runners.yaml``: engines, compilers and libraries that run compressed models."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from recipe_core.accuracy.technique import Titled
from recipe_core.base.data_files import DataFile, DataRow, DataTable
from recipe_core.base.provenance import Sourced
from recipe_core.base.resources import PACKAGE
from recipe_core.base.types import Text
from recipe_core.hardware.cluster import device_profile
from recipe_core.hardware.profile import Device

MatrixFormat = Literal["bf16", "fp16", "fp8", "fp6", "fp4", "int16", "int8", "int4"]


class Family(Titled):
    """Devices whose matrix units are alike.

    architectures: those of ``hw_profiles/``. formats: what the matrix units multiply; other formats
    are converted first. sparse_2_4: whether they skip two zeros of four.
    """

    vendor: Text
    architectures: tuple[Text, ...] = Field(min_length=1)
    formats: tuple[MatrixFormat, ...]
    sparse_2_4: bool
    source: Text
    note: Text | None = None


class Group(DataRow):
    """Families that a source speaks of together: a vendor's, or those of an interface."""

    title: Text
    families: tuple[Text, ...] = Field(min_length=1)


class _FamilyFile(Sourced):
    families: dict[Text, Family]
    groups: dict[Text, Group]

    @model_validator(mode="after")
    def _known(self) -> _FamilyFile:
        members = {name for group in self.groups.values() for name in group.families}
        if missing := sorted(members - set(self.families)):
            raise ValueError(f"groups name {missing[0]!r}, which is not a family")
        if both := sorted(set(self.groups) & set(self.families)):
            raise ValueError(f"{both[0]!r} is both a family and a group")
        return self


_FAMILIES = DataTable[Family](
    DataFile(PACKAGE / "accuracy" / "families.yaml", "hardware"),
    _FamilyFile,
    "families",
    "hardware family",
)


def families() -> dict[str, Family]:
    return _FAMILIES.rows


def hardware_groups() -> dict[str, Group]:
    groups: dict[str, Group] = _FAMILIES.document.groups
    return groups


@cache
def _by_architecture() -> dict[str, str]:
    return {word: name for name, entry in families().items() for word in entry.architectures}


def family(name: str) -> Family:
    """The family of a name.

    Raises:
        InputError: for a name that no family has.
    """
    return _FAMILIES.row(name)


def family_of(device: Device | str) -> str:
    """The family of a device: its profile, its name, or a family's own name; "" where none is.

    Raises:
        HardwareError: for a name that neither a family nor a device has.
    """
    if isinstance(device, str):
        if device in families():
            return device
        return _by_architecture().get(device) or family_of(device_profile(device))
    return _by_architecture().get(device.architecture, "")


def covers(hardware: str, name: str) -> bool:
    """Return whether the hardware of a row (a family, a group or "any") includes a family."""
    if hardware in (name, "any"):
        return True
    return hardware in hardware_groups() and name in hardware_groups()[hardware].families


# native: the matrix unit computes in the format, or the cache is read in it. weight-only kernel:
# stored small, multiplied in 16 bit or as integer dot products. emulated: quantised and dequantised
# around a 16-bit product. memory only: stored small at most. refused: an error, or no such format.
# unknown: sources disagree or say nothing.
Verdict = Literal[
    "native",
    "weight-only kernel",
    "emulated",
    "memory only",
    "refused",
    "unknown",
]

# Verdicts on which nothing can be planned.
VOID: frozenset[Verdict] = frozenset({"refused", "unknown"})


@dataclass(frozen=True, slots=True)
class Support:
    """One row of the knowledge base, or the answer where it has none.

    technique, engine, hardware (a family of devices): by name. variant: the engine's own word for
    the technique, "" where it is the technique's. min_version, last_version: the releases that it
    holds for; "": from the oldest, to the newest. words: what the engine itself says (an error, a
    cell of a table, a source line), shortened. source: title, address and date. inferred: whether a
    stated rule was applied to this hardware rather than read of it.
    """

    technique: str
    engine: str
    hardware: str
    verdict: Verdict
    variant: str = ""
    min_version: str = ""
    last_version: str = ""
    words: str = ""
    note: str = ""
    source: str = ""
    url: str = ""
    date: str = ""
    inferred: bool = False

    @property
    def runs(self) -> bool:
        return self.verdict not in VOID

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__} | {"runs": self.runs}


Page = Annotated[str, Field(pattern=r"^https://[^\s<>()\"'\\]+$", max_length=300)]


class Hardware(DataRow):
    """All hardware that a runner has kernels for (families and groups), in its own words."""

    families: tuple[Text, ...] = Field(min_length=1)
    words: Annotated[str, Field(min_length=3, max_length=200)]
    source: Text


class Runner(Titled):
    """One engine, compiler or library.

    wraps: the engine whose kernels it starts. only: the hardware that it has at all; everything is
    refused elsewhere. None: not stated.
    """

    kind: Literal["engine", "compiler", "library"]
    page: Page
    wraps: Text | None = None
    only: Hardware | None = None


class _File(DataRow):
    schema_version: Literal[1]
    runners: dict[Text, Runner]

    @model_validator(mode="after")
    def _known(self) -> _File:
        wrapped = {entry.wraps for entry in self.runners.values() if entry.wraps}
        if missing := sorted(wrapped - set(self.runners)):
            raise ValueError(f"{missing[0]!r} is wrapped but is not a runner")
        return self


_RUNNERS = DataTable[Runner](
    DataFile(PACKAGE / "accuracy" / "runners.yaml", "engine"),
    _File,
    "runners",
    "engine or compiler",
)


def runners() -> dict[str, Runner]:
    return _RUNNERS.rows


def runner(name: str) -> Runner:
    """The runner of a name.

    Raises:
        InputError: for a name that no runner has.
    """
    return _RUNNERS.row(name)
