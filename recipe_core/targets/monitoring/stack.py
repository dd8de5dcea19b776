"""Monitoring of a recipe: Prometheus with what it scrapes, and a dashboard of Grafana."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from recipe_core.base.documents import to_json, to_yaml
from recipe_core.base.errors import NoAnswer
from recipe_core.engines.release import Metrics
from recipe_core.targets.monitoring.rules import (
    device_exporter,
    engine_metrics,
    make_part,
    monitoring_values,
)
from recipe_core.targets.pod import label_name, object_name

if TYPE_CHECKING:
    from recipe_core.targets.context import Context

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
    known = {record["record"].removeprefix("recipe:") for record in values.get("records", ())}
    panels: list[dict[str, Any]] = []
    for row in make_part("panels", values):
        queries = row.get("queries", {}) | {
            legend: f"recipe:{name}{{{values['job']}}}"
            for legend, name in row.get("recorded", {}).items()
            if name in known
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
