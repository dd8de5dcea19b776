"""Kubernetes: overlays over the bundles' objects, claims of devices by DRA, and Kueue's queues.

An overlay gives a placement its team's labels and spreads its replicas over racks. A second one
over it claims devices in place of a plugin's resource; a cluster takes one of them. A team's queue
has what the plan gives its models and its jobs that may not be preempted, in the busiest period of
each pool. What is idle then belongs to the cohort; preemptible jobs borrow that, and what serving
leaves unused, and give it back.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from recipe_core.fleets.answer import FleetAnswer
from recipe_core.fleets.exports.labels import object_label, plugin_resource, scheduler_of
from recipe_core.fleets.exports.parts import Part
from recipe_core.fleets.exports.texts import render_export

# Resources of vendors with a driver of DRA.
CLAIMED = ("nvidia.com/", "amd.com/")
_CLUSTER = ("namespace.yaml", "priorities.yaml")
_KUEUE = ("flavors.yaml", "queues.yaml", "priorities.yaml")


class Flavor(NamedTuple):
    """Devices of a pool that are whole, or slices of one kind, with the quotas of teams.

    ``amount``: of them by the plan: of owned machines all there are, of rented ones those paid for.
    """

    name: str
    pool: str
    resource: str
    amount: int
    quotas: Mapping[str, int]

    @property
    def idle(self) -> int:
        return max(self.amount - sum(self.quotas.values()), 0)


def plan_flavors(answer: FleetAnswer, parts: Sequence[Part]) -> list[Flavor]:
    """Every kind of device in pools that Kubernetes schedules, in the plan's order."""
    flavors = []
    for use in answer.pools:
        pool = answer.request.pool(use.name)
        if scheduler_of(pool) != "kubernetes":
            continue
        devices = max(use.paid.values(), default=0.0) if pool.is_rented else use.devices
        counts = Counter[str | None]({None: math.ceil(devices)})
        for cut in use.cuts:
            counts[None] -= cut.devices
            counts.update({kind: cut.devices * count for kind, count in cut.counts.items()})
        for kind, count in counts.items():
            if count > 0:
                name = object_label("-".join(filter(None, [answer.request.name, use.name, kind])))
                quotas = team_quotas(parts, use.name, kind)
                resource = plugin_resource(pool, kind)
                flavors.append(Flavor(name, use.name, resource, count, quotas))
    return flavors


def team_quotas(parts: Iterable[Part], pool: str, cut: str | None) -> Counter[str]:
    """Devices or slices of a pool by team, in the period in which they are most together.

    A team that only borrows has none of its own.
    """
    by_period: dict[str, Counter[str]] = {}
    for part in parts:
        for period, replicas in part.placement.replicas.items():
            if (part.pool.name, part.placement.slice) == (pool, cut):
                count = 0 if part.borrows else replicas * part.devices_each
                by_period.setdefault(period, Counter())[part.team] += count
    return max(by_period.values(), key=Counter.total, default=Counter())


def cluster_files(answer: FleetAnswer, parts: Sequence[Part]) -> dict[str, str]:
    """The folders ``kubernetes`` and ``kueue`` for ``kubectl apply -k``, and claims in ``dra``."""
    inside = [part for part in parts if part.scheduler == "kubernetes"]
    if not inside:
        return {}
    started = [part for part in inside if part.pod_templates]
    teams = {part.team: part.owner.team for part in inside}
    values = {
        "answer": answer,
        "fleet": answer.request.name,
        "levels": sorted({part.level for part in inside}, reverse=True),
        "flavors": plan_flavors(answer, inside),
        # what pods ask for beside devices: a queue admits nothing that it does not cover
        "host_resources": sorted({r for p in started for t in p.pod_templates for r in t.host}),
        "teams": teams,
        "hourly": [part for part in inside if part.queue not in teams],
        "racked": any((part.pool.racks or 1) > 1 for part in inside),
    }
    paths = [f"kubernetes/{name}" for name in _CLUSTER] + [f"kueue/{name}" for name in _KUEUE]
    files = {path: render_export(f"{path}.j2", **values) for path in paths}
    listed = {"kubernetes": [*_CLUSTER, *(part.name for part in started)], "kueue": _KUEUE}
    for part in started:
        overlay = render_export("kubernetes/overlay.yaml.j2", part=part)
        files[f"kubernetes/{part.name}/kustomization.yaml"] = overlay
        for name in ("claims", "kustomization") if part.resource.startswith(CLAIMED) else ():
            files[f"dra/{part.name}/{name}.yaml"] = render_export(f"dra/{name}.yaml.j2", part=part)
    for folder, names in listed.items():
        text = render_export("kustomization.yaml.j2", resources=names)
        files[f"{folder}/kustomization.yaml"] = text
    return files
