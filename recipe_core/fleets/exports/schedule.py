"""Files for what changes with the hours, and replicas where no Kubernetes keeps their number.

KEDA follows the clock by triggers; elsewhere timers of systemd run a script as a period begins.
Slurm has a partition a pool, with a second one over the same nodes whose jobs serving may end.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from recipe_core.fleets.answer import FleetAnswer
from recipe_core.fleets.exports.cluster import Files, pod_templates
from recipe_core.fleets.exports.kueue import queue_name, team_quotas
from recipe_core.fleets.exports.parts import (
    NODES,
    PARTITION,
    Part,
    hours_of,
    pool_vendor,
    replicas_by_clock,
    scheduler_of,
)
from recipe_core.fleets.exports.router import replica_places
from recipe_core.fleets.exports.texts import render_export
from recipe_core.fleets.request import Pool
from recipe_core.payload.launcher.machine import VISIBLE
from recipe_core.targets.scale.keda import cron_triggers

_DAYS = 7
_PARTITION_NAME = re.compile(r"[A-Za-z0-9_][\w-]{0,60}", re.ASCII)
_NODE_NAMES = re.compile(r"[A-Za-z0-9][\w.,\[\]-]{0,250}", re.ASCII)


def partition_name(pool: Pool, *, preemptible: bool = False) -> str:
    """The partition of a pool: as its label says, and beside it the one of jobs that may end."""
    name = pool.labels.get(PARTITION, pool.name)
    name = name if _PARTITION_NAME.fullmatch(name) else pool.name
    return f"{name}-idle" if preemptible else name


def node_list(pool: Pool) -> str:
    """Nodes of a pool as Slurm lists them: its label ``nodes``, else the names of the plan."""
    nodes = pool.labels.get(NODES, "")
    return nodes if _NODE_NAMES.fullmatch(nodes) else f"{pool.name}-[0-{max(pool.nodes - 1, 0)}]"


def partition_files(answer: FleetAnswer, parts: Sequence[Part]) -> dict[str, str]:
    """Partitions, accounts with classes of service (QOS), and the script that keeps replicas."""
    pools = [pool for pool in answer.request.pools if scheduler_of(pool) == "slurm"]
    if not pools:
        return {}
    inside = [part for part in parts if part.scheduler == "slurm"]
    devices: dict[str, int] = {}
    for pool, cut in {(part.pool.name, part.placement.slice) for part in inside}:
        for team, count in team_quotas(inside, pool, cut).items():
            devices[team] = devices.get(team, 0) + count
    values = {
        "answer": answer,
        "pools": pools,
        "parts": inside,
        "devices": devices,
        "partition_name": partition_name,
        "node_list": node_list,
    }
    names = ("partitions.conf", "accounts.sh", "replicas.sh")
    return {f"slurm/{name}": render_export(f"slurm/{name}.j2", **values) for name in names}


def hand_files(answer: FleetAnswer, parts: Sequence[Part], port: int) -> dict[str, str]:
    """The script that starts and stops a machine's replicas, where no scheduler does.

    Those of several nodes are started by hand, as their bundles say.
    """
    rows = [
        (part, k, *place, VISIBLE["rocm" if pool_vendor(part.pool) == "amd" else "cuda"])
        for part in parts
        if part.scheduler == "hand" and part.devices_each <= part.devices_on_node
        for k, place in enumerate(replica_places(part, parts, port))
    ]
    script = render_export("hand/replicas.sh.j2", answer=answer, rows=rows)
    return {"hand/replicas.sh": script} if rows else {}


def night_files(
    answer: FleetAnswer, parts: Sequence[Part], bundles: Mapping[str, Files], namespace: str
) -> dict[str, str]:
    """Files that follow the hours of a day; none where nothing changes with them."""
    changing = [part for part in parts if part.changes]
    if not changing:
        return {}
    inside = [part for part in changing if part.scheduler == "kubernetes"]
    fleet = answer.request.name
    values = {
        "answer": answer,
        "namespace": namespace,
        "scaled": [_scaled_object(part, bundles) for part in inside if not part.trains],
        "windows": [part for part in inside if part.trains],
        "schedulers": {part.scheduler for part in changing},
        "starts": {name: round(60 * begin) for name, (begin, _) in hours_of(answer).items()},
        "queue_name": queue_name,
    }
    templates = {"period.sh": "period.sh", f"{fleet}@.service": "service"}
    templates |= {"scaledobjects.yaml": "scaledobjects.yaml"} if values["scaled"] else {}
    files = {n: render_export(f"nights/{t}.j2", **values) for n, t in templates.items()}
    for period in answer.periods:
        timer = render_export("nights/timer.j2", period=period, **values)
        files[f"{fleet}-{period}.timer"] = timer
    return {f"nights/{name}": text for name, text in files.items()}


def _scaled_object(part: Part, bundles: Mapping[str, Files]) -> dict[str, object]:
    """The object that KEDA scales: the bundle's; without one by whether a replica spans nodes."""
    kinds = [template.kind for template in pod_templates(bundles.get(part.name, {}))]
    usual = "LeaderWorkerSet" if part.devices_each > part.devices_on_node else "Deployment"
    hours = replicas_by_clock(part)
    return {
        "part": part,
        "kind": next(iter(kinds), usual),
        "fewest": min(hours),
        "triggers": cron_triggers(hours * _DAYS),
    }
