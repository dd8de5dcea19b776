"""What changes with the hours, and replicas where no Kubernetes keeps their number.

KEDA follows the clock by triggers; elsewhere timers of systemd run a script as a period begins.
Slurm has a partition a pool, with a second one over the same nodes whose jobs serving may end.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from recipe_core.fleet.answer import FleetAnswer, PlacedJob
from recipe_core.fleet.exports.cluster import Files, pod_templates
from recipe_core.fleet.exports.kueue import queue_name, team_quotas
from recipe_core.fleet.exports.parts import (
    NODES,
    PARTITION,
    Part,
    clock_text,
    hours_of,
    pool_vendor,
    replicas_by_clock,
    scheduler_of,
    team_label,
)
from recipe_core.fleet.exports.router import replica_places
from recipe_core.fleet.exports.texts import render_export
from recipe_core.fleet.request import Pool
from recipe_core.payload.launcher.machine import VISIBLE
from recipe_core.targets.scale.keda import cron_triggers

_DAYS = 7
_PARTITION_NAME = re.compile(r"[A-Za-z0-9_][\w-]{0,60}", re.ASCII)
_NODE_NAMES = re.compile(r"[A-Za-z0-9][\w.,\[\]-]{0,250}", re.ASCII)


@dataclass(frozen=True, slots=True)
class ScaledPart:
    """An object of Kubernetes whose replicas follow the clock, with KEDA's triggers."""

    part: Part
    api: str
    kind: str
    fewest: int
    triggers: Sequence[Mapping[str, object]]


@dataclass(frozen=True, slots=True)
class ServiceClass:
    """A class of service (QOS) of Slurm: a team's, of what it serves or of jobs that may end."""

    name: str
    account: str
    team: str
    priority: int
    devices: int | None


def partition_name(pool: Pool, *, preemptible: bool = False) -> str:
    """The partition of a pool: as its label says, and beside it the one of jobs that may end."""
    name = pool.labels.get(PARTITION, pool.name)
    name = name if _PARTITION_NAME.fullmatch(name) else pool.name
    return f"{name}-idle" if preemptible else name


def node_list(pool: Pool) -> str:
    """Nodes of a pool as Slurm lists them: its label ``nodes``, else the names of the plan."""
    nodes = pool.labels.get(NODES, "")
    return nodes if _NODE_NAMES.fullmatch(nodes) else f"{pool.name}-[0-{max(pool.nodes - 1, 0)}]"


def borrows(part: Part) -> bool:
    """Return whether serving may take its devices back."""
    return isinstance(part.owner, PlacedJob) and part.owner.preemptible


def service_class(part: Part) -> str:
    return team_label(part.owner.team) + ("-jobs" if borrows(part) else "")


def _service_classes(parts: Sequence[Part]) -> list[ServiceClass]:
    classes: dict[str, ServiceClass] = {}
    for part in parts:
        team, name = team_label(part.owner.team), service_class(part)
        pools = {(other.pool.name, other.placement.slice) for other in parts}
        quotas = [team_quotas(parts, pool, cut).get(team, 0) for pool, cut in sorted(pools, key=str)]
        devices = None if borrows(part) else sum(quotas)
        priority = part.priority + (0 if borrows(part) else 1000)
        highest = max(priority, classes[name].priority if name in classes else 0)
        classes[name] = ServiceClass(name, team, part.owner.team or team, highest, devices)
    return [classes[name] for name in sorted(classes)]


def slurm_files(answer: FleetAnswer, parts: Sequence[Part]) -> dict[str, str]:
    """Partitions, accounts with classes of service, and the script that keeps replicas."""
    pools = [pool for pool in answer.request.pools if scheduler_of(pool) == "slurm"]
    inside = [part for part in parts if part.scheduler == "slurm"]
    if not pools:
        return {}
    values = {
        "answer": answer,
        "pools": pools,
        "parts": inside,
        "classes": _service_classes(inside),
        "partition_name": partition_name,
        "node_list": node_list,
    }
    names = ("partitions.conf", "accounts.sh", "replicas.sh")
    return {f"slurm/{name}": render_export(f"slurm/{name}.j2", **values) for name in names}


def hand_files(answer: FleetAnswer, parts: Sequence[Part], port: int) -> dict[str, str]:
    """The script that starts and stops a machine's replicas, where no scheduler does."""
    rows = [
        (part, k, *place)
        for part in parts
        if part.scheduler == "hand"
        for k, place in enumerate(replica_places(part, port))
    ]
    if not rows:
        return {}
    visible = {
        part.pool.name: VISIBLE["rocm" if pool_vendor(part.pool) == "amd" else "cuda"]
        for part, *_ in rows
    }
    script = render_export("hand/replicas.sh.j2", answer=answer, rows=rows, visible=visible)
    return {"hand/replicas.sh": script}


def night_files(
    answer: FleetAnswer, parts: Sequence[Part], bundles: Mapping[str, Files], namespace: str
) -> dict[str, str]:
    """What follows the hours of a day; none where nothing changes with them."""
    changing = [part for part in parts if part.changes]
    if not changing:
        return {}
    inside = [part for part in changing if part.scheduler == "kubernetes"]
    values = {
        "answer": answer,
        "namespace": namespace,
        "scaled": [_scaled_part(part, bundles) for part in inside if not part.trains],
        "windows": [part for part in inside if part.trains],
        "slurm": any(part.scheduler == "slurm" for part in changing),
        "hand": any(part.scheduler == "hand" for part in changing),
        "starts": {name: clock_text(begin) for name, (begin, _) in hours_of(answer).items()},
        "queue_name": queue_name,
    }
    fleet = answer.request.name
    files = {
        "nights/period.sh": render_export("nights/period.sh.j2", **values),
        f"nights/{fleet}@.service": render_export("nights/service.j2", **values),
    }
    for period in answer.periods:
        timer = render_export("nights/timer.j2", period=period, **values)
        files[f"nights/{fleet}-{period}.timer"] = timer
    if values["scaled"]:
        files["nights/scaledobjects.yaml"] = render_export("nights/scaledobjects.yaml.j2", **values)
    return files


def _scaled_part(part: Part, bundles: Mapping[str, Files]) -> ScaledPart:
    """The object that a bundle makes; without one by whether a replica is on several nodes."""
    kinds = [template.kind for template in pod_templates(bundles.get(part.name, {}))]
    per_node = part.pool.per_node or part.devices_each
    usual = "LeaderWorkerSet" if part.devices_each > per_node else "Deployment"
    kind = kinds[0] if kinds else usual
    api = "apps/v1" if kind == "Deployment" else "leaderworkerset.x-k8s.io/v1"
    hours = replicas_by_clock(part)
    return ScaledPart(part, api, kind, min(hours), cron_triggers(hours * _DAYS))
