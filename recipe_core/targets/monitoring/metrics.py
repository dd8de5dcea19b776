"""Names of metrics: the engines' own, from their data, and those of device exporters, ``exporters.yaml``."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from recipe_core.base.documents import read_shipped
from recipe_core.base.provenance import Sourced
from recipe_core.engines.release import Metrics
from recipe_core.engines.spec import engine, engine_names


class _Data(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)


class Fault(_Data):
    """An alert of a device; ``says`` follows the device's name."""

    alert: str
    when: str
    severity: Literal["warning", "critical"]
    says: str


class Exporter(_Data):
    """Gauges by device. Memory in MiB or MB: only ratios are used.

    In ``throttled`` and the conditions of ``faults``, ``%s`` stands for the selector of the recipe's devices.
    ``device`` and ``legend`` name one in alerts and charts. ``counters``: rows of the exporter's own configuration.
    """

    source: str
    title: str
    port: int
    device: str
    legend: str
    memory_used: str
    memory_free: str
    use: str
    power_w: str
    temperature_c: str
    throttled: tuple[str, ...]
    faults: tuple[Fault, ...]
    counters: tuple[tuple[str, str, str], ...] = ()


class Exporters(Sourced):
    """The whole file, by vendor."""

    exporters: dict[str, Exporter]


@cache
def _exporters() -> dict[str, Exporter]:
    return Exporters.model_validate(
        read_shipped(Path(__file__).with_name("exporters.yaml"))
    ).exporters


def engine_metrics(name: str) -> Metrics | None:
    """What an engine calls its quantities; None where that is not known."""
    return engine(name).metrics if name in engine_names() else None


def exporter(vendor: str) -> Exporter | None:
    """What a vendor's exporter calls them; None where there is none."""
    return _exporters().get(vendor)
