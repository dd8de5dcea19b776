"""Queues of Kueue and priorities: what a team has by the plan, and who goes before whom.

A team has what the plan gives its models and its jobs that may not be preempted, in the busiest
period of each pool. What is idle then belongs to the cohort; preemptible jobs borrow that, and
what serving leaves unused, and give it back.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from recipe_core.fleets.answer import FleetAnswer
from recipe_core.fleets.exports.parts import Part, object_label, plugin_resource, scheduler_of
from recipe_core.fleets.exports.texts import render_export

# What pods ask for beside devices. The plan bounds none of it, and a queue admits nothing that it
# does not cover.
HOST_RESOURCES = ("cpu", "memory", "ephemeral-storage")
# Values of priorities by what is run: Kubernetes takes up to 10^9 from users, and a fleet's own
# priorities are up to 1,000. Nobody preempts a job that may not be, and it preempts nobody.
_BASES = {"jobs": 0, "serving": 100_000, "fixed-jobs": 200_000}


@dataclass(frozen=True, slots=True)
class PriorityLevel:
    """A class of priority, by its name in the cluster; ``kind`` is what is run."""

    name: str
    kind: str
    value: int


@dataclass(frozen=True, slots=True)
class Flavor:
    """Devices of a pool that are whole, or slices of one kind, with the quotas of teams.

    ``count``: of them by the plan: of owned machines all there are, of rented ones those paid for.
    """

    name: str
    pool: str
    resource: str
    count: int
    quotas: dict[str, int]

    @property
    def idle(self) -> int:
        return max(self.count - sum(self.quotas.values()), 0)


def priority_of(part: Part) -> PriorityLevel:
    """The class of a placement: preemptible jobs, then serving, then jobs that are fixed."""
    kind = ("jobs" if part.borrows else "fixed-jobs") if part.is_job else "serving"
    name = f"{part.answer.request.name}-{kind}-{part.priority}"
    return PriorityLevel(name, kind, _BASES[kind] + part.priority)


def priority_levels(parts: Iterable[Part]) -> list[PriorityLevel]:
    """The classes of all placements, the highest first."""
    return sorted(set(map(priority_of, parts)), key=lambda level: (-level.value, level.name))


def queue_name(part: Part) -> str:
    """The LocalQueue of a placement: its team's, or its own where hours bound a training run."""
    return part.name if part.trains and part.changes else part.team


def plan_flavors(answer: FleetAnswer, parts: Sequence[Part]) -> list[Flavor]:
    """Every kind of device in pools that Kubernetes schedules, in the plan's order."""
    flavors = []
    for use in answer.pools:
        pool = answer.request.pool(use.name)
        if scheduler_of(pool) != "kubernetes":
            continue
        devices = max(use.paid.values(), default=0.0) if pool.is_rented else use.devices
        whole_devices = math.ceil(devices) - sum(cut.devices for cut in use.cuts)
        counts: dict[str | None, int] = {None: whole_devices}
        for cut in use.cuts:
            for kind, count in cut.counts.items():
                counts[kind] = counts.get(kind, 0) + cut.devices * count
        for cut_name, count in counts.items():
            if count > 0:
                words = filter(None, [answer.request.name, use.name, cut_name])
                quotas = team_quotas(parts, use.name, cut_name)
                resource = plugin_resource(pool, cut_name)
                name = object_label("-".join(words))
                flavors.append(Flavor(name, use.name, resource, count, quotas))
    return flavors


def team_quotas(parts: Iterable[Part], pool: str, cut: str | None) -> dict[str, int]:
    """Devices or slices of a pool by team, in the period in which they are most together.

    A team that only borrows has none of its own.
    """
    by_period: dict[str, dict[str, int]] = {}
    for part in parts:
        if (part.pool.name, part.placement.slice) == (pool, cut):
            for period in part.answer.periods:
                teams = by_period.setdefault(period, {})
                count = 0 if part.borrows else part.replicas_in(period) * part.devices_each
                teams[part.team] = teams.get(part.team, 0) + count
    return max(by_period.values(), key=lambda teams: sum(teams.values()), default={})


def kueue_files(
    answer: FleetAnswer,
    parts: Sequence[Part],
    namespace: str,
    host_resources: Collection[str] = HOST_RESOURCES,
) -> dict[str, str]:
    """Kueue's objects for ``kubectl apply -k kueue``; none where no pool is Kubernetes'."""
    inside = [part for part in parts if part.scheduler == "kubernetes"]
    flavors = plan_flavors(answer, inside)
    if not inside or not flavors:
        return {}
    teams = {part.team: part.owner.team for part in inside}
    values = {
        "answer": answer,
        "fleet": answer.request.name,
        "namespace": namespace,
        "flavors": flavors,
        "host_resources": sorted(host_resources),
        "teams": teams,
        "hourly": [part for part in inside if queue_name(part) not in teams],
        "levels": priority_levels(inside),
        "racked": any((part.pool.racks or 1) > 1 for part in inside),
    }
    names = [f"{name}.yaml" for name in ("flavors", "queues", "priorities")]
    files = {f"kueue/{name}": render_export(f"kueue/{name}.j2", **values) for name in names}
    listed = render_export("kustomization.yaml.j2", resources=names)
    return {**files, "kueue/kustomization.yaml": listed}
