"""Engines in trials on the real machine: options to vary, switches for equal outputs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from recipe_core.base.data_files import DataFile, DataTable
from recipe_core.base.provenance import Sourced
from recipe_core.engines.release import Cited
from recipe_core.engines.spec import Engine
from recipe_core.hardware.profile import Runtime

TUNING_FILE = Path(__file__).with_name("tuning.yaml")


class Tunable(Cited):
    """One option, by name, and its values in the order of their size."""

    option: str
    values: Annotated[tuple[Any, ...], Field(min_length=2, max_length=32)]
    runtimes: tuple[Runtime, ...]


class _TuningFile(Sourced):
    engines: Mapping[str, tuple[Tunable, ...]]


_TUNABLES = DataTable[tuple[Tunable, ...]](
    DataFile(TUNING_FILE, "engines"), _TuningFile, "engines", "engine"
)


def tunables(spec: Engine, runtime: str) -> tuple[Tunable, ...]:
    """The options of an engine's version that are worth varying on a runtime."""
    engine_tunables = _TUNABLES.rows.get(spec.name, ())
    return tuple(
        tunable
        for tunable in engine_tunables
        if runtime in tunable.runtimes and tunable.option in spec.options.by_name
    )


FILE = Path(__file__).with_name("reproducibility.yaml")


class Switch(Cited):
    """A switch that makes outputs repeat: variables and options, and where they work.

    ``batch``: whether answers then also do not depend on what else runs in the batch; else only the
    same request at the same time repeats. ``only_on``: of the architectures whose names begin alike
    (``gfx``), the only ones; ``not_on``:
    those that it does not work on.
    """

    name: str
    title: str
    environment: Mapping[str, str] = {}
    options: Mapping[str, Any] = {}
    batch: bool
    runtimes: tuple[Runtime, ...]
    only_on: tuple[str, ...] = ()
    not_on: tuple[str, ...] = ()

    def doubt(self, runtime: str, architecture: str) -> str | None:
        """Say why it does not work on a device; None where it does."""
        if runtime not in self.runtimes:
            return f"{self.title} works on {', '.join(self.runtimes)}, not on {runtime}"
        kin = [name for name in self.only_on if name[:3] == architecture[:3]]
        if architecture in self.not_on or (kin and architecture not in kin):
            return f"{self.title} does not work on {architecture}"
        return None


class Reproducibility(Cited):
    """The way outputs of an engine are asked for and compared.

    ``greedy`` and ``sampled``: fields of a request; null leaves one of the launch's out. ``ids``:
    fields by which an answer names tokens by number. ``most_logprobs``: alternatives whose
    logarithms of probabilities an answer tells, 0 for none. ``echo``: whether it also tells those
    of the prompt. ``refuses``: fields that requests must not have.
    """

    greedy: Mapping[str, Any]
    sampled: Mapping[str, Any]
    ids: Mapping[str, Any] = {}
    most_logprobs: Annotated[int, Field(ge=0, le=20)] = 0
    echo: bool = False
    refuses: tuple[str, ...] = ()
    switches: tuple[Switch, ...] = ()


class _File(Sourced):
    engines: Mapping[str, Reproducibility]


_TABLE = DataTable[Reproducibility](DataFile(FILE, "engines"), _File, "engines", "engine")


def reproducibility(engine: str) -> Reproducibility:
    """Return what is known of an engine; the plain OpenAI fields for one that the file lacks."""
    plain = Reproducibility(
        greedy={"temperature": 0},
        sampled={"temperature": 0.8, "top_p": 0.95},
        source="assumed",
        status="assumed",
    )
    return _TABLE.rows.get(engine, plain)
