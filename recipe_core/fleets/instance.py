"""A fleet in numbers: loads, replicas that hold them, pools that bound these, and a solution."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from recipe_core.base.arrays import Bool, Float, Int
from recipe_core.fleets.request import Goal


@dataclass(frozen=True, slots=True)
class Demand:
    """A load that goes on: by users' region and slot, with what has to survive.

    ``failures``: domains (``node``, ``rack``, ``pool``) that may be down at once.
    """

    loads: Float
    priority: int = 100
    failures: int = 0
    domain: str = "node"


@dataclass(frozen=True, slots=True)
class Work:
    """A job: runs a day, in slots in which it may run; ``single``: one worker at a time."""

    runs_per_day: float
    slots: Bool
    priority: int = 10
    preemptible: bool = True
    single: bool = False


@dataclass(frozen=True, slots=True)
class Option:
    """A way to run an owner in a pool: whole devices or one slice a replica.

    ``owner``: its number among demands, or works where ``job``. ``devices``: that it takes, packed
    into nodes. ``capacities``: load that it holds, by users' region (of a job runs an hour).
    ``watts``: under it. ``up``: share of time that it serves. ``nap``: share of the time that it
    is awake where it shares its devices asleep; None where it has them for itself, as what must
    survive a loss has. ``rests``: parts of its devices' share of the host's memory, and of the
    memory that engines leave free on them, that it keeps asleep.
    """

    owner: int
    pool: int
    devices: float
    capacities: tuple[float, ...]
    watts: float = 0.0
    slice: str | None = None
    job: bool = False
    up: float = 1.0
    nap: float | None = None
    rests: tuple[float, float] = (0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Supply:
    """A pool: machines, what of them is paid when, and how devices may be cut.

    ``paid``: ``used`` (by devices in use), ``fixed`` (all, always), ``nodes`` (whole machines that
    are rented), ``devices`` (single ones). ``reserve_usd``: price of a device-hour for which
    machines may be reserved. ``co2``: grams per watt-hour, building included.
    """

    nodes: int
    per_node: int
    usd: float
    paid: Literal["used", "fixed", "nodes", "devices"] = "used"
    racks: int = 1
    reserve_usd: float | None = None
    most_watts: float | None = None
    cuts: tuple[Mapping[str, int], ...] = ()
    co2: float = 0.0


@dataclass(frozen=True)
class Instance:
    """A fleet in numbers.

    ``hours``: of a day, by slot; ``parts``: of the months ahead, each with its slots of a day, one
    after another; ``most_usd``: highest cost of an hour in any of them.
    """

    demands: tuple[Demand, ...]
    options: tuple[Option, ...]
    supplies: tuple[Supply, ...]
    works: tuple[Work, ...] = ()
    hours: tuple[float, ...] = (24.0,)
    goal: Goal = "money"
    most_usd: float | None = None
    parts: int = 1


@dataclass(frozen=True)
class Solution:
    """The fleet that was found, by option, pool and slot. ``bound``: nothing is better than it."""

    replicas: Int
    flows: Float
    unmet: Float
    undone: Float
    machines: Int
    reserved: Int
    cuts: tuple[Int, ...]
    groups: Mapping[tuple[int, int, int], tuple[int, ...]]
    usd_per_hour: float
    objective: float
    bound: float
    gap: float
    proven: bool
    seconds: float


def pack_footprints(sizes: Iterable[int], per_node: int) -> dict[int, float]:
    """Return the devices that replicas of some sizes take of their nodes, so that sums fit.

    Sizes that divide each other pack without loss. Others are raised to the next size of the
    chain; one larger than a node takes whole nodes.
    """
    out: dict[int, float] = {}
    above = float(per_node)
    for size in sorted(set(sizes), reverse=True):
        if size > per_node:
            out[size] = -(-size // per_node) * float(per_node)
            continue
        share = per_node / (per_node // size)
        if above % share:  # it would leave rests that nothing fills
            share = above
        out[size] = above = share
    return out
