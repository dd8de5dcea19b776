"""How much a replica carries within limits, and how many replicas a rate needs.

In the long run at one rate, with the chance of arrivals in it, as the flow has it (``shares``): the
more replicas a router chooses among, the more each of them carries.
"""

from __future__ import annotations

import numpy as np

from recipe_core.base.arrays import Float, Int
from recipe_core.scaling.fleet import Fleet
from recipe_core.scaling.shares import GROUPS, shares_of
from recipe_core.scaling.traces.load import Load

# Share of requests that must keep the limits, where nothing else is said.
ATTAINMENT = 0.99
_RATES = 400


def capacity_per_s(
    fleet: Fleet, load: Load, attainment: float = ATTAINMENT, replicas: float = 1.0
) -> float:
    """Largest rate of one replica, of so many, at which the share of requests keeps the limits.

    Requests per second; 0 where a lone request does not keep them.
    """
    return float(_replica_capacities(fleet, load, attainment, np.array([float(replicas)]))[0])


def replicas_for(fleet: Fleet, load: Load, rates: Float, attainment: float = ATTAINMENT) -> Int:
    """Fewest replicas for each rate (requests per second); 0 where nothing comes.

    Where no number is enough, since a lone request breaks the limits, as many as serve the rate.
    """
    shares = shares_of(fleet, load)
    counts = np.array(sorted({*range(1, 9), *GROUPS, *np.geomspace(8, GROUPS[-1], 9)}))
    capacities = _replica_capacities(fleet, load, attainment, counts)
    if not capacities[-1] > 0:
        capacities = np.full(len(counts), shares.curve.fastest)
    rates = np.asarray(rates, dtype=float)
    needed = np.maximum(np.ceil(rates / capacities[-1] - 1e-9), rates > 0)
    while True:  # fewer replicas carry less each; from the last of GROUPS on all carry the same
        short = (needed > 0) & (needed * np.interp(needed, counts, capacities) < rates * (1 - 1e-9))
        if not short.any():
            return np.asarray(needed, dtype=np.int64)
        needed = needed + short


def _replica_capacities(fleet: Fleet, load: Load, attainment: float, replicas: Float) -> Float:
    shares = shares_of(fleet, load)
    rates = np.linspace(0.0, shares.curve.fastest, _RATES)
    share_kept = shares.by_rate(rates[:, None], np.broadcast_to(replicas, (_RATES, len(replicas))))
    enough = share_kept >= attainment
    last = np.where(enough.any(axis=0), _RATES - 1 - np.argmax(enough[::-1], axis=0), 0)
    return np.asarray(np.maximum.accumulate(rates[last]))
