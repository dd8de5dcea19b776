"""The fleet that is simulated: replicas, limits, chance, and what a policy sees.

The k-th order of a simulation has the same numbers whatever the policy, so that two policies of the
same seed differ by what they do (common random numbers).

Signals and answers are arrays with one number a column. A column is a fleet of its own: a search
simulates hundreds of parameter sets side by side, a request-by-request simulation has one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from math import exp, inf, log
from typing import Protocol

import numpy as np

from recipe_core.base.arrays import Float, Int
from recipe_core.estimates.serving.scheduler import Requests, Rules, StepTimes
from recipe_core.request.over_time import Dispatch


@dataclass(frozen=True, slots=True)
class Signals:
    """Figures of all columns at a moment.

    at_s: seconds since the start of the simulation. hour: of the week, 0 to below 168.
    ready: replicas that answer. starting: ordered and not ready. running: requests in the engines
    of all replicas. waiting: requests that no engine has taken, in engines' queues and at the
    gateway. kv_usage: share of the cache in use, mean of the ready replicas. arrived: requests
    that have arrived since the start. times_s: seconds to the first token and between tokens of a
    request that arrives now, infinite where nothing is ready; called, as few policies look at them.
    """

    at_s: float
    hour: float
    ready: Float
    starting: Float
    running: Float
    waiting: Float
    kv_usage: Float
    arrived: Float
    times_s: Callable[[], tuple[Float, Float]]

    def take(self, columns: Int) -> Signals:
        """Return the figures of some columns."""

        def times_s() -> tuple[Float, Float]:
            ttft_s, tpot_s = self.times_s()
            return ttft_s[columns], tpot_s[columns]

        return Signals(
            self.at_s,
            self.hour,
            self.ready[columns],
            self.starting[columns],
            self.running[columns],
            self.waiting[columns],
            self.kv_usage[columns],
            self.arrived[columns],
            times_s,
        )


class Controller(Protocol):
    """A policy at work. It is asked every ``interval_s`` seconds and keeps its own memory."""

    interval_s: float

    def decide(self, signals: Signals) -> Float:
        """Replicas that should be there (ready and starting), one number a column, whole."""
        ...


def computed_tokens(input_tokens: Float, prefix_hit: float) -> Float:
    """Return tokens of prompts that are not found in the cache; at least one of each."""
    return np.maximum(input_tokens - np.floor(input_tokens * prefix_hit), 1.0)


@dataclass(frozen=True, slots=True)
class Service:
    """The scheduler of one replica, its rules and step times, and what is around it.

    request_s: from sending a request to the scheduler, and ``request_token_s`` for each token of
    its prompt. prefix_hit: share of prompt tokens found in the cache. late_steps: steps until a
    token is with its client; held_tokens: those that the first waits for before it is sent.
    """

    rules: Rules
    times: StepTimes
    request_s: float = 0.0
    request_token_s: float = 0.0
    prefix_hit: float = 0.0
    late_steps: float = 0.0
    held_tokens: float = 0.0

    def requests(self, input_tokens: Float | Int, output_tokens: Float | Int) -> Requests:
        """Requests of such lengths that are still to come."""
        inputs = input_tokens.astype(np.int64)
        outputs = np.maximum(output_tokens, 1).astype(np.int64)
        cached = (inputs - computed_tokens(inputs.astype(float), self.prefix_hit)).astype(np.int64)
        return Requests(inputs.tolist(), outputs.tolist(), cached.tolist())

    @property
    def longest_step_s(self) -> float:
        """Seconds of a step with the most prompt tokens and requests."""
        rules, (_, prompts, _, contexts) = self.rules, self.times.axes
        return self.times.mixed_s(
            rules.step_tokens, prompts[-1], rules.slots / rules.batches, contexts[-1]
        )


@dataclass(frozen=True, slots=True)
class StartTime:
    """Seconds from ordering a replica until it answers: the middle, and an 80 % band.

    Starts of a simulation are drawn from a lognormal distribution with this band, whose halves to
    either side of the middle are as wide as those of the band: late starts are later than early
    ones are early.
    """

    seconds: float
    low_s: float
    high_s: float


@dataclass(frozen=True, slots=True)
class Events:
    """The events of replicas besides scaling, as rates of one replica that is up.

    failures_per_hour: of its nodes; it is away for ``repair_s`` unless a new one is ordered, which
    every policy does, as its count falls. reclaims_per_hour: of spot capacity, after
    ``notice_s``. available: share of orders that capacity exists for.
    """

    failures_per_hour: float = 0.0
    repair_s: float = 0.0
    reclaims_per_hour: float = 0.0
    notice_s: float = 0.0
    available: float = 1.0


@dataclass(frozen=True, slots=True)
class Fleet:
    """All that a simulation needs besides the load and the policy.

    devices: of one replica. usd_per_hour: of the devices of one replica while it is ordered,
    starting, up or draining (None: unknown). limits_s: seconds by figure (``ttft_s``, ``tpot_s``,
    ``request_latency_s``) that a request must keep to count. rent: devices that are paid for a
    number of replicas of so many devices (``Cluster.rented``); left out, their own. dispatch: whom
    the router gives a request.
    """

    service: Service
    start: StartTime
    devices: int
    usd_per_hour: float | None
    limits_s: Mapping[str, float]
    events: Events = field(default_factory=Events)
    rent: Callable[[Float, int], Float] | None = None
    dispatch: Dispatch = "least-loaded"

    @property
    def usd_per_device_hour(self) -> float | None:
        """Price of a device; None where it is unknown."""
        return None if self.usd_per_hour is None else self.usd_per_hour / self.devices

    def rented(self, replicas: Float) -> Float:
        """Devices that are paid for so many replicas at once."""
        if self.rent is None:
            return np.asarray(replicas * self.devices)
        return self.rent(replicas, self.devices)


# Where the 80 % band of a normal distribution ends, in standard deviations.
BAND = 1.2815515655446004
_AT_ONCE = 1024


def start_log_spreads(start: StartTime) -> tuple[float, float]:
    """Standard deviations of a start's logarithm below and above its middle; 0 without a band."""
    if start.low_s <= 0 or start.high_s <= start.low_s:
        return 0.0, 0.0
    return log(start.seconds / start.low_s) / BAND, log(start.high_s / start.seconds) / BAND


@dataclass(frozen=True, slots=True)
class Draw:
    """Of one order: seconds of its start, and from ready until a failure and a reclaim."""

    start_s: float
    fails_s: float
    reclaimed_s: float

    def ends(self) -> Iterator[tuple[float, int]]:
        """Seconds and kind (1: failure, 2: reclaim) of what will end the replica."""
        if self.fails_s < inf:
            yield self.fails_s, 1
        if self.reclaimed_s < inf:
            yield self.reclaimed_s, 2


class Chance:
    """Numbers by order, from one seed."""

    def __init__(self, seed: int) -> None:
        self._orders = np.random.default_rng([seed, 1])
        self._asked = np.random.default_rng([seed, 2])
        self._normal: Float = np.zeros(0)
        self._waits: Float = np.zeros((0, 2))

    def draw(self, number: int, fleet: Fleet) -> Draw:
        """Return what the order of that number meets."""
        self._reach(number + 1)
        events = fleet.events
        fails, reclaimed = self._waits[number]
        start, normal = fleet.start, float(self.normals(number, 1)[0])
        early, late = start_log_spreads(start)
        return Draw(
            start.seconds * exp((early if normal < 0 else late) * normal),
            _seconds_until_event(fails, events.failures_per_hour),
            _seconds_until_event(reclaimed, events.reclaims_per_hour),
        )

    def normals(self, first: int, count: int) -> Float:
        """Return how late so many orders start, from number ``first`` on, in standard deviations.

        Those of the logarithm of a start's seconds.
        """
        self._reach(first + count)
        return self._normal[first : first + count]

    def available(self, share: float) -> bool:
        """Return whether capacity for an order exists, at random by its share."""
        return share >= 1.0 or bool(self._asked.random() < share)

    def _reach(self, count: int) -> None:
        while len(self._normal) < count:
            self._normal = np.append(self._normal, self._orders.standard_normal(_AT_ONCE))
            more = self._orders.exponential(1.0, (_AT_ONCE, 2))
            self._waits = np.concatenate([self._waits, more])


def _seconds_until_event(drawn: float, per_hour: float) -> float:
    return float(drawn) * 3600.0 / per_hour if per_hour > 0 else inf
