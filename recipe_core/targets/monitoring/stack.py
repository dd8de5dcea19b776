"""Monitoring of a recipe: Prometheus with what it scrapes, and a dashboard of Grafana."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from recipe_core.base.documents import to_json, to_yaml
from recipe_core.base.errors import NoAnswer
from recipe_core.engines.release import Metrics
from recipe_core.request.metrics import column_metric
from recipe_core.targets.monitoring.rules import (
    Exporter,
    Thresholds,
    alert_thresholds,
    device_exporter,
    engine_metrics,
    prometheus_rules,
    recorded_expressions,
    recorded_series,
    scrape_job_names,
)
from recipe_core.targets.pod import label_name, pod_labels

if TYPE_CHECKING:
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


RULES = "rules.yaml"
KEY_FILE = "api-key"  # which whoever runs Prometheus writes
_NAME_LABEL = "__meta_kubernetes_pod_label_app_kubernetes_io_name"


def scrape_machines(context: Context) -> dict[str, Any]:
    """For servers on machines, at the recipe's host; users add further nodes to the lists."""
    engine, devices = engine_metrics(context.engine), device_exporter(context.vendor)
    host, (engine_job, device_job) = context.parameters.host, scrape_job_names(context)
    configs = []
    if engine:
        servers = [f"{host}:{port}" for port in _metrics_ports(context, engine)]
        configs.append(_static_job(engine_job, engine.path, servers) | _key_credentials(context))
    if devices:
        configs.append(_static_job(device_job, "/metrics", [f"{host}:{devices.port}"]))
    return _scrape_config(configs)


def scrape_cluster(context: Context) -> dict[str, Any]:
    """For a Prometheus inside the cluster: the recipe's pods, and the exporters on all nodes."""
    engine, devices = engine_metrics(context.engine), device_exporter(context.vendor)
    configs = []
    if engine:
        configs.append(_pod_job(context, engine))
    if devices:
        configs.append(_exporter_job(scrape_job_names(context)[1], devices.port))
    return _scrape_config(configs)


def _metrics_ports(context: Context, engine: Metrics) -> list[int]:
    """Metrics ports on the first node: the engine's, or each server's; a router has others."""
    if engine.port:
        return [engine.port]
    servers = [
        p for p in context.launch.processes if p.answers and p.role != "router" and p.node == 0
    ]
    return [context.parameters.port + p.port_offset for p in servers]


def _scrape_config(scrape_configs: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "global": {"scrape_interval": "15s", "evaluation_interval": "15s"},
        "rule_files": [RULES],
        "scrape_configs": scrape_configs,
    }


def _key_credentials(context: Context) -> dict[str, Any]:
    """The key, from a file beside this one, where an engine's figures need it too."""
    guarded = context.key_variable and context.api_key and context.api_key.guards_metrics
    return {"authorization": {"credentials_file": KEY_FILE}} if guarded else {}


def _static_job(job: str, path: str, targets: list[str]) -> dict[str, Any]:
    return {"job_name": job, "metrics_path": path, "static_configs": [{"targets": targets}]}


def _pod_job(context: Context, engine: Metrics) -> dict[str, Any]:
    (name,) = pod_labels(context).values()
    return {
        "job_name": scrape_job_names(context)[0],
        "metrics_path": engine.path,
        **_key_credentials(context),
        "kubernetes_sd_configs": [
            {"role": "pod", "namespaces": {"names": [context.parameters.namespace]}}
        ],
        "relabel_configs": [
            {"source_labels": [_NAME_LABEL], "regex": name, "action": "keep"},
            *_pod_port(engine),
            *_no_routers(context),
            {"source_labels": ["__meta_kubernetes_pod_name"], "target_label": "pod"},
            {"source_labels": ["__meta_kubernetes_namespace"], "target_label": "namespace"},
        ],
    }


def _pod_port(engine: Metrics) -> list[dict[str, Any]]:
    keep = {
        "source_labels": ["__meta_kubernetes_pod_container_port_name"],
        "regex": "http.*",
        "action": "keep",
    }
    if engine.port is None:
        return [keep]
    redirect = {
        "source_labels": ["__meta_kubernetes_pod_ip"],
        "target_label": "__address__",
        "replacement": f"$1:{engine.port}",
    }
    return [keep, redirect]


def _no_routers(context: Context) -> list[dict[str, Any]]:
    """A rule that drops routers, which have none of the engine's metrics."""
    names = [label_name(p.name) for p in context.launch.processes if p.role == "router"]
    drop = {
        "source_labels": ["__meta_kubernetes_pod_container_name"],
        "regex": "|".join(names),
        "action": "drop",
    }
    return [drop] if names else []


def _exporter_job(job: str, port: int) -> dict[str, Any]:
    keep = {
        "source_labels": ["__meta_kubernetes_pod_container_port_number"],
        "regex": str(port),
        "action": "keep",
    }
    node = {"source_labels": ["__meta_kubernetes_pod_node_name"], "target_label": "node"}
    return {
        "job_name": job,
        "kubernetes_sd_configs": [{"role": "pod"}],
        "relabel_configs": [keep, node],
    }


FOLDER = "monitoring"


def monitoring_files(context: Context) -> dict[str, str]:
    """Files of the pack by path in the bundle.

    Raises:
        NoAnswer: where neither the engine's nor the devices' metrics are known.
    """
    devices = device_exporter(context.vendor)
    if engine_metrics(context.engine) is None and devices is None:
        raise NoAnswer(
            f"the metrics of {context.engine} and of {context.vendor} devices are not known."
        )
    files = {
        "prometheus.yaml": to_yaml(scrape_machines(context)),
        "prometheus-kubernetes.yaml": to_yaml(scrape_cluster(context)),
        "rules.yaml": to_yaml(prometheus_rules(context)),
        "dashboard.json": to_json(grafana_dashboard(context)),
    }
    if devices and devices.counters:
        files["device-counters.csv"] = "".join(", ".join(row) + "\n" for row in devices.counters)
    return {f"{FOLDER}/{name}": text for name, text in files.items()}
