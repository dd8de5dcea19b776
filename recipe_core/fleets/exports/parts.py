"""Placements of a fleet as things with a name, a team, a priority and a bundle."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from recipe_core.base.documents import parse_yaml
from recipe_core.base.errors import NoAnswer, RecipeError
from recipe_core.bundle.write import Bundle, bundle_of
from recipe_core.fleets.answer import FleetAnswer, PlacedJob, PlacedModel, Placement
from recipe_core.fleets.exports.labels import (
    NAME_LENGTH,
    Scheduler,
    node_labels,
    object_label,
    partition_name,
    plugin_resource,
    scheduler_of,
)
from recipe_core.fleets.request import Pool
from recipe_core.recipe.build import Additions, make_recipe
from recipe_core.recipe.place import Parameters
from recipe_core.request.schema import PlanRequest

NO_TEAM = "no-team"
# Values of priorities by what is run: Kubernetes takes up to 10^9 from users, and a fleet's own
# priorities are up to 1,000. Nobody preempts a job that may not be, and it preempts nobody.
_BASES = {"jobs": 0, "serving": 100_000, "fixed-jobs": 200_000}


class PriorityLevel(NamedTuple):
    """A class of priority, by its name in the cluster; ``kind`` is what is run."""

    value: int
    name: str
    kind: str


class PodTemplate(NamedTuple):
    """A template of pods in an object of a bundle, and what its containers ask for.

    ``devices``: how many a container has, by its number. ``host``: names of what else they ask for.
    """

    kind: str
    name: str
    path: str
    devices: Mapping[int, int]
    host: frozenset[str]


@dataclass(frozen=True, eq=False)
class Part:
    """A placement, and whose it is.

    ``name`` is that of its objects, ``folder`` of its bundle.
    """

    answer: FleetAnswer
    owner: PlacedModel | PlacedJob
    placement: Placement
    pool: Pool
    name: str
    folder: str
    level: PriorityLevel

    @property
    def team(self) -> str:
        """The team as the name of its queue and account."""
        return object_label(self.owner.team or NO_TEAM)

    @property
    def trains(self) -> bool:
        """Return whether it is a training run, which ends and is not scaled."""
        return bool(self.placement.request["workload"].get("kind") == "training")

    @property
    def scheduler(self) -> Scheduler:
        return scheduler_of(self.pool)

    @property
    def target(self) -> str | None:
        """The bundle's target for its scheduler."""
        kubernetes = "jobset" if self.trains else "kubernetes"
        return {"kubernetes": kubernetes, "slurm": "slurm"}.get(self.scheduler)

    @cached_property
    def resource(self) -> str:
        """Name of the devices that its pods ask for."""
        return plugin_resource(self.pool, self.placement.slice)

    @property
    def borrows(self) -> bool:
        """Return whether serving may take its devices back."""
        return self.level.kind == "jobs"

    @property
    def replicas(self) -> int:
        return self.placement.most_replicas

    @property
    def changes(self) -> bool:
        """Return whether its replicas differ between periods."""
        return len(set(self.placement.replicas.values())) > 1

    @property
    def devices_each(self) -> int:
        """Whole devices, or slices, of a replica."""
        return 1 if self.placement.slice else max(1, round(self.placement.devices_each))

    @property
    def queue(self) -> str:
        """The LocalQueue: its team's, or its own where hours bound a training run."""
        return self.name if self.trains and self.changes else self.team

    @property
    def qos(self) -> str:
        """The class of service of Slurm."""
        return f"{self.team}-jobs" if self.borrows else self.team

    @cached_property
    def bundle(self) -> Bundle:
        """The bundle of one replica, for every target that can start it.

        Raises:
            NoAnswer: where it cannot be read or started, naming the placement.
        """
        try:
            request = PlanRequest.parse(dict(self.placement.request))
            recipe = make_recipe(request, Additions(parameters=self._parameters()), folders=False)
            return bundle_of(recipe.model_copy(update={"name": self.name}).locked())
        except RecipeError as error:
            message = f"no bundle of {self.name}: {error.message}"
            raise NoAnswer(message, field=error.field, hint=error.hint) from None

    def _parameters(self) -> Parameters:
        place = Parameters(namespace=self.answer.request.name)
        changes: dict[str, Any] = {"min_replicas": self.replicas, "max_replicas": self.replicas}
        if self.scheduler == "kubernetes":
            changes |= {"queue": self.queue, "priority_class": self.level.name}
            changes["node_selector"] = node_labels(self.answer, self.pool)
        else:
            changes["host"] = "0.0.0.0"  # noqa: S104 - routers reach it from other machines
        if self.scheduler == "slurm":
            partition = partition_name(self.pool) + ("-idle" if self.borrows else "")
            changes |= {"partition": partition, "queue": self.qos, "account": self.team}
            changes["gpu_type"] = self.placement.slice
        return place.model_copy(update=changes)

    @property
    def target_files(self) -> Mapping[str, str]:
        """Files of the bundle for its scheduler; none where that cannot start it."""
        files = self.bundle.targets.get(self.target or "", "")
        return {} if isinstance(files, str) else files

    @cached_property
    def pod_templates(self) -> list[PodTemplate]:
        """The templates of pods in its objects for Kubernetes."""
        templates = []
        for path, text in self.target_files.items():
            written = parse_yaml(text, path) if path.endswith(".yaml") else {}
            for place, containers in _find_containers(written):
                amounts = [{**c.get("requests", {}), **c.get("limits", {})} for c in containers]
                with_devices = [k for k, names in enumerate(amounts) if self.resource in names]
                devices = {k: int(amounts[k][self.resource]) for k in with_devices}
                host = frozenset[str]().union(*amounts) - {self.resource}
                name = written["metadata"]["name"]
                templates.append(PodTemplate(written["kind"], name, place, devices, host))
        return templates


def _find_containers(place: Any, path: str = "") -> Iterator[tuple[str, list[Any]]]:
    """Find the templates of pods in an object: their paths, and what each container asks for."""
    if isinstance(place, list):
        place = dict(enumerate(place))
    if not isinstance(place, dict):
        return
    spec = place.get("spec")
    if path and isinstance(spec, dict) and "containers" in spec:
        yield path, [container.get("resources", {}) for container in spec["containers"]]
        return
    for key, value in place.items():
        yield from _find_containers(value, f"{path}/{key}")


def fleet_parts(answer: FleetAnswer) -> tuple[Part, ...]:
    """Every placement that has replicas, models before jobs, each with a name of its own."""
    fleet, stated_jobs = answer.request.name, {job.name: job for job in answer.request.jobs}
    parts: list[Part] = []
    names = set[str]()
    owners: list[PlacedModel | PlacedJob] = [*answer.models, *answer.jobs]
    for owner in owners:
        if isinstance(owner, PlacedModel):
            kind, priority = "serving", owner.priority
        else:
            kind = "jobs" if owner.preemptible else "fixed-jobs"
            priority = stated_jobs[owner.name].priority
        level = PriorityLevel(_BASES[kind] + priority, f"{fleet}-{kind}-{priority}", kind)
        folder = "models" if kind == "serving" else "jobs"
        pools = set[str]()
        for placement in owner.placements:
            if placement.most_replicas:
                pool, place = answer.request.pool(placement.pool), _unused(placement.pool, pools)
                name, path = f"{owner.name}-{place}", f"{folder}/{owner.name}/{place}"
                name = _unused(object_label(name), names)
                parts.append(Part(answer, owner, placement, pool, name, path, level))
    return tuple(parts)


def _unused(name: str, names: set[str]) -> str:
    """``name``, with a number where it is in ``names``, which it joins."""
    free, number = name, 2
    while free in names:
        free, number = f"{name[: NAME_LENGTH - 4].rstrip('-')}-{number}", number + 1
    names.add(free)
    return free
