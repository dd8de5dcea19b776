"""What models of the catalog compute beside their sizes: ``constants.yaml``."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any, Literal

from pydantic import model_validator

from recipe_core.base.data_files import DataFile, DataRow
from recipe_core.base.errors import ModelError
from recipe_core.base.provenance import Source

CONSTANTS = DataFile(Path(__file__).with_name("constants.yaml"), "model", ModelError)


class ConstantsGroup(DataRow):
    """Models, by id or alias, that share these fields of their ``config.json``."""

    models: tuple[str, ...]
    config: dict[str, Any]
    source: str


class _File(DataRow):
    schema_version: Literal[1]
    sources: dict[str, Source]
    groups: tuple[ConstantsGroup, ...]

    @model_validator(mode="after")
    def _names_each_once(self) -> _File:
        names = [name.casefold() for group in self.groups for name in group.models]
        if len(set(names)) < len(names):
            twice = sorted({name for name in names if names.count(name) > 1})
            raise ValueError(f"{twice[0]!r} is listed twice")
        for group in self.groups:
            if group.source not in self.sources:
                raise ValueError(f"source {group.source!r} is not listed under sources")
        return self


@cache
def model_constants() -> dict[str, dict[str, Any]]:
    """Fields by the casefolded id or alias of a model.

    Raises:
        ModelError: naming what is wrong with the file.
    """
    groups = CONSTANTS.read_as(_File).groups
    return {name.casefold(): group.config for group in groups for name in group.models}
