"""Alert thresholds, and the recording and alerting rules of Prometheus for one recipe.

All times in seconds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from recipe_core.base.data_files import DataRow
from recipe_core.base.documents import read_shipped
from recipe_core.base.provenance import Sourced
from recipe_core.engines.release import Metrics
from recipe_core.engines.spec import engine, engine_names
from recipe_core.estimates.serving.cold_start import cold_start
from recipe_core.hardware.cluster import device_names, device_profile
from recipe_core.recipe.figures import is_pooled_estimate
from recipe_core.request.metrics import column_metric
from recipe_core.targets.supervise import prometheus_duration

if TYPE_CHECKING:
    from recipe_core.targets.context import Context


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
MEMORY = 0.985  # engines fill a device on purpose; the rest is the driver's
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
        begins = begins.model_copy(update={"weights": "nvme"})
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


WINDOW = "5m"


def scrape_job_names(context: Context) -> tuple[str, str]:
    """Names of the two scrape jobs: the engine's and the devices'."""
    return context.name, f"{context.name}-devices"


def prometheus_rules(context: Context) -> dict[str, Any]:
    """The rules file, without groups of metrics that neither engine nor exporter has."""
    engine, devices = engine_metrics(context.engine), device_exporter(context.vendor)
    groups = []
    if engine:
        groups.append(_recording_rules(context, engine))
        groups.append(_engine_alerts(context, engine, alert_thresholds(context)))
    if devices:
        groups.append(_device_alerts(context, devices))
    return {"groups": groups}


def _job_selector(context: Context) -> str:
    return f'job="{scrape_job_names(context)[0]}"'


def recorded_series(context: Context, name: str) -> str:
    return f"recipe:{name}{{{_job_selector(context)}}}"


def recorded_expressions(context: Context, m: Metrics) -> dict[str, str]:
    """Recorded expressions by name, over all copies, for alerts and the dashboard."""
    selector, times = _job_selector(context), {"ttft": m.ttft, "tpot": m.tpot or m.itl}
    output_tokens, expressions = m.output_tokens, {}
    if is_pooled_estimate(context.estimate):  # a vector or a score has no tokens to time
        times, output_tokens = {}, None
    for name, metric in times.items():
        if metric:
            expressions[f"{name}_seconds:mean"] = _mean_expression(metric, selector, m.unit_s)
    for name, metric in times.items():
        if metric:
            expressions[f"{name}_seconds:p95"] = _quantile_expression(
                0.95, metric, selector, m.unit_s
            )
    for name, metric in (
        ("output_tokens_per_second", output_tokens),
        ("prompt_tokens_per_second", m.prompt_tokens),
    ):
        if metric:
            expressions[name] = f"sum by (job) (rate({metric}{{{selector}}}[{WINDOW}]))"
    for name, statistic, metric in (
        ("requests_waiting", "sum", m.waiting),
        ("requests_running", "sum", m.running),
        ("kv_usage", "max", m.kv_usage),
    ):
        if metric:
            expressions[name] = f"{statistic} by (job) ({metric}{{{selector}}})"
    return expressions


def _recording_rules(context: Context, m: Metrics) -> dict[str, Any]:
    records = [
        {"record": f"recipe:{name}", "expr": expression}
        for name, expression in recorded_expressions(context, m).items()
    ]
    return {"name": f"{context.name}-recorded", "interval": "15s", "rules": records}


def _mean_expression(histogram: str, selector: str, unit_s: float) -> str:
    total, count = (
        f"sum by (job) (rate({histogram}_{part}{{{selector}}}[{WINDOW}]))"
        for part in ("sum", "count")
    )
    return f"{total} / {count}{_seconds_factor(unit_s)}"


def _quantile_expression(quantile: float, histogram: str, selector: str, unit_s: float) -> str:
    buckets = f"sum by (job, le) (rate({histogram}_bucket{{{selector}}}[{WINDOW}]))"
    return f"histogram_quantile({quantile:g}, {buckets}){_seconds_factor(unit_s)}"


def _seconds_factor(unit_s: float) -> str:
    return "" if unit_s == 1 else f" * {unit_s:g}"


def _engine_alerts(context: Context, m: Metrics, t: Thresholds) -> dict[str, Any]:
    expressions, silent = (
        recorded_expressions(context, m),
        prometheus_duration(context.supervision.hang_s),
    )
    down, text = f"up{{{_job_selector(context)}}} == 0", "{{$labels.instance}} does not answer"
    alerts = [_alert_rule("RecipeDown", down, silent, "critical", text)]
    alerts += [
        _latency_alert(context, m, name, column_metric(f"{name}_s").label, getattr(t, name))
        for name in ("ttft", "tpot")
        if f"{name}_seconds:mean" in expressions
    ]
    if m.waiting:
        alerts.append(_queue_alert(context, m.waiting, t.waiting))
    if m.kv_usage:
        full = f"{recorded_series(context, 'kv_usage')} > {t.kv_usage:g}"
        usage_text = "{{$value | humanizePercentage}} of the KV cache is in use"
        text = f"{usage_text}; preemption of requests is imminent"
        alerts.append(_alert_rule("RecipeKvCacheFull", full, "5m", "warning", text))
    if m.running and t.load and "output_tokens_per_second" in expressions:
        alerts.append(_throughput_alert(context, t))
    return {"name": f"{context.name}-serving", "rules": alerts}


def _queue_alert(context: Context, waiting: str, limit: int) -> dict[str, Any]:
    """An alert on the mean queue length of the servers."""
    servers = f"count by (job) ({waiting}{{{_job_selector(context)}}})"
    queue = f"{recorded_series(context, 'requests_waiting')} / on (job) {servers}"
    text = (
        f"{{{{$value | humanize}}}} requests queue per server; the recipe expects at most {limit}"
    )
    return _alert_rule("RecipeQueue", f"{queue} > {limit}", "5m", "warning", text)


def _throughput_alert(context: Context, t: Thresholds) -> dict[str, Any]:
    """An alert on less than the estimate at the load that it was made for."""
    slow = f"{recorded_series(context, 'output_tokens_per_second')} < {t.tokens_per_s:.6g}"
    busy = f"{recorded_series(context, 'requests_running')} >= {t.load}"
    text = (
        "{{$value | humanize}} output tokens/s at full load; "
        f"the low end of the estimate is {t.tokens_per_s:.4g}"
    )
    return _alert_rule("RecipeThroughputLow", f"{slow} and {busy}", "10m", "warning", text)


def _latency_alert(
    context: Context, m: Metrics, name: str, words: str, t: Threshold
) -> dict[str, Any]:
    histogram = m.ttft if name == "ttft" else m.tpot or m.itl
    measured, statistic = recorded_series(context, f"{name}_seconds:mean"), "mean"
    if t.quantile is not None:
        measured = _quantile_expression(
            t.quantile, str(histogram), _job_selector(context), m.unit_s
        )
        statistic = f"{100 * t.quantile:g} % quantile of"
    text = f"{statistic} {words} is {{{{$value | humanizeDuration}}}}; above {t.basis}"
    high = f"{measured} > {t.value:g}"
    wait = prometheus_duration(context.supervision.slow_s)
    return _alert_rule(f"Recipe{name.capitalize()}High", high, wait, "warning", text)


def _device_alerts(context: Context, e: Exporter) -> dict[str, Any]:
    job = f'job="{scrape_job_names(context)[1]}"'
    full = f"{e.memory_used}{{{job}}} / ({e.memory_used}{{{job}}} + {e.memory_free}{{{job}}})"
    text = f"{e.device}: memory is {{{{$value | humanizePercentage}}}} full"
    hot = " or ".join(expression.replace("%s", job) for expression in e.throttled)
    alerts = [
        _alert_rule("DeviceMemoryFull", f"{full} > {MEMORY}", "10m", "warning", text),
        _alert_rule("DeviceThrottled", hot, "5m", "warning", f"{e.device} throttles: too hot"),
    ]
    for fault in e.faults:
        expression, text = fault.when.replace("%s", job), f"{e.device} {fault.says}"
        alerts.append(_alert_rule(fault.alert, expression, "0m", fault.severity, text))
    return {"name": f"{context.name}-devices", "rules": alerts}


def _alert_rule(name: str, expression: str, wait: str, severity: str, text: str) -> dict[str, Any]:
    return {
        "alert": name,
        "expr": expression,
        "for": wait,
        "labels": {"severity": severity},
        "annotations": {"summary": text},
    }
