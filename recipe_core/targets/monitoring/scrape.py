"""What Prometheus scrapes: on machines by address, on Kubernetes by the labels of pods."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from recipe_core.base.documents import to_json, to_yaml
from recipe_core.base.errors import NoAnswer
from recipe_core.engines.release import Metrics
from recipe_core.targets.monitoring.dashboard import grafana_dashboard
from recipe_core.targets.monitoring.rules import prometheus_rules, scrape_job_names
from recipe_core.targets.monitoring.thresholds import device_exporter, engine_metrics
from recipe_core.targets.pod import label_name, pod_labels

if TYPE_CHECKING:
    from recipe_core.targets.context import Context


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
