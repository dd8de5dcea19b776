"""Names and labels of pools and owners, as schedulers take them."""

from __future__ import annotations

import hashlib
import re
from typing import Literal

from recipe_core.fleets.answer import FleetAnswer, PlacedJob, PlacedModel
from recipe_core.fleets.request import Pool
from recipe_core.hardware.cluster import device_profile
from recipe_core.hardware.slices import derive_slice, pod_resource
from recipe_core.targets.names import cluster_names

Scheduler = Literal["kubernetes", "slurm", "none"]
# Labels of nodes that this package gives, where a pool states none that tell it from others.
POOL_LABEL, RACK_LABEL = "recipe-builder.io/pool", "recipe-builder.io/rack"
# What a pool's labels say of its scheduler; ``partition`` and ``nodes`` are Slurm's names.
SCHEDULER, PARTITION, NODES = "scheduler", "partition", "nodes"
# Names of objects: controllers append characters, and 63 is the limit of a label.
NAME_LENGTH = 40
_VALUE = r"[A-Za-z0-9]([\w.-]{0,61}[A-Za-z0-9])?"
_LABEL_VALUE = re.compile(_VALUE, re.ASCII)
_LABEL = re.compile(rf"([a-z0-9]([a-z0-9.-]{{0,251}}[a-z0-9])?/)?{_VALUE}={_VALUE}", re.ASCII)
_SLURM_NAMES = re.compile(r"[A-Za-z0-9_][\w.,\[\]-]{0,250}", re.ASCII)


def object_label(text: str) -> str:
    """A text as the name of an object; a digest tells one apart that is changed for it."""
    label = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    return label if label == text and len(label) <= NAME_LENGTH else _mark_label(label, text)


def label_value(text: str) -> str:
    """A text as a label's value; a digest tells one apart that is changed for it."""
    label = re.sub(r"[^A-Za-z0-9_.-]+", "-", text)
    return text if _LABEL_VALUE.fullmatch(text) else _mark_label(label, text)


def _mark_label(label: str, text: str) -> str:
    mark = hashlib.sha256(text.encode()).hexdigest()[:6]
    return f"{label.strip('-._')[: NAME_LENGTH - 7].rstrip('-._')}-{mark}".lstrip("-")


def owner_labels(owner: PlacedModel | PlacedJob) -> dict[str, str]:
    """Labels of its objects, by which costs are told apart; what is not stated is left out."""
    texts = {
        "app.kubernetes.io/part-of": owner.name,
        "app.kubernetes.io/managed-by": "recipe-builder",
        "team": owner.team,
        "project": owner.project,
        "cost-centre": owner.cost_centre,
    }
    return {key: label_value(text) for key, text in texts.items() if text}


def scheduler_of(pool: Pool) -> Scheduler:
    """Kubernetes, unless the label ``scheduler`` says Slurm, or anything else, which is none."""
    word = pool.labels.get(SCHEDULER, "kubernetes").strip().casefold()
    schedulers: dict[str, Scheduler] = {"kubernetes": "kubernetes", "slurm": "slurm"}
    return schedulers.get(word, "none")


def node_labels(answer: FleetAnswer, pool: Pool) -> dict[str, str]:
    """Labels that select a pool's nodes: its own where they tell it apart, else one of its name."""
    labels = _kubernetes_labels(pool)
    unique = list(map(_kubernetes_labels, answer.request.pools)).count(labels) == 1
    return labels if labels and unique else {**labels, POOL_LABEL: pool.name}


def _kubernetes_labels(pool: Pool) -> dict[str, str]:
    return {
        key: value
        for key, value in pool.labels.items()
        if key not in (SCHEDULER, PARTITION, NODES) and _LABEL.fullmatch(f"{key}={value}")
    }


def plugin_resource(pool: Pool, cut: str | None) -> str:
    """The resource that pods ask for: whole devices, or slices by the plugins' mixed names."""
    device = device_profile(pool.device)
    if cut and (part := derive_slice(device, cut).slice_of):
        return pod_resource(part)
    return cluster_names().of(device.vendor, device.runtime).resource or "nvidia.com/gpu"


def partition_name(pool: Pool) -> str:
    """The partition of a pool: as its label says, else its name."""
    return _slurm_name(pool, PARTITION, pool.name)


def node_list(pool: Pool) -> str:
    """Nodes of a pool as Slurm lists them: as its label says, else by the names of the plan."""
    return _slurm_name(pool, NODES, f"{pool.name}-[0-{max(pool.nodes - 1, 0)}]")


def _slurm_name(pool: Pool, key: str, usual: str) -> str:
    label = pool.labels.get(key, "")
    return label if _SLURM_NAMES.fullmatch(label) else usual
