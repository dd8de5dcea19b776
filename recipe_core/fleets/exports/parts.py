"""Placements of a fleet as things with names: objects, folders, labels, resources, hours."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from recipe_core.base.errors import HardwareError
from recipe_core.fleets.answer import ALL_DAY, FleetAnswer, PlacedJob, PlacedModel, Placement
from recipe_core.fleets.request import Pool
from recipe_core.hardware.cluster import device_profile
from recipe_core.targets.names import cluster_names

Scheduler = Literal["kubernetes", "slurm", "hand"]
# Labels of nodes that this package gives, where a pool states none that tell it from others.
POOL_LABEL, RACK_LABEL = "recipe-builder.io/pool", "recipe-builder.io/rack"
# What a pool's labels say of its scheduler; ``partition`` and ``nodes`` are Slurm's names.
SCHEDULER, PARTITION, NODES = "scheduler", "partition", "nodes"
# Names of objects: controllers append characters, and 63 is the limit of a label.
NAME_LENGTH = 40
NO_TEAM = "no-team"
DAY = 24
_LABEL_KEY = re.compile(
    r"([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([\w.-]{0,61}[A-Za-z0-9])?", re.ASCII
)
_LABEL_VALUE = re.compile(r"[A-Za-z0-9]([\w.-]{0,61}[A-Za-z0-9])?", re.ASCII)


@dataclass(frozen=True)
class Part:
    """A placement, and whose it is; ``name`` is that of its objects, ``folder`` of its bundle."""

    answer: FleetAnswer
    owner: PlacedModel | PlacedJob
    placement: Placement
    name: str
    folder: str

    @cached_property
    def pool(self) -> Pool:
        return self.answer.request.pool(self.placement.pool)

    @property
    def scheduler(self) -> Scheduler:
        """Kubernetes, unless the pool's label ``scheduler`` says Slurm or anything else."""
        return scheduler_of(self.pool)

    @property
    def team(self) -> str:
        """The team as the name of its queue and account."""
        return object_label(self.owner.team) if self.owner.team else NO_TEAM

    @property
    def is_job(self) -> bool:
        return isinstance(self.owner, PlacedJob)

    @property
    def borrows(self) -> bool:
        """Return whether serving may take its devices back."""
        return isinstance(self.owner, PlacedJob) and self.owner.preemptible

    @property
    def trains(self) -> bool:
        """Return whether it is a training run, which ends and is not scaled."""
        workload = self.placement.request.get("workload")
        return isinstance(workload, Mapping) and workload.get("kind") == "training"

    @property
    def priority(self) -> int:
        jobs = {job.name: job.priority for job in self.answer.request.jobs}
        return self.owner.priority if isinstance(self.owner, PlacedModel) else jobs[self.owner.name]

    @property
    def replicas(self) -> int:
        return self.placement.most_replicas

    @property
    def devices_each(self) -> int:
        """Whole devices, or slices, of a replica."""
        return 1 if self.placement.slice else max(1, round(self.placement.devices_each))

    @property
    def devices_on_node(self) -> int:
        """Devices of a replica on one node."""
        return min(self.devices_each, self.pool.per_node or self.devices_each)

    @property
    def changes(self) -> bool:
        """Return whether its replicas differ between periods."""
        return len({self.replicas_in(period) for period in self.answer.periods}) > 1

    def replicas_in(self, period: str) -> int:
        replicas = self.placement.replicas
        return int(replicas.get(period, replicas.get(ALL_DAY, 0)))

    def load_in(self, period: str) -> float:
        """Load that all its replicas have in a period."""
        loads = self.placement.load_each
        return float(loads.get(period, loads.get(ALL_DAY, 0.0))) * self.replicas_in(period)


def fleet_parts(answer: FleetAnswer) -> tuple[Part, ...]:
    """Every placement that has replicas, models before jobs, each with a name of its own."""
    parts: list[Part] = []
    names = set[str]()
    owners: list[PlacedModel | PlacedJob] = [*answer.models, *answer.jobs]
    for owner in owners:
        folders = set[str]()
        for placement in owner.placements:
            if placement.most_replicas:
                folder = _unused(placement.pool, folders)
                name = _unused(object_label(f"{owner.name}-{folder}"), names)
                kind = "jobs" if isinstance(owner, PlacedJob) else "models"
                path = f"{kind}/{owner.name}/{folder}"
                parts.append(Part(answer, owner, placement, name, path))
    return tuple(parts)


def _unused(name: str, names: set[str]) -> str:
    """``name``, with a number where it is in ``names``, which it joins."""
    free, number = name, 2
    while free in names:
        free, number = f"{name[: NAME_LENGTH - 4].rstrip('-')}-{number}", number + 1
    names.add(free)
    return free


def object_label(text: str) -> str:
    """A text as the name of an object; a digest tells one apart that is changed for it."""
    label = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    if label == text and len(label) <= NAME_LENGTH:
        return label
    mark = hashlib.sha256(text.encode()).hexdigest()[:6]
    return f"{label[: NAME_LENGTH - 7].strip('-')}-{mark}".strip("-")


def label_value(text: str) -> str:
    """A text as a label's value; a digest tells one apart that is changed for it."""
    if _LABEL_VALUE.fullmatch(text):
        return text
    mark = hashlib.sha256(text.encode()).hexdigest()[:6]
    plain = re.sub(r"[^A-Za-z0-9_.-]+", "-", text).strip("-._")
    return f"{plain[:50].rstrip('-._')}-{mark}".lstrip("-")


def scheduler_of(pool: Pool) -> Scheduler:
    """Kubernetes, unless the label ``scheduler`` says Slurm or anything else."""
    word = pool.labels.get(SCHEDULER, "kubernetes").strip().casefold()
    if word in ("kubernetes", "k8s", "kueue"):
        return "kubernetes"
    return "slurm" if word == "slurm" else "hand"


def node_labels(answer: FleetAnswer, pool: Pool) -> dict[str, str]:
    """Labels that select a pool's nodes: its own where they tell it apart, else one of its name."""
    labels = _kubernetes_labels(pool)
    pools = answer.request.pools
    labels_beside = [_kubernetes_labels(part) for part in pools if part.name != pool.name]
    unique = labels and labels not in labels_beside
    return labels if unique else {**labels, POOL_LABEL: pool.name}


def _kubernetes_labels(pool: Pool) -> dict[str, str]:
    """Labels of the pool, as Kubernetes takes them."""
    return {
        key: value
        for key, value in pool.labels.items()
        if key not in (SCHEDULER, PARTITION, NODES)
        and _LABEL_KEY.fullmatch(key)
        and _LABEL_VALUE.fullmatch(value)
    }


def pool_vendor(pool: Pool) -> str:
    """Vendor of a pool's devices; of a profile that cannot be read, NVIDIA."""
    try:
        return device_profile(pool.device).vendor
    except HardwareError:
        return "nvidia"


def plugin_resource(pool: Pool, cut: str | None) -> str:
    """The resource that pods ask for: whole devices, or slices by the plugins' mixed names.

    Sources: NVIDIA k8s-device-plugin (``mig.strategy: mixed``), ROCm k8s-device-plugin
    (``resource_naming_strategy: mixed``).
    """
    vendor = pool_vendor(pool)
    if cut and vendor == "amd":
        return f"amd.com/{re.sub(r'[^a-z0-9]+', '_', cut.lower())}"
    if cut:
        return f"nvidia.com/mig-{re.sub(r'[^A-Za-z0-9_.-]+', '.', cut)}"
    return cluster_names().vendors[vendor].resource or "nvidia.com/gpu"


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


def hours_of(answer: FleetAnswer) -> Mapping[str, tuple[float, float]]:
    """Each period as hours of the day from and to, which may be past 24.

    A period without a start begins where the one before ends, the first at midnight.
    """
    spans: dict[str, tuple[float, float]] = {}
    clock = 0.0
    starts = {period.name: period.start for period in answer.request.periods}
    for name, hours in answer.periods.items():
        start = starts.get(name)
        clock = clock % DAY if start is None else float(start)
        spans[name] = (clock, clock := clock + hours)
    return spans


def replicas_by_clock(part: Part) -> tuple[int, ...]:
    """Replicas at each hour of a day; in an hour of two periods the more."""
    counts = [0] * DAY
    for period, (begin, end) in hours_of(part.answer).items():
        for hour in range(int(begin), int(-(-end // 1))):
            counts[hour % DAY] = max(counts[hour % DAY], part.replicas_in(period))
    return tuple(counts)
