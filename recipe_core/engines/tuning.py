"""Options of engines that a search on the real machine varies: ``tuning.yaml``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from recipe_core.base.data_files import DataFile, DataRow, DataTable
from recipe_core.base.provenance import Sourced, Status
from recipe_core.engines.spec import Engine
from recipe_core.hardware.profile import Runtime

FILE = Path(__file__).with_name("tuning.yaml")


class Tunable(DataRow):
    """One option, by name, and its values in the order of their size."""

    option: str
    values: Annotated[tuple[Any, ...], Field(min_length=2, max_length=32)]
    runtimes: tuple[Runtime, ...]
    source: str
    status: Status


class _File(Sourced):
    engines: Mapping[str, tuple[Tunable, ...]]


_TABLE = DataTable[tuple[Tunable, ...]](DataFile(FILE, "engines"), _File, "engines", "engine")


def tunables(spec: Engine, runtime: str) -> tuple[Tunable, ...]:
    """The options of an engine's version that are worth varying on a runtime."""
    engine_tunables = _TABLE.rows.get(spec.name, ())
    return tuple(
        tunable
        for tunable in engine_tunables
        if runtime in tunable.runtimes and tunable.option in spec.options.by_name
    )
