"""The parameters as a form: what each is called, and which belong together."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass

from recipe_core.base.described import description_of
from recipe_core.recipe.place import Parameters
from recipe_core.targets.context import Context

_CLUSTERS = {"slurm", "skypilot"}
_NO_KUBERNETES = {"docker", "compose", "monitoring", "ray-serve", *_CLUSTERS}


@dataclass(frozen=True, slots=True)
class Asked:
    """One parameter: its name and a title."""

    name: str
    title: str

    @property
    def help(self) -> str:
        """What it is for, as its field says."""
        return description_of(Parameters, self.name)


EVERYWHERE: tuple[Asked, ...] = (
    Asked("model", "Model"),
    Asked("host", "Listen on"),
    Asked("port", "Port"),
    Asked("image", "Container image"),
    Asked("model_cache", "Cache of weights"),
    Asked("device_groups", "Groups of AMD devices"),
)
KUBERNETES = (
    Asked("namespace", "Namespace"),
    Asked("token_secret", "Secret with the hub's token"),
    Asked("cache_gib", "Cache size in GiB"),
    Asked("storage_class", "Storage class"),
    Asked("node_selector", "Node selector"),
    Asked("min_replicas", "Fewest replicas"),
    Asked("max_replicas", "Most replicas"),
    Asked("prometheus", "Prometheus"),
    Asked("monitoring_namespace", "Namespace of monitoring"),
)
CLUSTERS = (
    Asked("partition", "Partition"),
    Asked("account", "Account"),
    Asked("time_limit_minutes", "Time limit in minutes"),
    Asked("queue", "Queue"),
    Asked("cloud", "Cloud"),
    Asked("region", "Region"),
)


_SERVING = {"host", "min_replicas", "max_replicas", "prometheus", "monitoring_namespace"}
"""What a training run does not read."""


def groups(context: Context, targets: Collection[str]) -> dict[str, tuple[Asked, ...]]:
    """The parameters that any of the targets (by name) reads for this recipe."""
    offered = {"Everywhere": EVERYWHERE}
    if set(targets) - _NO_KUBERNETES:
        offered["Kubernetes"] = KUBERNETES
    if set(targets) & _CLUSTERS:
        offered["Slurm and clouds"] = CLUSTERS
    unread = set(_SERVING) if context.kind == "training" else set()
    if context.vendor != "amd":
        unread.add("device_groups")
    read = {}
    for group, parameters in offered.items():
        read[group] = tuple(each for each in parameters if each.name not in unread)
    return read


def default(name: str, context: Context) -> str:
    """What stands for a parameter while it is left open, as it would be typed; empty: nothing."""
    if name == "model":
        return context.model
    if name == "image":
        return context.image.reference if context.image else ""
    value = Parameters().model_dump(mode="json")[name]
    if value in (None, {}):
        return ""
    return value if isinstance(value, str) else json.dumps(value)
