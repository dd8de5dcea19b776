"""A Grafana dashboard of one recipe: latency, queue and cache of the engine, device metrics."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from recipe_core.engines.release import Metrics
from recipe_core.request.metrics import column_metric
from recipe_core.targets.monitoring.metrics import Exporter, engine_metrics, exporter
from recipe_core.targets.monitoring.rules import jobs, recorded, series
from recipe_core.targets.monitoring.thresholds import Thresholds, thresholds

if TYPE_CHECKING:  # targets ask for thresholds themselves
    from recipe_core.targets.context import Context

SCHEMA_VERSION = 39  # Grafana 10.4; later ones migrate it
WIDTH, HEIGHT, COLUMNS = 8, 8, 3
_SOURCE = {"type": "prometheus", "uid": "$datasource"}


def dashboard(context: Context) -> dict[str, Any]:
    """The dashboard's JSON model."""
    engine, devices = engine_metrics(context.engine), exporter(context.vendor)
    panels = [
        *(_engine(context, engine, thresholds(context)) if engine else []),
        *(_devices(context, devices) if devices else []),
    ]
    placed = [panel | {"id": n + 1, "gridPos": _place(n)} for n, panel in enumerate(panels)]
    variable = {
        "name": "datasource",
        "type": "datasource",
        "query": "prometheus",
        "label": "Data source",
        "hide": 0,
        "refresh": 1,
    }
    return {
        "uid": hashlib.sha256(context.name.encode()).hexdigest()[:12],
        "title": context.name,
        "tags": ["recipe-builder", context.engine],
        "timezone": "browser",
        "schemaVersion": SCHEMA_VERSION,
        "version": 1,
        "editable": True,
        "refresh": "15s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [variable]},
        "annotations": {"list": []},
        "panels": placed,
    }


def _engine(context: Context, m: Metrics, t: Thresholds) -> list[dict[str, Any]]:
    """Panels of what the engine reports, without those whose series it lacks."""
    serving, known = context.estimate["serving"], series(context, m)
    panels: list[dict[str, Any]] = []

    def add(
        title: str, unit: str, line: float | None, note: str, queries: dict[str, str], **more: float
    ) -> None:
        expressions = [
            (recorded(context, name), legend) for legend, name in queries.items() if name in known
        ]
        if expressions:
            panels.append(_panel(title, expressions, unit, line, note, **more))

    for name, t_limit in (("ttft", t.ttft), ("tpot", t.tpot)):
        note = f"Estimated {serving[f'{name}_s']:.4g} s; the line is {t_limit.basis}."
        queries = {"mean": f"{name}_seconds:mean", "95 %": f"{name}_seconds:p95"}
        add(column_metric(f"{name}_s").title, "s", t_limit.value, note, queries)
    note = f"Estimated {serving['output_tokens_per_s']:.4g} output tokens/s at full load."
    queries = {"output": "output_tokens_per_second", "prompt": "prompt_tokens_per_second"}
    add("Tokens per second", "short", t.tokens_per_s, note, queries)
    queries = {"running": "requests_running", "waiting": "requests_waiting"}
    add("Requests", "short", t.load, "The line is the load the recipe was computed for.", queries)
    add("Cache in use", "percentunit", t.kv_usage, "", {"fullest server": "kv_usage"}, top=1)
    return panels


def _devices(context: Context, e: Exporter) -> list[dict[str, Any]]:
    selector = f'{{job="{jobs(context)[1]}"}}'
    share = f"{e.memory_used}{selector} / ({e.memory_used}{selector} + {e.memory_free}{selector})"
    need_gib = context.estimate["memory"]["total_bytes"] / (1 << 30)
    memory = f"Estimated need {need_gib:.1f} GiB; engines fill the rest with cache."
    faults = "Device alerts that fire or are pending."
    return [
        _panel("Device memory", [(share, e.legend)], "percentunit", None, memory, top=1),
        _panel("Device use", [(f"{e.use}{selector}", e.legend)], "percent", None, "", top=100),
        _panel("Power", [(f"{e.power_w}{selector}", e.legend)], "watt", None, ""),
        _panel("Temperature", [(f"{e.temperature_c}{selector}", e.legend)], "celsius", None, ""),
        _panel("Faults", [(_alerts(e, selector), "{{alertname}}")], "short", None, faults),
    ]


def _alerts(e: Exporter, selector: str) -> str:
    names = "|".join([*(fault.alert for fault in e.faults), "DeviceThrottled", "DeviceMemoryFull"])
    return f'count by (alertname) (ALERTS{{alertname=~"{names}",{selector[1:-1]}}})'


def _panel(
    title: str,
    queries: list[tuple[str, str]],
    unit: str,
    line: float | None,
    note: str,
    top: float | None = None,
) -> dict[str, Any]:
    steps = [
        {"color": "green", "value": None},
        *([{"color": "red", "value": line}] if line is not None else []),
    ]
    style = {"custom": {"thresholdsStyle": {"mode": "line"}}} if line is not None else {}
    bounds = {"min": 0, **({"max": top} if top is not None else {})}
    return {
        "type": "timeseries",
        "title": title,
        "description": note,
        "datasource": _SOURCE,
        "fieldConfig": {
            "defaults": {
                "unit": unit,
                **bounds,
                "thresholds": {"mode": "absolute", "steps": steps},
                **style,
            },
            "overrides": [],
        },
        "options": {
            "legend": {"displayMode": "list", "placement": "bottom"},
            "tooltip": {"mode": "multi"},
        },
        "targets": _targets(queries),
    }


def _targets(queries: list[tuple[str, str]]) -> list[dict[str, Any]]:
    return [
        {
            "refId": chr(ord("A") + n),
            "expr": expression,
            "legendFormat": legend,
            "datasource": _SOURCE,
        }
        for n, (expression, legend) in enumerate(queries)
    ]


def _place(n: int) -> dict[str, int]:
    return {"h": HEIGHT, "w": WIDTH, "x": WIDTH * (n % COLUMNS), "y": HEIGHT * (n // COLUMNS)}
