"""Names of metrics by engine and device exporter: ``metrics.yaml`` as typed objects."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from recipe_core.documents import read_document


class _Data(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Source(_Data):
    """Where names were read."""

    title: str
    url: str


class EngineMetrics(_Data):
    """Histograms (``ttft``, ``tpot``, ``itl``), gauges (``waiting``, ``running``: requests; ``kv_usage``: 0 to 1), else counters.

    None where an engine does not report one. ``port``: where it is asked, if not where requests are; ``unit_s``: of times.
    """

    source: str
    path: str = "/metrics"
    port: int | None = None
    unit_s: float = 1.0
    ttft: str | None = None
    tpot: str | None = None
    itl: str | None = None
    waiting: str | None = None
    running: str | None = None
    kv_usage: str | None = None
    prompt_tokens: str | None = None
    output_tokens: str | None = None
    needs: dict[str, Any] = {}


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


class Metrics(_Data):
    """The whole file."""

    schema_version: Literal[1]
    sources: dict[str, Source]
    engines: dict[str, EngineMetrics]
    exporters: dict[str, Exporter]


@cache
def _metrics() -> Metrics:
    return Metrics.model_validate(read_document(Path(__file__).with_name("metrics.yaml")))


def engine_metrics(engine: str) -> EngineMetrics | None:
    """What an engine calls its quantities; None where that is not known."""
    return _metrics().engines.get(engine)


def exporter(vendor: str) -> Exporter | None:
    """What a vendor's exporter calls them; None where there is none."""
    return _metrics().exporters.get(vendor)
