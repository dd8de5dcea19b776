"""The ladder of one deployment: more and more of its replicas, what they carry and cost."""

from __future__ import annotations

from recipe_core.sizing.availability import Domains
from recipe_core.sizing.growth import Step
from recipe_core.sizing.sized import SizedDevice


def replicas_of(one: SizedDevice, row: int) -> tuple[int, int]:
    """How many replicas a row has, and the devices of each.

    Replicas that share experts, or a training job, are one deployment: they only come together.
    """
    degree = one.plan.degree
    devices = int(degree("gpus")[row])
    if one.plan.kind == "training" or int(degree("ep")[row]) > 1:
        return 1, devices
    replicas = int(degree("dp")[row])
    return replicas, devices // replicas


def domains_of(one: SizedDevice, row: int) -> Domains:
    """How the replicas of a row lie on machines."""
    replicas, devices = replicas_of(one, row)
    return Domains.of(replicas, devices, one.machine(row).hardware.per_node)


def rented_for(one: SizedDevice, row: int, replicas: int) -> int:
    """Devices that are rented for so many replicas like those of a row."""
    _, devices = replicas_of(one, row)
    per_node = one.machine(row).hardware.per_node
    unit: int = one.plan.setting(row).cluster.unit
    nodes = Domains.of(replicas, devices, per_node).nodes
    taken = nodes * per_node if unit >= per_node else replicas * devices
    return -(-taken // unit) * unit


def steps_of(one: SizedDevice, row: int, load: float) -> list[Step]:
    """Every number of replicas up to the most devices, with the load that they carry.

    ``load``: the largest that the row's own carry; more of them carry it in proportion, as requests
    are spread evenly.
    """
    replicas, _ = replicas_of(one, row)
    cluster = one.plan.setting(row).cluster
    price, most = cluster.usd_per_device_hour or 0.0, one.machine(row).most
    out: list[Step] = []
    count = 1
    while (rented := rented_for(one, row, count)) <= most:
        out.append(Step(rented // cluster.unit, rented, load / replicas * count, rented * price))
        count += 1
    last: dict[int, Step] = {}
    for step in out:  # of one number of units the most that they hold
        last[step.count] = step
    return list(last.values())
