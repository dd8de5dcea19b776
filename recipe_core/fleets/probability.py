"""The probability that all limits of a fleet hold together, by scenarios of shared errors.

What a replica truly holds is not known: with which probability it holds a load is, from calibrated
intervals, so that its true capacity has a distribution. Errors of one device, engine and version
are in part the same whatever model runs on them, and those of one model on one of them are the same
in every pool. Normal scores with these common parts (a Gaussian copula) are drawn evenly; in a
scenario a model holds where the capacities of all its replicas carry its load, as a router that
sends less to what is slower lets them.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from recipe_core.base.arrays import Bool, Float
from recipe_core.base.intervals import NORMAL
from recipe_core.fleets.columns import Column, judge_loads

# Scenarios: the joint probability is then known within about a percent.
SCENARIOS = 8192
SEED = 20_240_229
# Loads at which chances are asked for, over the capacity that is planned with.
LOADS = np.concatenate([[1e-3], np.geomspace(0.3, 3.0, 39)])
# Share of a load that rounding may lack.
ROUNDING = 1e-6


@dataclass(frozen=True, slots=True)
class Stated:
    """Replicas of one layout of an owner: how many, under which load, and what they may hold.

    ``load``: of all of them. ``replicas``: that serve on average. ``free``: share of requests that
    find the devices free. ``loads`` and ``chances``: of one replica, both rising and falling.
    """

    owner: str
    column: Column
    replicas: float
    load: float
    loads: Float
    chances: Float
    free: float = 1.0

    @classmethod
    def of(
        cls, owner: str, column: Column, replicas: float, load: float, free: float = 1.0
    ) -> Stated:
        """Ask with which chance a replica of a column holds loads up to three times its own."""
        loads = column.capacity * LOADS
        if column.plan.problem.workload.mode != "open":
            loads = np.unique(np.maximum(np.round(loads), 1.0))
        chances = np.minimum.accumulate(judge_loads(column, loads))
        return cls(owner, column, replicas, load, loads, chances, free)

    def capacities(self, shares: Float) -> Float:
        """The load that a replica holds where ``shares`` of all cases are better than it."""
        rising = self.chances[::-1]  # chance of holding at least, from the largest load on
        place = np.searchsorted(rising, shares, side="left")
        return np.asarray(np.append(self.loads[::-1], 0.0)[place])


def draw_capacities(placements: Sequence[Stated], scenarios: int = SCENARIOS) -> Float:
    """Return what all replicas of each placement hold in each scenario."""
    generator = np.random.default_rng(SEED)
    scores: dict[tuple[str, ...], Float] = {}
    out = np.zeros((len(placements), scenarios))
    for k, placement in enumerate(placements):
        software, shared = placement.column.software, placement.column.shared_error
        for key in (software, (*software, placement.owner)):
            if key not in scores:
                scores[key] = _draw_even_scores(generator, scenarios)
        score = math.sqrt(shared) * scores[software]
        score = score + math.sqrt(1.0 - shared) * scores[*software, placement.owner]
        shares = np.array([NORMAL.cdf(value) for value in score.tolist()])
        out[k] = placement.replicas * placement.capacities(shares)
    return out


def _draw_even_scores(generator: np.random.Generator, scenarios: int) -> Float:
    """Normal scores, one from each of as many equally likely ranges, in random order."""
    shares = (generator.permutation(scenarios) + generator.random(scenarios)) / scenarios
    return np.array([NORMAL.inv_cdf(share) for share in shares.tolist()])


def joint_probabilities(placements: Sequence[Stated]) -> tuple[float, Mapping[str, float]]:
    """Return the probability that all owners hold, and that each does."""
    if not placements:  # nothing is served
        return 0.0, {}
    capacities = draw_capacities(placements)
    members: defaultdict[str, list[int]] = defaultdict(list)
    for k, placement in enumerate(placements):
        members[placement.owner].append(k)
    everything, by_owner = np.ones(capacities.shape[1], dtype=np.bool_), {}
    free = 1.0
    for owner, places in members.items():
        load = sum(placements[k].load for k in places)
        holds = capacities[places].sum(axis=0) >= load * (1 - ROUNDING)
        found_free = min(placements[k].free for k in places)
        by_owner[owner] = _share_of(holds) * found_free
        everything &= holds
        free *= found_free
    return _share_of(everything) * free, by_owner


def _share_of(scenarios: Bool) -> float:
    """The share of scenarios that hold; never all, as one more might not."""
    return min(float(scenarios.mean()), 1.0 - 1.0 / len(scenarios))
