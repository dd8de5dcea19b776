"""Machines that fail or are taken back, and the spare replicas that keep enough of them up."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from recipe_core.base.arrays import Float
from recipe_core.base.errors import InputError
from recipe_core.base.numbers import LARGEST_COUNT
from recipe_core.hardware.cluster import Cluster
from recipe_core.hardware.failures import (
    NodeFailures,
    SpotMarket,
    node_failures,
    repair_hours,
    spot_market,
)
from recipe_core.hardware.prices import HOURS_PER_MONTH
from recipe_core.request.size import AvailabilityRequest

# Of a whole number that a division should have given.
ROUNDING = 1e-9
# Of a sum of probabilities that equals the target but for its bits.
ROUNDING_OF_CHANCE = 1e-12
# Share of paid spot hours below which nothing useful is left to price.
LEAST_USEFUL = 1e-6


def node_availability(mtbf_hours: float, repair_hours: float) -> float:
    """The share of time that a node is up: ``MTBF / (MTBF + MTTR)``.

    Args:
        mtbf_hours: mean time between failures of a node, in hours of being up, above 0.
        repair_hours: mean time from a failure until the node's replicas serve again, in hours.
    """
    return mtbf_hours / (mtbf_hours + repair_hours)


@dataclass(frozen=True, slots=True)
class Domains:
    """Replicas on nodes, the failure domains: a node that fails takes its replicas with it.

    Several replicas share a node, or one spans several; nodes are filled one after the other, so
    that only the last may have room.
    """

    replicas: int
    replicas_per_node: int = 1
    nodes_per_replica: int = 1

    @classmethod
    def of(cls, replicas: int, devices_per_replica: int, devices_per_node: int) -> Domains:
        """Replicas packed by their devices; one that spans nodes has them for itself."""
        return cls(
            replicas,
            max(devices_per_node // devices_per_replica, 1),
            -(-devices_per_replica // devices_per_node),
        )

    def resized(self, replicas: int) -> Domains:
        return Domains(replicas, self.replicas_per_node, self.nodes_per_replica)

    @property
    def nodes(self) -> int:
        return -(-self.replicas // self.replicas_per_node) * self.nodes_per_replica


def expected_share(domains: Domains, availability: float) -> float:
    """The expected share of replicas that are up: ``availability ** nodes_per_replica``.

    ``availability``: share of time that a node is up, from 0 to 1.
    """
    return float(availability**domains.nodes_per_replica)


def up_distribution(domains: Domains, availability: float) -> Float:
    """The probability that exactly 0, 1, …, ``replicas`` replicas are up, as an array.

    Full nodes are binomial, each with all of its replicas; the last node, where it is not full,
    is convolved with them.
    """
    share = expected_share(domains, availability)
    full, rest = divmod(domains.replicas, domains.replicas_per_node)
    up = np.zeros(domains.replicas + 1)
    up[: full * domains.replicas_per_node + 1 : domains.replicas_per_node] = (
        _binomial_probabilities(full, share)
    )
    if rest:
        last_up = share * up[:-rest]
        up *= 1 - share
        up[rest:] += last_up
    return up


def _binomial_probabilities(n: int, share: float) -> Float:
    """Probabilities of 0 … n successes, by logarithms: n over k is no float beyond n = 1,029."""
    if share in (0.0, 1.0):
        return np.asarray(np.eye(1, n + 1, n if share else 0)[0])
    k = np.arange(n + 1)
    log_choose = np.concatenate(([0.0], np.cumsum(np.log((n - k[:-1]) / k[1:]))))
    weights = np.exp(log_choose + k * math.log(share) + (n - k) * math.log1p(-share))
    return np.asarray(weights / weights.sum())


def chance_up_at_least(domains: Domains, availability: float, k: int) -> float:
    """The probability that at least ``k`` replicas are up; 0 for more than there are."""
    return min(1.0, float(up_distribution(domains, availability)[k:].sum()))


@dataclass(frozen=True, slots=True)
class Spares:
    """N + k replicas of which N are up with at least the probability ``target``, or on average."""

    needed: int
    """N, the replicas that carry the load."""
    spares: int
    """k, the replicas beside them."""
    replicas: int
    """N + k."""
    nodes_needed: int
    """Nodes of N replicas."""
    nodes: int
    """Nodes of N + k replicas."""
    target: float | None
    node_availability: float
    expected_share: float
    """Of replicas that are up."""
    up_probability: float
    """That at least N of N + k are up."""
    up_probability_without: float
    """That all N are up without spares."""

    @property
    def hours_short_per_month(self) -> float:
        """Hours of a month (730) in which fewer than N replicas are up."""
        return (1 - self.up_probability) * HOURS_PER_MONTH

    def to_json(self) -> dict[str, Any]:
        """Its fields and ``hours_short_per_month``."""
        return asdict(self) | {"hours_short_per_month": self.hours_short_per_month}


def find_spares(needed: Domains, availability: float, target: float | None) -> Spares:
    """The fewest spare replicas with which as many are up as are ``needed``.

    So many with the probability ``target``; without one on average.

    One replica more never makes it less likely that N are up, so that k is found by bisection.

    Args:
        needed: the N replicas that carry the load, and how they lie on nodes.
        availability: share of time that a node is up.
        target: probability, below 1, that at least N replicas are up at a moment; None: the mean
            of those that are up is at least N.

    Raises:
        InputError: where 100,000 replicas miss the target.
    """
    n, share = needed.replicas, expected_share(needed, availability)

    def chance(k: int) -> float:
        return chance_up_at_least(needed.resized(n + k), availability, n)

    def enough(k: int) -> bool:
        if target is None:
            return (n + k) * share >= n * (1 - ROUNDING)
        return chance(k) >= target - ROUNDING_OF_CHANCE

    low, high = -1, 0
    while not enough(high):
        if n + high == LARGEST_COUNT:
            raise InputError(
                f"{target or share:g} is not reached with {LARGEST_COUNT:,} replicas on nodes that "
                f"are up {availability:.4g} of the time.",
                field="target",
                hint="Lower it, or repair faster.",
            )
        low, high = high, min(2 * high + 1, LARGEST_COUNT - n)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    fleet = needed.resized(n + high)
    return Spares(
        needed=n,
        spares=high,
        replicas=fleet.replicas,
        nodes_needed=needed.nodes,
        nodes=fleet.nodes,
        target=target,
        node_availability=float(availability),
        expected_share=share,
        up_probability=chance(high),
        up_probability_without=chance(0),
    )


@dataclass(frozen=True, slots=True)
class Spot:
    """Capacity that its owner may take back, and how much of it serves."""

    reclaims_per_hour: float
    """Of one instance, while it is held."""
    restart_s: float
    held: float
    """Share of the instances asked for that one has."""
    useful_share: float
    """Of paid hours: those in which a replica serves."""
    lost_share: float
    """Of the capacity asked for: not held, or starting."""
    usd_per_hour: float | None
    usd_per_useful_hour: float | None
    """Price of an hour that serves: ``usd_per_hour / useful_share``."""
    devices: int
    """That serve without losses."""
    extra_devices: int
    """To ask for beside them, so that as many serve on average."""


def price_spot(
    reclaims_per_hour: float,
    restart_s: float,
    *,
    usd_per_hour: float | None = None,
    devices: int = 1,
    devices_per_instance: int = 1,
    instances_per_replica: int = 1,
    held_share: float = 1.0,
) -> Spot:
    """Return what spot instances hold and cost.

    An instance lives an exponential time of mean 1/λ, of which the first ``restart_s`` (r hours)
    are paid and serve nothing: ``E[max(L - r, 0)] / E[L] = exp(-λ·r)`` of paid hours serve. A
    replica on m instances serves while all are older than r: ``exp(-m·λ·r)``. The capacity asked
    for serves ``held_share`` times that. Left out: waiting replacements that the notice of a
    reclaim lets start early, and reclaims of many instances at once.

    Args:
        reclaims_per_hour: λ, per instance and hour held.
        restart_s: seconds from a new instance to a replica that serves: start and load.
        usd_per_hour: price of a device-hour, or of whatever else is priced.
        devices: devices that are to serve on average.
        devices_per_instance: the devices of an instance; whole instances are asked for.
        instances_per_replica: m, the instances that a replica spans.
        held_share: share of the instances asked for that the market gives.

    Raises:
        InputError: where next to nothing would serve.
    """
    useful = math.exp(-instances_per_replica * reclaims_per_hour * restart_s / 3600)
    serving = useful * held_share
    if serving < LEAST_USEFUL:
        raise InputError(
            f"{reclaims_per_hour:g} leaves {serving:.1g} of the capacity to serve with restarts of "
            f"{restart_s:g} s.",
            field="reclaims_per_hour",
            hint="Take on-demand instances, or start faster.",
        )
    instances = math.ceil(devices / serving / devices_per_instance - ROUNDING)
    return Spot(
        reclaims_per_hour=reclaims_per_hour,
        restart_s=restart_s,
        held=held_share,
        useful_share=useful,
        lost_share=1 - serving,
        usd_per_hour=usd_per_hour,
        usd_per_useful_hour=None if usd_per_hour is None else usd_per_hour / useful,
        devices=devices,
        extra_devices=max(instances * devices_per_instance - devices, 0),
    )


# From a new machine to replicas that serve; assumed, as long as a restart of a training run.
RESTART_S = 600.0


@dataclass(frozen=True, slots=True)
class Upkeep:
    """The upkeep of replicas on the machines of a cluster.

    ``availability``: None where the request does not ask, so that only what a spot market takes
    back counts, on average.
    """

    place: Cluster
    owned: bool
    availability: AvailabilityRequest | None

    @property
    def market(self) -> SpotMarket | None:
        """Return how often machines are taken back; None where they are not."""
        if self.place.commitment != "spot" or self.place.offer is None:
            return None
        return spot_market(self.place.device.architecture)

    @property
    def failures(self) -> NodeFailures:
        """Return how often machines fail, unless the request says it."""
        return node_failures(self.place.device.architecture, self.place.per_node)

    @property
    def mtbf_hours(self) -> float:
        """Mean time between failures of a machine."""
        stated_hours = self.availability.node_mtbf_hours if self.availability else None
        return stated_hours or self.failures.mtbf_hours

    @property
    def repair_hours(self) -> float:
        """Mean time from a failure until the replicas of a machine serve again."""
        if self.availability is not None and self.availability.repair_hours is not None:
            return self.availability.repair_hours
        return repair_hours("own" if self.owned else "rented") + RESTART_S / 3600.0

    def domains(self, replicas: int, devices: int) -> Domains:
        """Return how replicas lie on what is lost at once: machines, or spot parts of them."""
        per_node = self.place.per_node
        if self.market is not None:
            rented_devices = -(-devices // self.place.unit) * self.place.unit
            per_node = min(per_node, max(rented_devices, self.place.unit))
        return Domains.of(replicas, devices, per_node)

    @property
    def up(self) -> float:
        """The share of time that a machine is up: not failed, and not taken back."""
        down = 0.0
        if self.availability is not None:
            down = 1 / node_availability(self.mtbf_hours, self.repair_hours) - 1
        if self.market is not None:
            down += self.market.reclaims_per_hour * RESTART_S / 3600.0
        return 1 / (1 + down)

    def spares(self, replicas: int, devices: int) -> Spares:
        """Spare replicas beside those that carry the load.

        So many that enough are up for the share of time that is asked for; without one, on average.

        Raises:
            InputError: where no number of them is enough.
        """
        target = self.availability.target if self.availability else None
        return find_spares(self.domains(replicas, devices), self.up, target)

    def rented(self, replicas: int, devices: int) -> int:
        return int(self.place.rented(replicas, devices))

    def spot_json(self, replicas: int, devices: int) -> dict[str, Any] | None:
        """Return what reclaims cost, where machines are taken back."""
        if (market := self.market) is None:
            return None
        capacity = price_spot(
            market.reclaims_per_hour,
            RESTART_S,
            usd_per_hour=self.place.usd_per_device_hour,
            devices=replicas * devices,
            devices_per_instance=self.place.unit,
            instances_per_replica=self.domains(replicas, devices).nodes_per_replica,
            held_share=market.held,
        )
        return {**asdict(capacity), "basis": market.basis}
