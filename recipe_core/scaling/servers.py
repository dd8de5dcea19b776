"""Which server of a plan is a replica: the one that serves a load with the least devices.

A plan ranks splits of all its devices under one load. Over time a server of all of them is idle
most of the day; a smaller one follows the load, unless long prompts miss the limits on it.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from recipe_core.base.arrays import Float
from recipe_core.plans.plan import Plan
from recipe_core.plans.replicas import replicas_of
from recipe_core.request.serving_workload import ServingWorkload
from recipe_core.scaling.capacity import capacity_per_s
from recipe_core.scaling.curve import share_alone
from recipe_core.scaling.fleet import Fleet, StartTime
from recipe_core.scaling.service import service_of
from recipe_core.scaling.traces.load import Load

RATES = 256
"""Quantiles of a load's rates for which the devices of splits are counted."""
TRIED = 24
"""Servers of which the share of requests is counted that keep the limits alone."""
SIMULATED = 4
"""Servers whose capacity within the limits is simulated."""
WORSE = 2.0
"""Times the device-hours of the best server beyond which others are not looked at."""


def least_devices(chosen: Plan, load: Load, limits: Mapping[str, float], wanted: float) -> int:
    """The row whose servers need the least device-hours for the rates of a load; ties by rank.

    Servers are ordered by what their row serves at the load of the plan, which is the largest
    within the limits where that is searched. Those on which too many requests miss a limit even
    alone (long prompts) are passed over; of the first few others what each serves within the limits
    is simulated. Under arrivals at a rate every row serves the same, and the plan's best stays.
    """
    rows = chosen.order
    workload = chosen.request.workload
    if not isinstance(workload, ServingWorkload) or workload.mode != "closed":
        return int(rows[0])
    used = np.array([replicas_of(chosen, int(row)).devices for row in rows], dtype=float)
    servers = chosen.columns["gpus"][rows] / used
    tokens_per_s = chosen.columns["output_tokens_per_s"][rows]
    needed = _device_time(load, tokens_per_s / servers / load.lengths.mean_output, used)
    enough = 1 - (1 - wanted) / 2
    able: dict[int, float] = {}  # device-hours by row
    shares: dict[int, float] = {}  # of requests within the limits, alone
    seen: set[tuple[int, ...]] = set()
    for place in np.argsort(np.round(needed, 6), kind="stable").tolist():
        row = int(rows[place])
        server = tuple(int(chosen.columns[name][row]) for name in ("tp", "pp", "ep", "cp"))
        if server in seen:
            continue
        seen.add(server)
        least = min((needed[place], *able.values()))
        if len(able) == SIMULATED or needed[place] > WORSE * least or len(seen) > TRIED:
            break
        service = service_of(chosen, row, load.lengths)
        shares[row] = share_alone(service, load.lengths, limits)
        if shares[row] >= enough:
            able[row] = needed[place]
    if len(able) > 1:
        return min(able, key=lambda row: _simulated_time(chosen, row, load, limits, wanted))
    return next(iter(able), max(shares, key=lambda row: shares[row]))


def _device_time(load: Load, capacity_per_s: Float, devices: Float) -> Float:
    """Devices that are needed for the rates of a load, added up; one number a server."""
    rates = np.quantile(load.rates, np.linspace(0, 1, RATES))
    count = np.ceil(rates[:, None] / np.maximum(capacity_per_s, 1e-12))
    return np.asarray(count.sum(axis=0) * devices, dtype=np.float64)


def _simulated_time(
    chosen: Plan, row: int, load: Load, limits: Mapping[str, float], wanted: float
) -> float:
    """Device time by what a server of a row really serves within the limits."""
    devices = replicas_of(chosen, row).devices
    service = service_of(chosen, row, load.lengths)
    alone = Fleet(service, StartTime(0.0, 0.0, 0.0), devices, None, limits)
    capacity = np.array([capacity_per_s(alone, load, wanted)])
    return float(_device_time(load, capacity, np.array([float(devices)]))[0])
