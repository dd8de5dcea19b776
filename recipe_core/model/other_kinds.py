"""Published models that make no text and no embeddings, as data: ``other_kinds.yaml``."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from recipe_core.base.data_files import DataFile
from recipe_core.base.errors import ModelError


class OtherKind(BaseModel):
    """What some models make, why that is not modelled, and their ids."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)
    makes: str
    why: str
    models: tuple[str, ...]


class _File(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)
    schema_version: Literal[1]
    kinds: dict[str, OtherKind]


@cache
def other_kinds() -> dict[str, OtherKind]:
    """Every kind by its name."""
    path = Path(__file__).with_name("other_kinds.yaml")
    return DataFile(path, "model", ModelError).read_as(_File).kinds


@cache
def _by_id() -> dict[str, OtherKind]:
    return {name.casefold(): kind for kind in other_kinds().values() for name in kind.models}


def other_kind(model_id: str) -> OtherKind | None:
    """What a model makes instead of text; None for one that is not known to."""
    return _by_id().get(model_id.casefold())
