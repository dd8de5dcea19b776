"""Files for what changes with the hours, and replicas where Slurm keeps no number of them.

KEDA follows the clock by triggers; elsewhere timers of systemd run a script as a period begins.
Slurm has a partition a pool, with a second one over the same nodes whose jobs serving may end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from recipe_core.fleets.answer import FleetAnswer
from recipe_core.fleets.exports.cluster import team_quotas
from recipe_core.fleets.exports.labels import scheduler_of
from recipe_core.fleets.exports.parts import Part
from recipe_core.fleets.exports.router import replica_addresses
from recipe_core.fleets.exports.texts import render_export
from recipe_core.targets.scale.keda import DAY, cron_triggers
from recipe_core.targets.slurm import slurm_files

_DAYS = 7


def partition_files(answer: FleetAnswer, parts: Sequence[Part]) -> dict[str, str]:
    """Slurm's partitions, accounts with classes of service (QOS), and jobs with their script.

    Every replica has a job with a port of its own, beside what its processes read.
    """
    pools = [pool for pool in answer.request.pools if scheduler_of(pool) == "slurm"]
    inside = [part for part in parts if part.scheduler == "slurm" and part.target_files]
    devices = Counter[str]()
    for pool, cut in {(part.pool.name, part.placement.slice) for part in inside}:
        devices.update(team_quotas(inside, pool, cut))
    values = {"answer": answer, "pools": pools, "parts": inside, "devices": devices}
    names = ("partitions.conf", "accounts.sh", "replicas.sh") if pools else ()
    files = {f"slurm/{name}": render_export(f"slurm/{name}.j2", **values) for name in names}
    for part in inside:
        context = part.bundle.context
        for k, (_, port) in enumerate(replica_addresses(part, parts)):
            parameters = context.parameters.model_copy(update={"port": port})
            job = slurm_files(replace(context, parameters=parameters))
            folder = f"slurm/{part.name}/{k}"
            files |= {f"{folder}/{name}": text for name, text in {**context.mounted, **job}.items()}
    return files


def night_files(answer: FleetAnswer, parts: Sequence[Part]) -> dict[str, str]:
    """Files that follow the hours of a day; none where nothing changes with them."""
    changing = [part for part in parts if part.changes]
    if not changing:
        return {}
    inside = [part for part in changing if part.scheduler == "kubernetes"]
    hours = period_hours(answer)
    triggers = {
        part: cron_triggers(clock_replicas(part, hours) * _DAYS)
        for part in inside
        if part.pod_templates and not part.trains
    }
    fleet = answer.request.name
    values = {
        "answer": answer,
        "triggers": triggers,
        "windows": [part for part in inside if part.trains],
        "schedulers": {part.scheduler for part in changing},
    }
    templates = {"period.sh": "period.sh", f"{fleet}@.service": "service"}
    templates |= {"scaledobjects.yaml": "scaledobjects.yaml"} if triggers else {}
    files = {n: render_export(f"nights/{t}.j2", **values) for n, t in templates.items()}
    for period, (begin, _) in hours.items():
        clock = "{:02d}:{:02d}".format(*divmod(round(60 * begin), 60))
        timer = render_export("nights/timer.j2", fleet=fleet, period=period, clock=clock)
        files[f"{fleet}-{period}.timer"] = timer
    return {f"nights/{name}": text for name, text in files.items()}


def period_hours(answer: FleetAnswer) -> dict[str, tuple[float, float]]:
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


def clock_replicas(part: Part, hours: Mapping[str, tuple[float, float]]) -> list[int]:
    """Replicas at each hour of a day; in an hour of two periods the more."""
    counts = [0] * DAY
    for period, (begin, end) in hours.items():
        for hour in range(int(begin), int(-(-end // 1))):
            counts[hour % DAY] = max(counts[hour % DAY], part.placement.replicas[period])
    return counts
