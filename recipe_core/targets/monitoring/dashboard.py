"""A Grafana dashboard of one recipe: what clients feel, what the engine holds, what the devices do."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from recipe_core.engines.release import Metrics
from recipe_core.targets.monitoring.metrics import Exporter, engine_metrics, exporter
from recipe_core.targets.monitoring.rules import jobs, recorded, series
from recipe_core.targets.monitoring.thresholds import Threshold, Thresholds, thresholds

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
    """Panels of what the engine reports; those of unknown series are left out."""
    serving = context.estimate["serving"]
    estimated = f"Estimated {serving['output_tokens_per_s']:.4g} output tokens/s at full load."
    meant = "The line is the load the recipe was computed for."
    tokens = {"output": "output_tokens_per_second", "prompt": "prompt_tokens_per_second"}
    requests = {"running": "requests_running", "waiting": "requests_waiting"}
    panels = [
        (
            _panel(
                "Time to first token", [], "s", t.ttft.value, _estimated(serving["ttft_s"], t.ttft)
            ),
            _times("ttft"),
        ),
        (
            _panel(
                "Time per output token",
                [],
                "s",
                t.tpot.value,
                _estimated(serving["tpot_s"], t.tpot),
            ),
            _times("tpot"),
        ),
        (_panel("Tokens per second", [], "short", t.tokens_per_s, estimated), tokens),
        (_panel("Requests", [], "short", t.load, meant), requests),
        (
            _panel("Cache in use", [], "percentunit", t.kv_usage, "", top=1),
            {"fullest server": "kv_usage"},
        ),
    ]
    known = series(context, m)
    asked = [
        (panel, {legend: name for legend, name in wanted.items() if name in known})
        for panel, wanted in panels
    ]
    return [
        panel
        | {
            "targets": _targets(
                [(recorded(context, name), legend) for legend, name in found.items()]
            )
        }
        for panel, found in asked
        if found
    ]


def _times(name: str) -> dict[str, str]:
    return {"mean": f"{name}_seconds:mean", "95 %": f"{name}_seconds:p95"}


def _estimated(seconds: float, limit: Threshold) -> str:
    return f"Estimated {seconds:.4g} s; the line is {limit.basis}."


def _devices(context: Context, e: Exporter) -> list[dict[str, Any]]:
    only = f'{{job="{jobs(context)[1]}"}}'
    share = f"{e.memory_used}{only} / ({e.memory_used}{only} + {e.memory_free}{only})"
    memory = context.estimate["memory"]
    used = f"Estimated need {memory['total_bytes'] / (1 << 30):.1f} GiB; engines fill the rest with cache."
    return [
        _panel("Device memory", [(share, e.legend)], "percentunit", None, used, top=1),
        _panel("Device use", [(f"{e.use}{only}", e.legend)], "percent", None, "", top=100),
        _panel("Power", [(f"{e.power_w}{only}", e.legend)], "watt", None, ""),
        _panel("Temperature", [(f"{e.temperature_c}{only}", e.legend)], "celsius", None, ""),
        _panel(
            "Faults",
            [(_any(e, only), "{{alertname}}")],
            "short",
            None,
            "Alerts of the device that fire or are about to.",
        ),
    ]


def _any(e: Exporter, only: str) -> str:
    names = "|".join([*(fault.alert for fault in e.faults), "DeviceThrottled", "DeviceMemoryFull"])
    return f'count by (alertname) (ALERTS{{alertname=~"{names}",{only[1:-1]}}})'


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
