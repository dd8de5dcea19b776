"""Models that Megatron-LM can be told of, as data: ``training/megatron.yaml``."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal

from pydantic import model_validator

from recipe_core.base.data_files import DataFile, DataRow

MEGATRON = DataFile(Path(__file__).with_name("training") / "megatron.yaml", "engines")


class Family(DataRow):
    """A ``model_type``: what its class computes beside the fields of a ``config.json``.

    ``always``: arguments of all its models. ``fields``: arguments of fields; ``allowed``: values
    of fields that need none; both before those that all families share. ``defaults`` of its
    configuration class. ``norm``: the field with the epsilon of its norms. ``router``: how scores
    of experts become weights, None for a family without experts.
    """

    always: Mapping[str, Any] = {}
    fields: Mapping[str, str] = {}
    allowed: Mapping[str, tuple[Any, ...]] = {}
    defaults: Mapping[str, Any] = {}
    norm: str = "rms_norm_eps"
    router: Literal["softmax", "sigmoid"] | None = None


class MegatronModels(DataRow):
    """The arguments of ``pretrain_gpt`` at a release, by what they stand for."""

    schema_version: Literal[1]
    release: str
    source: str
    families: dict[str, Family]
    refused: dict[str, str]
    neutral: dict[str, tuple[str, ...]]
    sizes: tuple[str, ...]
    fields: dict[str, str]
    allowed: dict[str, tuple[Any, ...]]

    @model_validator(mode="after")
    def _sorts_each_once(self) -> MegatronModels:
        if both := sorted(self.families.keys() & self.refused.keys()):
            raise ValueError(f"{both[0]!r} is in families and in refused")
        names = [*self.sizes, *self.fields, *self.allowed]
        names += [name for listed in self.neutral.values() for name in listed]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"{twice[0]!r} is listed twice")
        return self

    @property
    def wordless(self) -> frozenset[str]:
        return frozenset(self.sizes).union(*self.neutral.values())


@cache
def megatron_models() -> MegatronModels:
    """The file ``megatron.yaml``.

    Raises:
        InputError: naming what is wrong with it.
    """
    return MEGATRON.read_as(MegatronModels)
