"""Policies at work: paced looks at the figures of many columns, and numbers by the clock."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np

from recipe_core.base.arrays import Bool, Float, Int
from recipe_core.request.scaling import Scaling
from recipe_core.scaling.fleet import Controller, Signals
from recipe_core.scaling.policies.rows import default_of, parameters, same_parameter
from recipe_core.scaling.policies.rules import ROUNDING
from recipe_core.scaling.policies.windows import SLACK_S

HOURS = 168


class Paced(ABC):
    """A policy that looks every ``interval_s``: asked sooner, it repeats its last answer.

    Looks lie on a grid from second 0, so a simulator with steps of its own keeps their mean pace.
    """

    def __init__(self, scalings: Sequence[Scaling], interval_s: float) -> None:
        self.interval_s = interval_s
        self._low = parameters(scalings, "min_replicas")
        self._high = parameters(scalings, "max_replicas")
        self._wanted = self._low
        self._due_s = -np.inf

    def decide(self, signals: Signals) -> Float:
        """Return replicas that should be there, one number a column. Not to be written to."""
        if signals.at_s < self._due_s - SLACK_S:
            return self._wanted
        if self._due_s == -np.inf:
            self._wanted = self._bounded(np.rint(signals.ready + signals.starting))
            self._begin(signals)
        self._due_s = next_look(signals.at_s, self.interval_s)
        self._wanted = self._look(signals)
        return self._wanted

    def _begin(self, _signals: Signals, /) -> None:
        """Do what comes before the first look."""
        return

    def _bounded(self, replicas: Float) -> Float:
        bounded: Float = np.minimum(np.maximum(replicas, self._low), self._high)
        return bounded

    @abstractmethod
    def _look(self, signals: Signals, /) -> Float:
        """Return the new number of replicas; ``self._wanted`` is the last one."""


class Due:
    """A loop inside a policy, which comes round every ``interval_s``."""

    def __init__(self, interval_s: float) -> None:
        self.interval_s = interval_s
        self._at_s = -np.inf

    def comes(self, at_s: float) -> bool:
        """Return whether it is due, and go on to its next time."""
        if at_s < self._at_s - SLACK_S:
            return False
        self._at_s = next_look(at_s, self.interval_s)
        return True


def next_look(at_s: float, interval_s: float) -> float:
    """Return the first multiple of an interval after a moment."""
    return (math.floor((at_s + SLACK_S) / interval_s) + 1) * interval_s


def open_requests(signals: Signals) -> Float:
    return signals.waiting + signals.running


def has_waiting(signals: Signals) -> Bool:
    """Return where requests wait, for a replica or in one."""
    wait: Bool = signals.waiting > ROUNDING
    return wait


class Fixed(Paced):
    """A batch of numbers: ``max_replicas`` of each."""

    def __init__(self, scalings: Sequence[Scaling]) -> None:
        super().__init__(scalings, default_of("fixed", "interval_s"))

    def _look(self, _signals: Signals, /) -> Float:
        return self._high


def week_replicas(scaling: Scaling) -> Float:
    """Return replicas of every hour of the week: of periods that overlap the largest."""
    replicas = np.full(HOURS, float(scaling.min_replicas))
    for period in scaling.periods:
        hours = slice(period.from_hour, period.to_hour)
        replicas[hours] = np.maximum(replicas[hours], period.replicas)
    return replicas


class Schedule(Paced):
    """A batch of schedules, as KEDA's cron triggers follow them.

    A period's replicas are ordered when it begins and ready a start later; a number of 0 is kept
    to, whatever waits.
    """

    def __init__(self, scalings: Sequence[Scaling]) -> None:
        super().__init__(scalings, same_parameter(scalings, "interval_s"))
        self._week = np.stack([week_replicas(scaling) for scaling in scalings], axis=1)

    def _look(self, signals: Signals, /) -> Float:
        replicas: Float = self._week[int(signals.hour + 1e-6) % HOURS]
        return replicas


class Together:
    """Several policies' controllers side by side, each with its own columns.

    Each is asked at its own interval, or at ``pace_s`` where that is longer: what happens within
    seconds costs time and changes little beside cold starts of minutes.

    Args:
        controllers: each with the places of its columns.
        pace_s: seconds from one look to the next at least.
    """

    def __init__(self, controllers: Sequence[tuple[Controller, Int]], pace_s: float = 0.0) -> None:
        shortest = min(controller.interval_s for controller, _ in controllers)
        self.interval_s = max(shortest, pace_s)
        self._parts = [
            (controller, columns, Due(max(controller.interval_s, self.interval_s)))
            for controller, columns in controllers
        ]
        self._wanted = np.zeros(sum(len(columns) for _, columns in controllers))

    def decide(self, signals: Signals) -> Float:
        """Return replicas that should be there, one number a column."""
        for controller, columns, due in self._parts:
            if due.comes(signals.at_s):
                self._wanted[columns] = controller.decide(signals.take(columns))
        return self._wanted.copy()
