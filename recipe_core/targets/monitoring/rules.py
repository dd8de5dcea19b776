"""Recording and alert rules of Prometheus for one recipe."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from recipe_core.engines.release import Metrics
from recipe_core.targets.monitoring.metrics import Exporter, engine_metrics, exporter
from recipe_core.targets.monitoring.thresholds import MEMORY, Threshold, Thresholds, thresholds

if TYPE_CHECKING:  # targets ask for thresholds themselves
    from recipe_core.targets.context import Context

WINDOW = "5m"
_TIMES = (("ttft", "time to first token"), ("tpot", "time per output token"))


def jobs(context: Context) -> tuple[str, str]:
    """Names of the two scrape jobs: the engine's and the devices'."""
    return context.name, f"{context.name}-devices"


def rules(context: Context) -> dict[str, Any]:
    """The rules file; groups of quantities that nobody exports are left out."""
    engine, devices = engine_metrics(context.engine), exporter(context.vendor)
    found = (
        [_recorded(context, engine), _engine_alerts(context, engine, thresholds(context))]
        if engine
        else []
    )
    return {"groups": [*found, *([_device_alerts(context, devices)] if devices else [])]}


def _selector(context: Context) -> str:
    return f'job="{jobs(context)[0]}"'


def recorded(context: Context, name: str) -> str:
    """A recorded series of this recipe, as a dashboard asks for it."""
    return f"recipe:{name}{{{_selector(context)}}}"


def series(context: Context, m: Metrics) -> dict[str, str]:
    """What is recorded, by name: what alerts, autoscaling and the dashboard all need, summed over the recipe's copies."""
    only = _selector(context)
    times = {
        name: metric for name, metric in (("ttft", m.ttft), ("tpot", m.tpot or m.itl)) if metric
    }
    found = {
        f"{name}_seconds:mean": _mean(metric, only, m.unit_s) for name, metric in times.items()
    }
    found |= {
        f"{name}_seconds:p95": _quantile(0.95, metric, only, m.unit_s)
        for name, metric in times.items()
    }
    rates = {
        "output_tokens_per_second": m.output_tokens,
        "prompt_tokens_per_second": m.prompt_tokens,
    }
    found |= {
        name: f"sum by (job) (rate({metric}{{{only}}}[{WINDOW}]))"
        for name, metric in rates.items()
        if metric
    }
    gauges = {
        "requests_waiting": ("sum", m.waiting),
        "requests_running": ("sum", m.running),
        "kv_usage": ("max", m.kv_usage),
    }
    return found | {
        name: f"{how} by (job) ({metric}{{{only}}})"
        for name, (how, metric) in gauges.items()
        if metric
    }


def _recorded(context: Context, m: Metrics) -> dict[str, Any]:
    records = [
        {"record": f"recipe:{name}", "expr": expression}
        for name, expression in series(context, m).items()
    ]
    return {"name": f"{context.name}-recorded", "interval": "15s", "rules": records}


def _mean(histogram: str, only: str, unit_s: float) -> str:
    total, count = (
        f"sum by (job) (rate({histogram}_{part}{{{only}}}[{WINDOW}]))" for part in ("sum", "count")
    )
    return f"{total} / {count}{_seconds(unit_s)}"


def _quantile(quantile: float, histogram: str, only: str, unit_s: float) -> str:
    return f"histogram_quantile({quantile:g}, sum by (job, le) (rate({histogram}_bucket{{{only}}}[{WINDOW}]))){_seconds(unit_s)}"


def _seconds(unit_s: float) -> str:
    return "" if unit_s == 1 else f" * {unit_s:g}"


def _engine_alerts(context: Context, m: Metrics, t: Thresholds) -> dict[str, Any]:
    """Alerts on what the engine reports."""
    known = series(context, m)
    alerts = [
        _alert(
            "RecipeDown",
            f"up{{{_selector(context)}}} == 0",
            "1m",
            "critical",
            "{{$labels.instance}} does not answer",
        )
    ]
    for name, words in _TIMES:
        if f"{name}_seconds:mean" in known:
            alerts.append(_slow(context, m, name, words, getattr(t, name)))
    if m.waiting:
        alerts.append(_queue(context, m.waiting, t.waiting))
    if m.kv_usage:
        text = "{{$value | humanizePercentage}} of the cache is in use; requests are about to be preempted"
        alerts.append(
            _alert(
                "RecipeKvCacheFull",
                f"{recorded(context, 'kv_usage')} > {t.kv_usage:g}",
                "5m",
                "warning",
                text,
            )
        )
    if m.running and m.output_tokens and t.load:
        alerts.append(_throughput(context, t))
    return {"name": f"{context.name}-serving", "rules": alerts}


def _queue(context: Context, waiting: str, most: int) -> dict[str, Any]:
    """Requests that wait, by server."""
    each = f"{recorded(context, 'requests_waiting')} / on (job) count by (job) ({waiting}{{{_selector(context)}}})"
    text = (
        f"{{{{$value | humanize}}}} requests wait on each server; the recipe expects at most {most}"
    )
    return _alert("RecipeQueue", f"{each} > {most}", "5m", "warning", text)


def _throughput(context: Context, t: Thresholds) -> dict[str, Any]:
    """Less than the estimate although there is the load that it was made for."""
    slow = f"{recorded(context, 'output_tokens_per_second')} < {t.tokens_per_s:.6g}"
    busy = f"{recorded(context, 'requests_running')} >= {t.load}"
    text = f"{{{{$value | humanize}}}} output tokens/s at full load; the low end of the estimate is {t.tokens_per_s:.4g}"
    return _alert("RecipeThroughputLow", f"{slow} and {busy}", "10m", "warning", text)


def _slow(context: Context, m: Metrics, name: str, words: str, t: Threshold) -> dict[str, Any]:
    histogram = m.ttft if name == "ttft" else m.tpot or m.itl
    mean = recorded(context, f"{name}_seconds:mean")
    measured = (
        mean
        if t.quantile is None
        else _quantile(t.quantile, str(histogram), _selector(context), m.unit_s)
    )
    statistic = "mean" if t.quantile is None else f"{100 * t.quantile:g} % quantile of"
    text = f"{statistic} {words} is {{{{$value | humanizeDuration}}}}; above {t.basis}"
    return _alert(
        f"Recipe{name.capitalize()}High", f"{measured} > {t.value:g}", "5m", "warning", text
    )


def _device_alerts(context: Context, e: Exporter) -> dict[str, Any]:
    only = f'job="{jobs(context)[1]}"'
    used = f"{e.memory_used}{{{only}}} / ({e.memory_used}{{{only}}} + {e.memory_free}{{{only}}})"
    throttled = " or ".join(expression.replace("%s", only) for expression in e.throttled)
    faults = [
        _alert(f.alert, f.when.replace("%s", only), "0m", f.severity, f"{e.device} {f.says}")
        for f in e.faults
    ]
    return {
        "name": f"{context.name}-devices",
        "rules": [
            _alert(
                "DeviceMemoryFull",
                f"{used} > {MEMORY}",
                "10m",
                "warning",
                f"{e.device}: memory is {{{{$value | humanizePercentage}}}} full",
            ),
            _alert(
                "DeviceThrottled", throttled, "5m", "warning", f"{e.device} is slowed down by heat"
            ),
            *faults,
        ],
    }


def _alert(name: str, expression: str, wait: str, severity: str, text: str) -> dict[str, Any]:
    return {
        "alert": name,
        "expr": expression,
        "for": wait,
        "labels": {"severity": severity},
        "annotations": {"summary": text},
    }
