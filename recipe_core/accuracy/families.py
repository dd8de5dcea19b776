"""``families.yaml``: families of hardware that engines and compilers treat alike."""

from __future__ import annotations

from functools import cache
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from recipe_core.accuracy.titled import Titled
from recipe_core.base.data_files import DataFile
from recipe_core.base.errors import InputError, unknown
from recipe_core.base.provenance import Sourced
from recipe_core.base.resources import PACKAGE
from recipe_core.base.types import Text
from recipe_core.hardware.cluster import device_profile
from recipe_core.hardware.profile import Device

FILE = DataFile(PACKAGE / "accuracy" / "families.yaml", "hardware")

MatrixFormat = Literal["bf16", "fp16", "fp8", "fp6", "fp4", "int16", "int8", "int4"]


class _Data(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)


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


class Group(_Data):
    """Families that a source speaks of together: a vendor's, or those of an interface."""

    title: Text
    families: tuple[Text, ...] = Field(min_length=1)


class _File(Sourced):
    families: dict[Text, Family]
    groups: dict[Text, Group]

    @model_validator(mode="after")
    def _known(self) -> _File:
        members = {name for group in self.groups.values() for name in group.families}
        if missing := sorted(members - set(self.families)):
            raise ValueError(f"groups name {missing[0]!r}, which is not a family")
        if both := sorted(set(self.groups) & set(self.families)):
            raise ValueError(f"{both[0]!r} is both a family and a group")
        return self


@cache
def _families_file() -> _File:
    return FILE.read_as(_File)


def families() -> dict[str, Family]:
    return _families_file().families


def hardware_groups() -> dict[str, Group]:
    return _families_file().groups


@cache
def _by_architecture() -> dict[str, str]:
    return {word: name for name, entry in families().items() for word in entry.architectures}


def family(name: str) -> Family:
    """The family of a name.

    Raises:
        InputError: for a name that no family has.
    """
    if name not in families():
        message, hint = unknown("hardware family", name, list(families()))
        raise InputError(message, field=FILE.field, hint=hint)
    return families()[name]


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
    """Whether the hardware of a row (a family, a group or "any") includes a family."""
    if hardware in (name, "any"):
        return True
    return hardware in hardware_groups() and name in hardware_groups()[hardware].families
