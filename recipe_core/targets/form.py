"""The parameters as a form: what each is called, and which belong together."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass

from recipe_core.base.documented import description_of
from recipe_core.recipe.place import Parameters
from recipe_core.targets import rdma
from recipe_core.targets.context import Context
from recipe_core.targets.slurm import gres_type

_CLUSTERS = {"slurm", "skypilot"}
_NO_KUBERNETES = {"systemd", "docker", "compose", "monitoring", "ray-serve", *_CLUSTERS}


@dataclass(frozen=True, slots=True)
class FormField:
    """One parameter: its name and a title."""

    name: str
    title: str

    @property
    def help(self) -> str:
        return description_of(Parameters, self.name)


EVERYWHERE: tuple[FormField, ...] = (
    FormField("model", "Model"),
    FormField("host", "Listen on"),
    FormField("port", "Port"),
    FormField("image", "Container image"),
    FormField("model_cache", "Weights cache"),
    FormField("storage_mb_per_s", "Rate of weights in MB/s"),
    FormField("api_key_secret", "Secret with the API key"),
    FormField("device_groups", "AMD device groups"),
    FormField("communication", "Variables of NCCL and the like"),
)
KUBERNETES = (
    FormField("namespace", "Namespace"),
    FormField("token_secret", "Secret with the hub token"),
    FormField("cache_gib", "Cache size in GiB"),
    FormField("storage_class", "Storage class"),
    FormField("shared_storage_class", "Storage class of shared volumes"),
    FormField("rdma_resource", "RDMA resource"),
    FormField("rdma_count", "RDMA resources of a pod"),
    FormField("host_network", "Host network"),
    FormField("networks", "Networks of Multus"),
    FormField("gke_network", "Network of GKE"),
    FormField("node_selector", "Node selector"),
    FormField("priority_class", "Priority class"),
    FormField("writable_root", "Writable root file system"),
    FormField("min_replicas", "Minimum replicas"),
    FormField("max_replicas", "Maximum replicas"),
    FormField("prometheus", "Prometheus"),
    FormField("gateway_metric", "Counter of requests at the gateway"),
    FormField("monitoring_namespace", "Monitoring namespace"),
    FormField("gateway_namespace", "Gateway namespace"),
)
CLUSTERS = (
    FormField("partition", "Partition"),
    FormField("gpu_type", "Device type"),
    FormField("constraint", "Node features"),
    FormField("account", "Account"),
    FormField("time_limit_minutes", "Time limit in minutes"),
    FormField("queue", "Queue"),
    FormField("cloud", "Cloud"),
    FormField("bucket", "Bucket of a run"),
    FormField("region", "Region"),
)


# Parameters that a training run does not read.
_SERVING = {
    "host",
    "min_replicas",
    "max_replicas",
    "prometheus",
    "gateway_metric",
    "monitoring_namespace",
    "gateway_namespace",
    "api_key_secret",
}


def form_groups(context: Context, targets: Collection[str]) -> dict[str, tuple[FormField, ...]]:
    """The parameters, by group, that any of the targets (by name) reads for this recipe."""
    offered = {"Everywhere": EVERYWHERE}
    if set(targets) - _NO_KUBERNETES:
        offered["Kubernetes"] = KUBERNETES
    if set(targets) & _CLUSTERS:
        offered["Slurm and clouds"] = CLUSTERS
    unread = set(_SERVING) if context.kind == "training" else set()
    if context.vendor != "amd":
        unread.add("device_groups")
    return {
        group: tuple(field for field in fields if field.name not in unread)
        for group, fields in offered.items()
    }


def parameter_default(name: str, context: Context) -> str:
    """Say what applies while a parameter is left open, as one would type it; empty: nothing."""
    if name == "model":
        return context.model
    if name == "image":
        return context.image.reference if context.image else ""
    if name == "gpu_type":
        return gres_type(context) or ""
    if name == "rdma_resource":
        return next(iter(rdma.rdma_resources(context, context.launch.processes)), "")
    value = getattr(Parameters(), name)
    if value in (None, {}):
        return ""
    return value if isinstance(value, str) else json.dumps(value)
