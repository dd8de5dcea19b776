"""A Grafana dashboard of one recipe: latency, queue and cache of the engine, device metrics."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from recipe_core.engines.release import Metrics
from recipe_core.request.metrics import column_metric
from recipe_core.targets.monitoring.rules import (
    recorded_expressions,
    recorded_series,
    scrape_job_names,
)
from recipe_core.targets.monitoring.thresholds import (
    Exporter,
    Thresholds,
    alert_thresholds,
    device_exporter,
    engine_metrics,
)

if TYPE_CHECKING:  # targets ask for thresholds themselves
    from recipe_core.targets.context import Context

SCHEMA_VERSION = 39  # Grafana 10.4; later ones migrate it
WIDTH, HEIGHT, COLUMNS = 8, 8, 3
_SOURCE = {"type": "prometheus", "uid": "$datasource"}


def grafana_dashboard(context: Context) -> dict[str, Any]:
    """The dashboard's JSON model."""
    engine, devices = engine_metrics(context.engine), device_exporter(context.vendor)
    panels = [
        *(_engine_panels(context, engine, alert_thresholds(context)) if engine else []),
        *(_device_panels(context, devices) if devices else []),
    ]
    placed = [
        panel | {"id": n + 1, "gridPos": _panel_position(n)} for n, panel in enumerate(panels)
    ]
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


def _engine_panels(context: Context, m: Metrics, t: Thresholds) -> list[dict[str, Any]]:
    """Panels of what the engine reports, without those whose series it lacks."""
    serving, expression_by_name = context.estimate["serving"], recorded_expressions(context, m)
    panels: list[dict[str, Any]] = []

    def add(
        title: str, unit: str, line: float | None, note: str, queries: dict[str, str], **more: float
    ) -> None:
        expressions = [
            (recorded_series(context, name), legend)
            for legend, name in queries.items()
            if name in expression_by_name
        ]
        if expressions:
            panels.append(_dashboard_panel(title, expressions, unit, line, note, **more))

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


def _device_panels(context: Context, e: Exporter) -> list[dict[str, Any]]:
    selector = f'{{job="{scrape_job_names(context)[1]}"}}'
    share = f"{e.memory_used}{selector} / ({e.memory_used}{selector} + {e.memory_free}{selector})"
    need_gib = context.estimate["memory"]["total_bytes"] / (1 << 30)
    memory = f"Estimated need {need_gib:.1f} GiB; engines fill the rest with cache."
    faults = "Device alerts that fire or are pending."
    return [
        _dashboard_panel("Device memory", [(share, e.legend)], "percentunit", None, memory, top=1),
        _dashboard_panel(
            "Device use", [(f"{e.use}{selector}", e.legend)], "percent", None, "", top=100
        ),
        _dashboard_panel("Power", [(f"{e.power_w}{selector}", e.legend)], "watt", None, ""),
        _dashboard_panel(
            "Temperature", [(f"{e.temperature_c}{selector}", e.legend)], "celsius", None, ""
        ),
        _dashboard_panel(
            "Faults", [(_alerts_query(e, selector), "{{alertname}}")], "short", None, faults
        ),
    ]


def _alerts_query(e: Exporter, selector: str) -> str:
    names = "|".join([*(fault.alert for fault in e.faults), "DeviceThrottled", "DeviceMemoryFull"])
    return f'count by (alertname) (ALERTS{{alertname=~"{names}",{selector[1:-1]}}})'


def _dashboard_panel(
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
        "targets": _panel_queries(queries),
    }


def _panel_queries(queries: list[tuple[str, str]]) -> list[dict[str, Any]]:
    return [
        {
            "refId": chr(ord("A") + n),
            "expr": expression,
            "legendFormat": legend,
            "datasource": _SOURCE,
        }
        for n, (expression, legend) in enumerate(queries)
    ]


def _panel_position(n: int) -> dict[str, int]:
    return {"h": HEIGHT, "w": WIDTH, "x": WIDTH * (n % COLUMNS), "y": HEIGHT * (n // COLUMNS)}
