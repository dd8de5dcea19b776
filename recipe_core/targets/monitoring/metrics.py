"""Names of metrics: engines' from their data, device exporters' from ``exporters.yaml``."""

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
    """Gauges per device. Memory is in MiB or MB: only ratios are used.

    In ``throttled`` and the conditions of ``faults``, ``%s`` is the selector of the recipe's
    devices. ``device`` and ``legend`` name one in alerts and charts. ``counters``: rows of the
    exporter's configuration.
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
    """The content of ``exporters.yaml``, by vendor."""

    exporters: dict[str, Exporter]


@cache
def _device_exporters() -> dict[str, Exporter]:
    return Exporters.model_validate(
        read_shipped(Path(__file__).with_name("exporters.yaml"))
    ).exporters


def engine_metrics(name: str) -> Metrics | None:
    """An engine's metric names; None where they are not known."""
    return engine(name).metrics if name in engine_names() else None


def device_exporter(vendor: str) -> Exporter | None:
    """The metric names of a vendor's device exporter; None where it has none."""
    return _device_exporters().get(vendor)
