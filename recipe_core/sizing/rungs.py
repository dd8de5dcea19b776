"""The ladder of one deployment: more and more of its replicas, what they carry and cost."""

from __future__ import annotations

from recipe_core.sizing.growth import Step
from recipe_core.sizing.sized import SizedDevice


def rented_for(device: SizedDevice, row: int, replicas: int, *, spares: bool = True) -> int:
    """Devices that are rented for so many replicas like those of a row, with their ``spares``."""
    _, devices = device.replicas_of(row)
    upkeep = device.upkeep(row) if spares else None
    if upkeep is None:
        return device.machine_upkeep(row).rented(replicas, devices)
    return upkeep.rented(upkeep.spares(replicas, devices).replicas, devices)


def ladder_steps(device: SizedDevice, row: int, load: float, *, spares: bool = True) -> list[Step]:
    """Every number of replicas up to the most devices, with the load that they carry.

    ``load``: the largest that the row's own carry; more of them carry it in proportion, as requests
    are spread evenly.
    """
    replicas, _ = device.replicas_of(row)
    cluster = device.plan.setting(row).cluster
    price, most_devices = cluster.usd_per_device_hour or 0.0, device.machine(row).most_devices
    out: list[Step] = []
    count = 1
    while (rented := rented_for(device, row, count, spares=spares)) <= most_devices:
        out.append(Step(rented // cluster.unit, rented, load / replicas * count, rented * price))
        count += 1
    last: dict[int, Step] = {}
    for step in out:  # of one number of units the most that they hold
        last[step.count] = step
    return list(last.values())
