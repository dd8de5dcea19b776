"""The parameters as a form: what each is called, what it is for, and which belong together."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass

from recipe_core.recipe.place import Parameters
from recipe_core.targets.context import Context

_CLUSTERS = {"slurm", "skypilot"}
_NO_KUBERNETES = {"docker", "compose", "monitoring", "ray-serve", *_CLUSTERS}


@dataclass(frozen=True, slots=True)
class Asked:
    """One parameter: its name, a title, a sentence of help."""

    name: str
    title: str
    help: str


EVERYWHERE: tuple[Asked, ...] = (
    Asked("model", "Model", "A folder on the nodes, or another id of the hub"),
    Asked(
        "host",
        "Listen on",
        "The address that servers listen on when the bundle's launcher starts them; 0.0.0.0 for all",
    ),
    Asked("port", "Port", "The first port; several processes take the ones after it"),
    Asked("image", "Container image", "With a tag that does not move, or a digest"),
    Asked(
        "model_cache",
        "Cache of weights",
        "A folder on the host; on Kubernetes a PersistentVolumeClaim",
    ),
    Asked(
        "device_groups",
        "Groups of AMD devices",
        "Numbers of video and render on the host, as [44, 109]",
    ),
)
KUBERNETES = (
    Asked("namespace", "Namespace", "Where objects are made"),
    Asked(
        "token_secret",
        "Secret with the hub's token",
        "Its name; the token itself, under the key token, is never part of a bundle",
    ),
    Asked("cache_gib", "Cache size in GiB", "Of the claim for weights"),
    Asked("storage_class", "Storage class", "Of the claim for weights"),
    Asked("node_selector", "Node selector", 'As JSON: {"pool": "gpu"}'),
    Asked("min_replicas", "Fewest replicas", "Copies of the whole deployment"),
    Asked("max_replicas", "Most replicas", "More than the fewest: autoscaling is offered"),
    Asked("prometheus", "Prometheus", "Where autoscaling asks for metrics"),
    Asked("monitoring_namespace", "Namespace of monitoring", "From where metrics are scraped"),
)
CLUSTERS = (
    Asked("partition", "Partition", "Of Slurm"),
    Asked("account", "Account", "Of Slurm"),
    Asked("time_limit_minutes", "Time limit in minutes", "Of a Slurm job"),
    Asked("queue", "Queue", "Of Kueue or Volcano; the QOS of Slurm"),
    Asked("cloud", "Cloud", "Of SkyPilot"),
    Asked("region", "Region", "Of SkyPilot"),
)


_SERVING = {"host", "min_replicas", "max_replicas", "prometheus", "monitoring_namespace"}
"""What a training run does not read."""


def groups(context: Context, targets: Collection[str]) -> dict[str, tuple[Asked, ...]]:
    """The parameters that any of the targets (by name) reads for this recipe."""
    found = {"Everywhere": EVERYWHERE}
    found |= {"Kubernetes": KUBERNETES} if set(targets) - _NO_KUBERNETES else {}
    found |= {"Slurm and clouds": CLUSTERS} if set(targets) & _CLUSTERS else {}
    unread = (_SERVING if context.kind == "training" else set()) | (
        {"device_groups"} if context.vendor != "amd" else set()
    )
    return {
        group: tuple(each for each in asked if each.name not in unread)
        for group, asked in found.items()
    }


def default(name: str, context: Context) -> str:
    """What stands for a parameter while it is left open, as it would be typed; empty where nothing does."""
    if name == "model":
        return context.model
    if name == "image":
        return context.image.reference if context.image else ""
    value = Parameters().model_dump(mode="json")[name]
    return "" if value in (None, {}) else value if isinstance(value, str) else json.dumps(value)
