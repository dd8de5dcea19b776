"""The probability that all limits of a fleet hold together, by scenarios of shared errors.

What a replica truly holds is not known: with which probability it holds a load is, from calibrated
intervals, so that its true capacity has a distribution. Errors of one device, engine and version
are in part the same whatever model runs on them, and those of one model on one of them are the same
in every pool. Normal scores with these common parts (a Gaussian copula) are drawn evenly. Nodes
fail and are reclaimed one by one, with all that stands on them. In a scenario a model holds where
the capacities of its replicas that are up carry its load, as a router that sends less to what is
slower lets them.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from recipe_core.base.arrays import Bool, Float
from recipe_core.base.intervals import NORMAL
from recipe_core.fleets.answer import NodeShare
from recipe_core.fleets.columns import Column, load_replica
from recipe_core.fleets.pools import ResolvedPool
from recipe_core.hardware.failures import node_failures, repair_hours
from recipe_core.sizing.spares import node_availability

# Scenarios: the joint probability is then known within about a percent.
SCENARIOS = 8192
SEED = 20_240_229
# Loads at which chances are asked for, over the capacity that is planned with.
LOADS = np.concatenate([[1e-3], np.geomspace(0.3, 3.0, 39)])
# Share of a load that rounding may lack, and the chance nearest to none or all.
ROUNDING, LEAST_CHANCE = 1e-6, 1e-12
# Hours from a node that is repaired to replicas that serve.
RESTART_HOURS = 1 / 6


def share_up(pool: ResolvedPool) -> float:
    """Return the share of time in which a node of a pool serves: it fails, or is reclaimed."""
    failures = node_failures(pool.profile.architecture, pool.per_node)
    repair = repair_hours("own" if pool.pool.stands_on_premises else "rented")
    return pool.up * node_availability(failures.mtbf_hours, repair + RESTART_HOURS)


@dataclass(frozen=True, slots=True)
class Stated:
    """Replicas of one layout of an owner: how many, and under which load together.

    ``free``: share of requests that find the devices free. ``up``: share of time that a replica
    serves, or each of the ``nodes`` where these are stated.
    """

    owner: str
    column: Column
    replicas: int
    load: float
    free: float = 1.0
    up: float = 1.0
    nodes: Sequence[NodeShare] = ()


def _hold_loads(column: Column, scores: Float) -> Float:
    """The load that a replica holds where its error has these normal scores; high ones hold less.

    With which chance it holds loads up to three times its own is asked for.
    """
    loads = column.capacity * LOADS
    if column.plan.problem.workload.mode != "open":
        loads = np.unique(np.maximum(np.round(loads), 1.0))
    judged = load_replica(column, loads)
    chances = np.where(judged.runs & ~judged.queues, np.nan_to_num(judged.chances), 0.0)
    chances = np.minimum.accumulate(chances)[::-1]  # rise as loads fall
    chances = np.clip(chances, LEAST_CHANCE, 1.0 - LEAST_CHANCE)
    highest = np.array([NORMAL.inv_cdf(chance) for chance in chances.tolist()])
    return np.asarray(np.append(loads[::-1], 0.0)[np.searchsorted(highest, scores)])


class _Scenarios:
    """Errors and failures that placements share, drawn where they are first asked for."""

    def __init__(self) -> None:
        self._generator = np.random.default_rng(SEED)
        self._drawn: dict[tuple[str, ...], Any] = {}

    def _draw(self, key: tuple[str, ...], values: Float | Bool) -> Any:
        """Values of equally likely ranges in random order: the same for a key."""
        if key not in self._drawn:
            self._drawn[key] = self._generator.permutation(values)
        return self._drawn[key]

    def draw_capacity(self, placement: Stated) -> Float:
        """Return what all replicas of a placement that are up hold in each scenario."""
        software, shared = placement.column.software, placement.column.shared_error
        common = self._draw(("software", *software), _even_scores())
        alone = self._draw(("owner", placement.owner, *software), _even_scores())
        score = math.sqrt(shared) * common + math.sqrt(1.0 - shared) * alone
        return np.asarray(self._count_up(placement) * _hold_loads(placement.column, score))

    def _count_up(self, placement: Stated) -> Any:
        """Replicas that are up: with their nodes, or each by itself where these are not stated."""
        placed = sum(share.replicas for share in placement.nodes)
        if not placed:
            return self._generator.binomial(placement.replicas, placement.up, SCENARIOS)
        is_up = np.arange(SCENARIOS) < placement.up * SCENARIOS
        up = sum(share.replicas * self._draw((share.node,), is_up) for share in placement.nodes)
        return up * (placement.replicas / placed)


@cache
def _even_scores() -> Float:
    shares = (np.arange(SCENARIOS) + 0.5) / SCENARIOS
    return np.array([NORMAL.inv_cdf(share) for share in shares.tolist()])


def joint_probabilities(placements: Sequence[Stated]) -> tuple[float, Mapping[str, float]]:
    """Return the probability that all owners hold, and that each does; 1 where there are none."""
    scenarios = _Scenarios()
    owners: defaultdict[str, list[Stated]] = defaultdict(list)
    for placement in placements:
        owners[placement.owner].append(placement)
    everything, free, by_owner = np.ones(SCENARIOS, dtype=np.bool_), 1.0, {}
    for owner, members in owners.items():
        load = sum(placement.load for placement in members)
        capacity = np.sum([scenarios.draw_capacity(placement) for placement in members], axis=0)
        holds = capacity >= load * (1 - ROUNDING)
        found_free = min(placement.free for placement in members)
        by_owner[owner] = _share_of(holds) * found_free
        everything, free = everything & holds, free * found_free
    return (_share_of(everything) * free if owners else 1.0), by_owner


def _share_of(scenarios: Bool) -> float:
    """The share of scenarios that hold; never all, as one more might not."""
    return min(float(scenarios.mean()), 1.0 - 1.0 / len(scenarios))
