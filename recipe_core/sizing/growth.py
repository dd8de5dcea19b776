"""Growth: how long a size lasts when the load grows, and what the months until then cost.

The load of month m, 0 being now, is ``now · (1 + growth)^m``, and stays through the month.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from recipe_core.base.arrays import Float, Int
from recipe_core.hardware.prices import HOURS_PER_MONTH
from recipe_core.sizing.device_sizing import SizedDevice

NO_STEP = -1


@dataclass(frozen=True, slots=True)
class Step:
    """A rung of a ladder: so many units, the largest load they carry within limits, their price.

    ``capacity`` is in the unit of the load; ``count`` is what is bought or rented (nodes), and
    ``units`` what it is made of (devices).
    """

    count: int
    units: int
    capacity: float
    usd_per_hour: float


@dataclass(frozen=True, slots=True)
class Growth:
    """One choice through the months; month 0 is now."""

    growth_per_month: float
    ladder: tuple[Step, ...]
    load: tuple[float, ...]
    """By month."""
    steps: tuple[int | None, ...]
    """The step in use by month, its place in ``ladder``; None where none carries the load."""
    usd_by_month: tuple[float | None, ...]
    """Dollars of the month; None where no step carries the load."""
    holds_until: int | None
    """The last month up to which the step of today carries the load, within the horizon; None if
    none carries that of today."""
    next_unit_month: int | None
    """The first month that takes a larger step; None within the horizon."""
    ends_month: int | None
    """The first month whose load is beyond the largest step; None within the horizon."""
    total_usd: float | None
    """Of all months; None where the ladder ends before."""


@dataclass(frozen=True, slots=True)
class Choices:
    """Several choices under the same growth."""

    growths: Mapping[str, Growth]
    cheapest: str | None
    """By total, of those that last to the horizon; the first of several."""
    cheapest_by_month: tuple[str | None, ...]
    """Of those that carry the month's load; the first of several."""
    changes: tuple[tuple[int, str | None], ...]
    """Months from which another one is the cheapest, with its name."""

    def to_json(self) -> dict[str, Any]:
        """Its fields; ``growths`` by name, ``changes`` as ``[{"month": …, "cheapest": …}]``."""
        return {
            "growths": {name: asdict(growth) for name, growth in self.growths.items()},
            "cheapest": self.cheapest,
            "cheapest_by_month": list(self.cheapest_by_month),
            "changes": [{"month": month, "cheapest": name} for month, name in self.changes],
        }


def load_by_month(load: float, growth_per_month: float, months: int) -> Float:
    """``load · (1 + growth_per_month)^m`` for months 0 to ``months - 1``.

    Args:
        load: now, in any unit.
        growth_per_month: a share, above -1; negative where the load falls.
        months: of the horizon.
    """
    return np.asarray(load * (1 + growth_per_month) ** np.arange(months))


def grow_ladders(
    ladders: Mapping[str, Sequence[Step]], load: float, growth_per_month: float, months: int
) -> Choices:
    """Several choices by name (one at least), the cheapest of them in total and in each month.

    Args:
        ladders: their steps, each sorted by ``count``.
        load: now, in the unit of the steps' ``capacity``.
        growth_per_month: a share, negative where the load falls; steps are then handed back.
        months: of the horizon.
    """
    loads = load_by_month(load, growth_per_month, months)
    growths = {
        name: grow_ladder(tuple(steps), loads, growth_per_month) for name, steps in ladders.items()
    }
    names = list(growths)
    costs = np.array([growth.usd_by_month for growth in growths.values()], dtype=float)
    costs[np.isnan(costs)] = np.inf
    by_month = [
        names[place] if np.isfinite(cost) else None
        for place, cost in zip(costs.argmin(axis=0), costs.min(axis=0), strict=True)
    ]
    lasting = {
        name: growth.total_usd for name, growth in growths.items() if growth.total_usd is not None
    }
    return Choices(
        growths=growths,
        cheapest=min(lasting, key=lambda name: lasting[name], default=None),
        cheapest_by_month=tuple(by_month),
        changes=tuple(
            (month, by_month[month])
            for month in range(1, len(by_month))
            if by_month[month] != by_month[month - 1]
        ),
    )


def grow_ladder(ladder: tuple[Step, ...], load: Float, growth_per_month: float) -> Growth:
    """One choice through the months: the cheapest step that carries each month's load.

    Of equally dear steps the one with the least capacity. As a load rises, neither price nor
    capacity of the step in use ever falls.
    """
    used = _cheapest_steps(ladder, load)
    prices = np.array([step.usd_per_hour for step in ladder]) * HOURS_PER_MONTH
    carried = used != NO_STEP
    first = used[0]
    usd = np.where(carried, prices[used], np.nan)
    capacity = np.array([step.capacity for step in ladder])
    outgrown = load > capacity[first] if carried[0] else np.ones(len(load), dtype=bool)
    growing = outgrown & carried
    return Growth(
        growth_per_month=float(growth_per_month),
        ladder=ladder,
        load=tuple(load.tolist()),
        steps=tuple(place if place != NO_STEP else None for place in used.tolist()),
        usd_by_month=tuple(
            cost if is_carried else None
            for cost, is_carried in zip(usd.tolist(), carried, strict=True)
        ),
        holds_until=(_first_month(outgrown) or len(load)) - 1 if carried[0] else None,
        next_unit_month=_first_month(growing) if carried[0] else None,
        ends_month=_first_month(~carried),
        total_usd=float(usd.sum()) if carried.all() else None,
    )


def _cheapest_steps(ladder: tuple[Step, ...], load: Float) -> Int:
    """The place of the cheapest step that carries each load; -1 where none does.

    Steps sorted by capacity: those from the first that carries the load carry it too, so that the
    cheapest of each tail answers.
    """
    capacity = np.array([step.capacity for step in ladder])
    price = np.array([step.usd_per_hour for step in ladder])
    order = np.lexsort((price, capacity))
    cheapest = np.full(len(ladder) + 1, NO_STEP)
    for place in range(len(ladder) - 1, -1, -1):
        later = cheapest[place + 1]
        candidate = order[place]
        cheapest[place] = (
            candidate if later == NO_STEP or price[candidate] <= price[later] else later
        )
    return np.asarray(cheapest[np.searchsorted(capacity[order], load, side="left")])


def _first_month(months: Any) -> int | None:
    return int(np.argmax(months)) if months.any() else None


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
