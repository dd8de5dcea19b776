"""Replicas by the hour of the week, as KEDA's cron triggers give them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from recipe_core.base.arrays import Float
from recipe_core.request.scaling import Scaling
from recipe_core.scaling.fleet import Signals
from recipe_core.scaling.policies.columns import Paced, default_of, same_number


class Fixed(Paced):
    """A batch of numbers: ``max_replicas`` of each."""

    def __init__(self, scalings: Sequence[Scaling]) -> None:
        super().__init__(scalings, default_of("fixed", "interval_s"))

    def _look(self, _signals: Signals, /) -> Float:
        return self._high


HOURS = 168


def week_replicas(scaling: Scaling) -> Float:
    """Replicas of every hour of the week: of periods that overlap the largest, else the fewest."""
    replicas = np.full(HOURS, float(scaling.min_replicas))
    for period in scaling.periods:
        hours = slice(period.from_hour, period.to_hour)
        replicas[hours] = np.maximum(replicas[hours], period.replicas)
    return replicas


class Schedule(Paced):
    """A batch of schedules.

    A period's replicas are ordered when it begins and ready a start later; a number of 0 is kept
    to, whatever waits.
    """

    def __init__(self, scalings: Sequence[Scaling]) -> None:
        look_s = default_of("schedule", "interval_s")
        super().__init__(
            scalings, same_number(scalings, lambda scaling: scaling.interval_s, look_s)
        )
        self._week = np.stack([week_replicas(scaling) for scaling in scalings], axis=1)

    def _look(self, signals: Signals, /) -> Float:
        replicas: Float = self._week[int(signals.hour + 1e-6) % HOURS]
        return replicas
