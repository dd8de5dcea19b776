"""``runners.yaml``: engines, compilers and libraries that run compressed models."""

from __future__ import annotations

from functools import cache
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from recipe_core.accuracy.titled import Titled
from recipe_core.base.data_files import DataFile
from recipe_core.base.errors import InputError, unknown
from recipe_core.base.resources import PACKAGE
from recipe_core.base.types import Text

FILE = DataFile(PACKAGE / "accuracy" / "runners.yaml", "engine")

Page = Annotated[str, Field(pattern=r"^https://[^\s<>()\"'\\]+$", max_length=300)]


class _Data(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)


class Hardware(_Data):
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


class _File(_Data):
    schema_version: Literal[1]
    runners: dict[Text, Runner]

    @model_validator(mode="after")
    def _known(self) -> _File:
        wrapped = {entry.wraps for entry in self.runners.values() if entry.wraps}
        if missing := sorted(wrapped - set(self.runners)):
            raise ValueError(f"{missing[0]!r} is wrapped but is not a runner")
        return self


@cache
def runners() -> dict[str, Runner]:
    return FILE.read_as(_File).runners


def runner(name: str) -> Runner:
    """The runner of a name.

    Raises:
        InputError: for a name that no runner has.
    """
    if name not in runners():
        message, hint = unknown("engine or compiler", name, list(runners()))
        raise InputError(message, field=FILE.field, hint=hint)
    return runners()[name]
