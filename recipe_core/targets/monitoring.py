"""Monitoring of a recipe: thresholds, rules and scrapes of Prometheus, a dashboard of Grafana.

Thresholds are the recipe's limits, else the far end of the estimate's band; all times in seconds.
Engines' metric names are data of ``engines``, device exporters' are in ``exporters.yaml``, and the
pack's files are templates in ``monitoring.yaml``.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from recipe_core.base.data_files import DataRow
from recipe_core.base.documents import read_shipped, to_json, to_yaml
from recipe_core.base.errors import NoAnswer
from recipe_core.base.provenance import Sourced
from recipe_core.engines.release import Metrics
from recipe_core.engines.spec import engine, engine_names
from recipe_core.estimates.serving.cold_start import cold_start
from recipe_core.hardware.cluster import device_names, device_profile
from recipe_core.launch.templates import fill_template, read_templates
from recipe_core.recipe.figures import is_pooled_estimate
from recipe_core.request.metrics import column_metric
from recipe_core.targets.context import Context
from recipe_core.targets.pod import label_name, object_name
from recipe_core.targets.supervise import prometheus_duration

PACK = Path(__file__).with_name("monitoring.yaml")


class Fault(DataRow):
    """An alert of a device; ``says`` follows the device's name."""

    alert: str
    when: str
    severity: Literal["warning", "critical"]
    says: str


class Exporter(DataRow):
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


QUEUED_SHARE = 0.1  # of the load the recipe was computed for may queue without harm
KV_USAGE = 0.95  # preemption is near above this; raised where the estimate itself needs more
KV_SCALE = 0.8  # another copy starts here, so that it is ready before the cache is full
WARM_UP_S = (120, 1800)  # bounds of what autoscalers are told, whatever a start is estimated at


@dataclass(frozen=True, slots=True)
class Threshold:
    """A value in seconds, the statistic it bounds (None: the mean, else a quantile), its basis."""

    value: float
    quantile: float | None
    basis: str


@dataclass(frozen=True, slots=True)
class Thresholds:
    """``kv_usage`` as a share, ``waiting`` and ``load`` in requests, ``tokens_per_s`` of output."""

    ttft: Threshold
    tpot: Threshold
    kv_usage: float
    waiting: int
    load: int | None
    tokens_per_s: float


def alert_thresholds(context: Context) -> Thresholds:
    """The thresholds of a serving recipe; its workload's load is the full one."""
    load = context.workload.get("concurrency") or context.workload.get("batch")
    memory = context.estimate["memory"]
    pool = memory.get("kv_cache_bytes") or math.inf
    concurrency = load or memory.get("max_concurrency") or 1
    return Thresholds(
        ttft=_latency_threshold(context, "ttft"),
        tpot=_latency_threshold(context, "tpot"),
        kv_usage=round(min(0.99, max(KV_USAGE, memory.get("kv_needed_bytes", 0) / pool)), 3),
        waiting=max(1, round(QUEUED_SHARE * concurrency)),
        load=load,
        tokens_per_s=context.estimate["bands"]["output_tokens_per_s"][0],
    )


def warm_up_s(context: Context) -> int:
    """Seconds until a new copy answers: the middle of its cold start, within bounds."""
    shortest, longest = WARM_UP_S
    begins = context.start
    if begins.weights is None and context.model_is_folder:  # nothing is downloaded then
        begins = begins.model_copy(update={"weights": "disk"})
    is_shipped = context.device in device_names()
    start = cold_start(
        begins,
        engine=context.engine,
        weights_bytes=context.weights_bytes,
        devices=context.nodes * context.devices_per_node,
        nodes=context.nodes,
        device=device_profile(context.device) if is_shipped else None,
        weight_dtype=context.weight_dtype,
    )
    return round(min(longest, max(shortest, start.seconds)))


def _latency_threshold(context: Context, name: str) -> Threshold:
    limit, percentile = context.limits.get(f"{name}_ms"), context.limits.get("percentile")
    if limit:
        quantile = percentile / 100 if percentile else None
        return Threshold(limit / 1e3, quantile, f"the recipe's limit, {limit:g} ms")
    bands = context.estimate["bands"]
    # a vector or a score has no time per token; none of its series is recorded either
    figure = f"{name}_s" if f"{name}_s" in bands else "request_latency_s"
    high = bands[figure][1]
    return Threshold(round(high, 4), None, f"the upper end of the estimate, {1e3 * high:.4g} ms")


def scrape_job_names(context: Context) -> tuple[str, str]:
    """Names of the two scrape jobs: the engine's and the devices'."""
    return context.name, f"{context.name}-devices"


def make_part(kind: str, values: Mapping[str, Any]) -> Any:
    """A file of the pack, or a part of one, by its name in ``monitoring.yaml``."""
    return fill_template(read_templates(PACK)[kind], values)


def prometheus_rules(context: Context) -> dict[str, Any]:
    """The rules file, without groups of metrics that neither engine nor exporter has."""
    return dict(make_part("rules", monitoring_values(context)))


def monitoring_values(context: Context) -> dict[str, Any]:
    """Values of the pack's templates: names of metrics, thresholds, words; None for what is not."""
    engine, devices = engine_metrics(context.engine), device_exporter(context.vendor)
    job, device_job = (f'job="{name}"' for name in scrape_job_names(context))
    values: dict[str, Any] = {
        "name": context.name,
        "engine": engine,
        "devices": devices,
        "job": job,
        "device_job": device_job,
        "hang": prometheus_duration(context.supervision.hang_s),
        "slow": prometheus_duration(context.supervision.slow_s),
    }
    if engine:
        values |= _engine_values(context, engine, job)
    if devices:
        values |= _device_values(devices, device_job)
    return values


def _engine_values(context: Context, m: Metrics, job: str) -> dict[str, Any]:
    limits, timed = alert_thresholds(context), not is_pooled_estimate(context.estimate)
    # a vector or a score has no tokens to time
    metrics = {"ttft": m.ttft, "tpot": m.tpot or m.itl, "output_tokens": m.output_tokens}
    values: dict[str, Any] = {
        **{name: (metric or None) if timed else None for name, metric in metrics.items()},
        **{
            name: getattr(m, name) or None
            for name in ("prompt_tokens", "waiting", "running", "kv_usage")
        },
        "job": job,
        "factor": "" if m.unit_s == 1 else f" * {m.unit_s:g}",
        "waiting_limit": limits.waiting,
        "kv_limit": limits.kv_usage,
        "load": limits.load,
        "tokens_per_s": limits.tokens_per_s,
    }
    for figure, limit in (("ttft", limits.ttft), ("tpot", limits.tpot)):
        facts = {**values, "figure": figure, "metric": values[figure], "quantile": limit.quantile}
        kind = "mean" if limit.quantile is None else "quantile"
        facts["percentage"] = 100 * (limit.quantile or 0)
        if values[figure]:
            statistic, measured = make_part(f"latency-{kind}", facts)
            values |= {f"{figure}_statistic": statistic, f"{figure}_measured": measured}
        column = column_metric(f"{figure}_s")
        values |= {f"{figure}_words": column.label, f"{figure}_title": column.title}
        values |= {f"{figure}_limit": limit.value, f"{figure}_basis": limit.basis}
    values["records"] = [
        {"record": f"recipe:{name}", "expr": expression}
        for name, expression in make_part("records", values).items()
    ]
    return values


def _device_values(e: Exporter, job: str) -> dict[str, Any]:
    conditions = [
        {**fault.model_dump(), "when": fault.when.replace("%s", job)} for fault in e.faults
    ]
    alerts = [*(fault.alert for fault in e.faults), "DeviceThrottled", "DeviceMemoryFull"]
    return {
        **e.model_dump(),
        "exporter_port": e.port,
        "hot": " or ".join(expression.replace("%s", job) for expression in e.throttled),
        "fault_names": "|".join(alerts),
        "faults": [
            make_part("fault", {**fault, "expression": fault["when"], "device": e.device})
            for fault in conditions
        ],
    }


FOLDER = "monitoring"
SIZE, COLUMNS = 8, 3  # of a panel, in units of Grafana's grid


def monitoring_files(context: Context) -> dict[str, str]:
    """Files of the pack by path in the bundle.

    Raises:
        NoAnswer: where neither the engine's nor the devices' metrics are known.
    """
    engine, devices = engine_metrics(context.engine), device_exporter(context.vendor)
    if engine is None and devices is None:
        raise NoAnswer(
            f"the metrics of {context.engine} and of {context.vendor} devices are not known."
        )
    values = {**monitoring_values(context), **_scrape_values(context, engine)}
    values |= {"panels": _panels({**values, **_estimated_values(context)})}
    kinds = ("prometheus", "prometheus-kubernetes", "rules")
    files = {f"{kind}.yaml": to_yaml(make_part(kind, values)) for kind in kinds}
    files["dashboard.json"] = to_json(make_part("dashboard", values))
    if devices and devices.counters:
        files["device-counters.csv"] = "".join(", ".join(row) + "\n" for row in devices.counters)
    return {f"{FOLDER}/{name}": text for name, text in files.items()}


def _scrape_values(context: Context, engine: Metrics | None) -> dict[str, Any]:
    """Return where metrics are found, and what a dashboard is called.

    On machines at the engine's port on the first node, or each server's; a router has others.
    """
    processes, host, metrics_port = (
        context.launch.processes,
        context.parameters.host,
        engine.port if engine else None,
    )
    servers = [p for p in processes if p.answers and p.role != "router" and p.node == 0]
    ports = (
        [metrics_port]
        if metrics_port
        else [context.parameters.port + p.port_offset for p in servers]
    )
    return {
        "uid": hashlib.sha256(context.name.encode()).hexdigest()[:12],
        "engine_name": context.engine,
        "host": host,
        "path": engine.path if engine else None,
        "servers": [f"{host}:{port}" for port in ports],
        # the key, from a file that whoever runs Prometheus writes, where figures need it too
        "guarded": context.key_variable and context.api_key and context.api_key.guards_metrics,
        "namespace": context.parameters.namespace,
        "pod_name": object_name(context),
        "metrics_port": metrics_port,
        "routers": "|".join(label_name(p.name) for p in processes if p.role == "router") or None,
    }


def _estimated_values(context: Context) -> dict[str, Any]:
    serving, memory = context.estimate["serving"], context.estimate["memory"]
    return {
        "ttft_s": serving.get("ttft_s"),
        "tpot_s": serving.get("tpot_s"),
        "estimated_tokens_per_s": serving.get("output_tokens_per_s"),
        "need_gib": memory["total_bytes"] / (1 << 30),
    }


def _panels(values: dict[str, Any]) -> list[dict[str, Any]]:
    """Panels of what engine and devices report, without those whose series they lack."""
    recorded = {record["record"].removeprefix("recipe:") for record in values.get("records", ())}
    panels: list[dict[str, Any]] = []
    for row in make_part("panels", values):
        queries = row.get("queries", {}) | {
            legend: f"recipe:{name}{{{values['job']}}}"
            for legend, name in row.get("recorded", {}).items()
            if name in recorded
        }
        targets = [
            make_part(
                "target", {"letter": chr(ord("A") + n), "expression": query, "legend": legend}
            )
            for n, (legend, query) in enumerate(queries.items())
        ]
        if targets:
            number = len(panels)
            place = {
                "number": number + 1,
                "column": SIZE * (number % COLUMNS),
                "row": SIZE * (number // COLUMNS),
            }
            facts = {"line": None, "top": None, **row, **place, "targets": targets}
            panels.append(make_part("panel", {**facts, "lined": facts["line"] is not None}))
    return panels
