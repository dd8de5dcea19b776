"""Recording and alerting rules of Prometheus for one recipe."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from recipe_core.engines.release import Metrics
from recipe_core.recipe.expected import is_pooled_estimate
from recipe_core.request.metrics import column_metric
from recipe_core.targets.monitoring.thresholds import (
    MEMORY,
    Exporter,
    Threshold,
    Thresholds,
    alert_thresholds,
    device_exporter,
    engine_metrics,
)
from recipe_core.targets.supervise import prometheus_duration

if TYPE_CHECKING:  # targets ask for thresholds themselves
    from recipe_core.targets.context import Context

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
