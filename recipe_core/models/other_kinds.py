"""Published models that are not modelled, as data: ``other_kinds.yaml``."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Literal

from pydantic import model_validator

from recipe_core.base.data_files import DataFile, DataRow
from recipe_core.base.errors import ModelError
from recipe_core.models.config.read import not_modelled


class OtherKind(DataRow):
    """What some models make, why that is not modelled, and their ids."""

    makes: str
    why: str
    models: tuple[str, ...]


class _File(DataRow):
    schema_version: Literal[1]
    kinds: dict[str, OtherKind]
    architectures: dict[str, str]

    @model_validator(mode="after")
    def _is_refused(self) -> _File:
        if odd := sorted(set(self.architectures) - set(not_modelled())):
            raise ValueError(f"architectures: {odd[0]!r} is no field that is refused")
        return self


@cache
def _other_kinds_file() -> _File:
    path = Path(__file__).with_name("other_kinds.yaml")
    return DataFile(path, "model", ModelError).read_as(_File)


def other_kinds() -> dict[str, OtherKind]:
    return _other_kinds_file().kinds


def unmodelled_feature(model_id: str) -> str | None:
    """What of a model's architecture is not modelled, by its name: ``…layers are``; else None.

    Names are all that is known of a model whose ``config.json`` is not at hand.
    """
    name = model_id.rpartition("/")[2]
    for field, names in _other_kinds_file().architectures.items():
        if re.fullmatch(names, name, re.IGNORECASE):
            return not_modelled()[field]
    return None


@cache
def _by_id() -> dict[str, OtherKind]:
    return {name.casefold(): kind for kind in other_kinds().values() for name in kind.models}


def other_kind(model_id: str) -> OtherKind | None:
    """What a model makes instead of text; None for one that is not known to."""
    return _by_id().get(model_id.casefold())
