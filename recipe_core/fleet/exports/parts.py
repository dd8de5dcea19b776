"""Placements of a fleet as things with names: objects, folders, labels, resources, hours."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from recipe_core.base.errors import HardwareError
from recipe_core.fleet.answer import ALL_DAY, FleetAnswer, PlacedJob, PlacedModel, Placement
from recipe_core.fleet.request import Pool
from recipe_core.hardware.cluster import device_profile
from recipe_core.request.describe import model_short_name
from recipe_core.targets.names import cluster_names

Scheduler = Literal["kubernetes", "slurm", "hand"]
# Labels of nodes that this package gives, where a pool states none that tell it from others.
POOL_LABEL, RACK_LABEL = "recipe-builder.io/pool", "recipe-builder.io/rack"
# What a pool's labels say of its scheduler; ``partition`` and ``nodes`` are Slurm's names.
SCHEDULER, PARTITION, NODES = "scheduler", "partition", "nodes"
# Names of objects: controllers append characters, and 63 is the limit of a label.
NAME_LENGTH = 40
DAY = 24
NO_TEAM = "no-team"
_LABEL_KEY = re.compile(
    r"([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([\w.-]{0,61}[A-Za-z0-9])?", re.ASCII
)
_LABEL_VALUE = re.compile(r"[A-Za-z0-9]([\w.-]{0,61}[A-Za-z0-9])?", re.ASCII)


@dataclass(frozen=True)
class Part:
    """A placement: whose it is, and under which name it is written.

    ``name`` is that of its objects, ``folder`` that of its bundle, ``number`` its place in all.
    """

    answer: FleetAnswer
    owner: PlacedModel | PlacedJob
    placement: Placement
    name: str
    folder: str

    @property
    def pool(self) -> Pool:
        return self.answer.request.pool(self.placement.pool)

    @property
    def is_job(self) -> bool:
        return isinstance(self.owner, PlacedJob)

    @property
    def scheduler(self) -> Scheduler:
        return scheduler_of(self.pool)

    @property
    def replicas(self) -> int:
        return self.placement.most_replicas

    @property
    def devices_each(self) -> int:
        """Whole devices, or slices, of a replica."""
        return 1 if self.placement.slice else max(1, round(self.placement.devices_each))

    @property
    def changes(self) -> bool:
        """Whether its replicas differ between periods."""
        return len({self.replicas_in(period) for period in self.answer.periods}) > 1

    @property
    def trains(self) -> bool:
        """Whether it is a training run, which ends and is not scaled."""
        workload = self.placement.request.get("workload")
        return isinstance(workload, Mapping) and workload.get("kind") == "training"

    def replicas_in(self, period: str) -> int:
        """Replicas in a period; of a placement without periods, those of the whole day."""
        replicas = self.placement.replicas
        return int(replicas.get(period, replicas.get(ALL_DAY, 0)))

    def load_in(self, period: str) -> float:
        """Load that all its replicas have in a period."""
        each = self.placement.load_each
        return float(each.get(period, each.get(ALL_DAY, 0.0))) * self.replicas_in(period)

    @cached_property
    def priority(self) -> int:
        if isinstance(self.owner, PlacedModel):
            return self.owner.priority
        jobs = self.answer.request.jobs
        return next((job.priority for job in jobs if job.name == self.owner.name), 0)


def fleet_parts(answer: FleetAnswer) -> tuple[Part, ...]:
    """Every placement that has replicas, models before jobs, each with a name of its own."""
    parts: list[Part] = []
    names = set[str]()
    for owner in (*answer.models, *answer.jobs):
        folders = set[str]()
        for placement in owner.placements:
            if not placement.most_replicas:
                continue
            folder = _unused(placement.pool, folders)
            name = _unused(object_label(f"{owner.name}-{folder}"), names)
            kind = "jobs" if isinstance(owner, PlacedJob) else "models"
            parts.append(Part(answer, owner, placement, name, f"{kind}/{owner.name}/{folder}"))
    return tuple(parts)


def _unused(name: str, names: set[str]) -> str:
    """``name``, with a number where it is in ``names``, which it joins."""
    free, number = name, 2
    while free in names:
        free, number = f"{name[: NAME_LENGTH - 4].rstrip('-')}-{number}", number + 1
    names.add(free)
    return free


def object_label(text: str) -> str:
    """A text as the name of an object: letters and digits; a digest keeps cut ones apart."""
    label = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    if label == text and len(label) <= NAME_LENGTH:
        return label
    mark = hashlib.sha256(text.encode()).hexdigest()[:6]
    return f"{label[: NAME_LENGTH - 7].strip('-')}-{mark}".strip("-")


def team_label(team: str | None) -> str:
    """A team as the name of its queue, account or class of service."""
    return object_label(team) if team else NO_TEAM


def label_value(text: str) -> str:
    """A text as a label's value; one that cannot be one is changed, and a digest tells it apart."""
    if _LABEL_VALUE.fullmatch(text):
        return text
    mark = hashlib.sha256(text.encode()).hexdigest()[:6]
    plain = re.sub(r"[^A-Za-z0-9_.-]+", "-", text).strip("-._")
    return f"{plain[:50].rstrip('-._')}-{mark}".lstrip("-")


def scheduler_of(pool: Pool) -> Scheduler:
    """Kubernetes, unless the pool's label ``scheduler`` says Slurm or anything else."""
    word = pool.labels.get(SCHEDULER, "kubernetes").strip().casefold()
    if word in ("kubernetes", "k8s", "kueue"):
        return "kubernetes"
    return "slurm" if word == "slurm" else "hand"


def node_labels(answer: FleetAnswer, pool: Pool) -> dict[str, str]:
    """Labels that select a pool's nodes: its own where they tell it apart, else one of its name."""
    own_labels = _kubernetes_labels(pool)
    alike = [other.name for other in answer.request.pools if other.name != pool.name]
    same = any(_kubernetes_labels(answer.request.pool(name)) == own_labels for name in alike)
    return own_labels if own_labels and not same else {**own_labels, POOL_LABEL: pool.name}


def _kubernetes_labels(pool: Pool) -> dict[str, str]:
    """What Kubernetes takes for labels of the pool's."""
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


def resource_name(pool: Pool, cut: str | None) -> str:
    """The resource that pods ask for: whole devices, or slices by the plugins' mixed names.

    Sources: NVIDIA k8s-device-plugin (``mig.strategy: mixed``), ROCm k8s-device-plugin
    (``resource_naming_strategy: mixed``).
    """
    vendor = pool_vendor(pool)
    names = cluster_names().vendors.get(vendor)
    if cut is None:
        return (names and names.resource) or "nvidia.com/gpu"
    if vendor == "amd":
        return f"amd.com/{re.sub(r'[^a-z0-9]+', '_', cut.lower())}"
    return f"nvidia.com/mig-{re.sub(r'[^A-Za-z0-9_.-]+', '.', cut)}"


def owner_labels(owner: PlacedModel | PlacedJob) -> dict[str, str]:
    """Labels of its objects, by which costs are told apart; what is not stated is left out."""
    stated_parts = {
        "app.kubernetes.io/part-of": owner.name,
        "app.kubernetes.io/managed-by": "recipe-builder",
        "team": owner.team,
        "project": owner.project,
        "cost-centre": owner.cost_centre,
    }
    return {key: label_value(text) for key, text in stated_parts.items() if text}


def hours_of(answer: FleetAnswer) -> Mapping[str, tuple[float, float]]:
    """Each period as hours of the day from and to, which may be past 24.

    A period without a start begins where the one before ends, the first at midnight.
    """
    spans: dict[str, tuple[float, float]] = {}
    clock = 0.0
    starts = {period.name: period.start for period in answer.request.periods}
    for name, hours in answer.periods.items():
        start = starts.get(name)
        clock = clock if start is None else float(start)
        spans[name] = (clock, clock + hours)
        clock = (clock + hours) % DAY
    return spans


def replicas_by_clock(part: Part) -> tuple[int, ...]:
    """Replicas at each hour of a day; in an hour of two periods the more."""
    counts = [0] * DAY
    for period, (begin, end) in hours_of(part.answer).items():
        for hour in _hours_between(begin, end):
            counts[hour] = max(counts[hour], part.replicas_in(period))
    return tuple(counts)


def clock_text(hour: float) -> str:
    """An hour of the day as clocks show it."""
    minutes = round(hour * 60) % (24 * 60)
    return f"{minutes // 60:02d}:{minutes % 60:02d}"


def _hours_between(begin: float, end: float) -> Iterator[int]:
    for hour in range(int(begin), int(-(-end // 1))):
        yield hour % DAY


def served_name(placement: Placement) -> str | None:
    """The name that its servers answer to; None for a model that a request writes out."""
    model = placement.request.get("model")
    return model_short_name(model) if isinstance(model, str) else None
