"""The decision of a buyer: the cheapest, the safest and the smallest hardware of a sizing."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from recipe_core.base.arrays import Float
from recipe_core.plans.limits import stated_limits
from recipe_core.sizing.device_sizing import SizedDevice

# Probability of keeping the limits from which more certainty is not worth its price.
SAFE = 0.99

# A device and a row of its plan.
Choice = tuple[SizedDevice, int]


def decide_hardware(devices: Sequence[SizedDevice]) -> dict[str, Choice | None]:
    """Choose among devices that hold the limits, ranked, and their numbers.

    ``cheapest``: the first. ``safest``: the cheapest that keeps the limits with ``SAFE``, or the
    likeliest where none does; None without limits. ``smallest``: the fewest rented devices, the
    cheapest of these. Devices whose price is to be doubted, or whose replicas span machines, count
    where the first is such a one.
    """
    if not devices or devices[0].best is None:
        return {"cheapest": None, "safest": None, "smallest": None}
    rows = [
        (device, int(row))
        for device in devices
        if device.tier == devices[0].tier
        for row in device.candidates[device.holds[device.candidates]]
    ]
    money = np.array([_money(device)[row] for device, row in rows])
    chance = np.array([device.confidence[row] for device, row in rows])
    rented = np.array([device.rented[row] for device, row in rows])
    sure = np.minimum(chance, SAFE)
    limited = bool(stated_limits(devices[0].plan))
    return {
        "cheapest": (devices[0], devices[0].best),
        "safest": rows[np.lexsort((money, -sure))[0]] if limited and len(rows) else None,
        "smallest": rows[np.lexsort((-chance, money, rented))[0]] if len(rows) else None,
    }


def _money(device: SizedDevice) -> Float:
    """Cost by row, spares included: of an hour, or of a token where the work ends."""
    cost = "usd_per_hour" if device.by_month else device.plan.spec.goals["cost"][0]
    return np.asarray(device.plan.columns[cost] * device.dearer, dtype=float)
