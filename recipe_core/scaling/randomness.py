"""What is left to chance in a simulation: how long starts take, and what ends replicas.

The k-th order of a simulation has the same numbers whatever the policy, so that two policies of the
same seed differ by what they do (common random numbers).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf, log

import numpy as np

from recipe_core.base.arrays import Float
from recipe_core.scaling.fleet import Fleet, StartTime

# Width of the 80 % band of a normal distribution in standard deviations.
BAND = 2 * 1.2815515655446004
_AT_ONCE = 1024


def start_log_spread(start: StartTime) -> float:
    """Standard deviation of the logarithm of a start's seconds; 0 without a band."""
    if start.low_s <= 0 or start.high_s <= start.low_s:
        return 0.0
    return log(start.high_s / start.low_s) / BAND


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
        """What the order of that number meets."""
        self._reach(number + 1)
        events = fleet.events
        fails, reclaimed = self._waits[number]
        return Draw(
            float(self.starts_s(fleet.start, number, 1)[0]),
            _seconds_until_event(fails, events.failures_per_hour),
            _seconds_until_event(reclaimed, events.reclaims_per_hour),
        )

    def starts_s(self, start: StartTime, first: int, count: int) -> Float:
        """Seconds of the starts of so many orders, from number ``first`` on."""
        self._reach(first + count)
        spread = start_log_spread(start)
        if spread == 0.0:
            return np.full(count, start.seconds)
        return start.seconds * np.exp(spread * self._normal[first : first + count])

    def available(self, share: float) -> bool:
        """Whether capacity for an order exists, at random by its share."""
        return share >= 1.0 or bool(self._asked.random() < share)

    def _reach(self, count: int) -> None:
        while len(self._normal) < count:
            self._normal = np.append(self._normal, self._orders.standard_normal(_AT_ONCE))
            more = self._orders.exponential(1.0, (_AT_ONCE, 2))
            self._waits = np.concatenate([self._waits, more])


def _seconds_until_event(drawn: float, per_hour: float) -> float:
    return float(drawn) * 3600.0 / per_hour if per_hour > 0 else inf
