"""What Prometheus asks: on machines by address, on Kubernetes by the labels of pods."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from recipe_core.engines.release import Metrics
from recipe_core.targets.monitoring.metrics import engine_metrics, exporter
from recipe_core.targets.monitoring.rules import jobs
from recipe_core.targets.pod import label_name, labels

if TYPE_CHECKING:  # targets ask for thresholds themselves
    from recipe_core.targets.context import Context

RULES = "rules.yaml"
_NAME_LABEL = "__meta_kubernetes_pod_label_app_kubernetes_io_name"


def machines(context: Context) -> dict[str, Any]:
    """For servers on machines: the recipe's own address; add those of further nodes to the lists."""
    engine, devices = engine_metrics(context.engine), exporter(context.vendor)
    host = context.parameters.host
    asked = [f"{host}:{own}" for own in _ports(context, engine)] if engine else []
    found = [_static(jobs(context)[0], engine.path, asked)] if engine else []
    found += [_static(jobs(context)[1], "/metrics", [f"{host}:{devices.port}"])] if devices else []
    return _config(found)


def kubernetes(context: Context) -> dict[str, Any]:
    """For a Prometheus inside the cluster: every pod of the recipe, and the exporters on all nodes."""
    engine, devices = engine_metrics(context.engine), exporter(context.vendor)
    found = [_pods(context, engine)] if engine else []
    found += [_exporters(jobs(context)[1], devices.port)] if devices else []
    return _config(found)


def _ports(context: Context, engine: Metrics) -> list[int]:
    """Ports of the first node that tell of metrics: the engine's own, or that of each server (a router has other metrics)."""
    if engine.port:
        return [engine.port]
    servers = [
        p for p in context.launch.processes if p.answers and p.role != "router" and p.node == 0
    ]
    return [context.parameters.port + p.port_offset for p in servers]


def _config(found: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "global": {"scrape_interval": "15s", "evaluation_interval": "15s"},
        "rule_files": [RULES],
        "scrape_configs": found,
    }


def _static(job: str, path: str, targets: list[str]) -> dict[str, Any]:
    return {"job_name": job, "metrics_path": path, "static_configs": [{"targets": targets}]}


def _pods(context: Context, engine: Metrics) -> dict[str, Any]:
    (name,) = labels(context).values()
    return {
        "job_name": jobs(context)[0],
        "metrics_path": engine.path,
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
    """The ports that answer; where metrics have a port of their own, that one in place of it."""
    keep = {
        "source_labels": ["__meta_kubernetes_pod_container_port_name"],
        "regex": "http.*",
        "action": "keep",
    }
    if engine.port is None:
        return [keep]
    own = {
        "source_labels": ["__meta_kubernetes_pod_ip"],
        "target_label": "__address__",
        "replacement": f"$1:{engine.port}",
    }
    return [keep, own]


def _no_routers(context: Context) -> list[dict[str, Any]]:
    """A router has no metrics of the engine's."""
    names = [label_name(p.name) for p in context.launch.processes if p.role == "router"]
    return (
        [
            {
                "source_labels": ["__meta_kubernetes_pod_container_name"],
                "regex": "|".join(names),
                "action": "drop",
            }
        ]
        if names
        else []
    )


def _exporters(job: str, port: int) -> dict[str, Any]:
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
