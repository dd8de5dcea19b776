"""The files of the monitoring pack."""

from __future__ import annotations

from typing import TYPE_CHECKING

from recipe_core.base.documents import to_json, to_yaml
from recipe_core.base.errors import NoAnswer
from recipe_core.targets.monitoring.dashboard import grafana_dashboard
from recipe_core.targets.monitoring.metrics import device_exporter, engine_metrics
from recipe_core.targets.monitoring.rules import prometheus_rules
from recipe_core.targets.monitoring.scrape import scrape_cluster, scrape_machines

if TYPE_CHECKING:  # targets ask for thresholds themselves
    from recipe_core.targets.context import Context

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
