"""What policies share: parameters as columns, when a policy looks, and the figures it reads."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import numpy as np

from recipe_core.base.arrays import Bool, Float
from recipe_core.request.scaling import Metric, Scaling, Trigger
from recipe_core.scaling.policies.windows import SLACK_S, MovingMean, MovingRate
from recipe_core.scaling.signals import Signals

# Sums of flows round: a part of a replica or of a request below this is none.
ROUNDING = 1e-6


def whole_up(number: Float) -> Float:
    """Whole numbers at or above, but for rounding."""
    rounded: Float = np.ceil(number - ROUNDING)
    return rounded


def whole_down(number: Float) -> Float:
    """Whole numbers at or below, but for rounding."""
    rounded: Float = np.floor(number + ROUNDING)
    return rounded


def parameters(
    scalings: Sequence[Scaling], of: Callable[[Scaling], float | None], default: float
) -> Float:
    """A parameter of every column; ``default`` where it is left out."""
    values = (of(scaling) for scaling in scalings)
    return np.array([default if number is None else float(number) for number in values])


def same_number(
    scalings: Sequence[Scaling], of: Callable[[Scaling], float | None], default: float
) -> float:
    """A parameter that all columns share.

    Raises:
        ValueError: they differ. Simulate such scalings one batch after the other.
    """
    values = np.unique(parameters(scalings, of, default))
    if len(values) > 1:
        raise ValueError(f"columns of one batch look at different intervals: {values.tolist()} s")
    return float(values[0])


class Paced(ABC):
    """A policy that looks every ``interval_s``: asked sooner, it repeats its last answer.

    Looks lie on a grid from second 0, so a simulator with steps of its own keeps their mean pace.
    """

    def __init__(self, scalings: Sequence[Scaling], interval_s: float) -> None:
        self.interval_s = interval_s
        self._low = parameters(scalings, lambda scaling: scaling.min_replicas, 0)
        self._high = parameters(scalings, lambda scaling: scaling.max_replicas, 1)
        self._wanted = self._low
        self._due_s = -np.inf

    def decide(self, signals: Signals) -> Float:
        """Replicas that should be there, one number a column. Not to be written to."""
        if signals.at_s < self._due_s - SLACK_S:
            return self._wanted
        if self._due_s == -np.inf:
            self._wanted = self._bounded(np.rint(signals.ready + signals.starting))
            self._begin(signals)
        self._due_s = next_look(signals.at_s, self.interval_s)
        self._wanted = self._look(signals)
        return self._wanted

    def _begin(self, _signals: Signals, /) -> None:
        """What is to be done before the first look."""
        return

    def _bounded(self, replicas: Float) -> Float:
        bounded: Float = np.minimum(np.maximum(replicas, self._low), self._high)
        return bounded

    @abstractmethod
    def _look(self, signals: Signals, /) -> Float:
        """The new number of replicas; ``self._wanted`` is the last one."""


def next_look(at_s: float, interval_s: float) -> float:
    """The first multiple of an interval after a moment."""
    return (math.floor((at_s + SLACK_S) / interval_s) + 1) * interval_s


def open_requests(signals: Signals) -> Float:
    return signals.waiting + signals.running


def has_waiting(signals: Signals) -> Bool:
    """Where requests wait, for a replica or in one."""
    wait: Bool = signals.waiting > ROUNDING
    return wait


class Targets:
    """Targets by metric, one number a column: infinite where a column has no such trigger."""

    def __init__(self, scalings: Sequence[Scaling], default: Sequence[Trigger]) -> None:
        columns = len(scalings)
        self.of: dict[Metric, Float] = {}
        for column, scaling in enumerate(scalings):
            for trigger in scaling.triggers or default:
                targets = self.of.setdefault(trigger.metric, np.full(columns, np.inf))
                targets[column] = min(targets[column], trigger.target)
        self.partial = {name: bool(np.isinf(targets).any()) for name, targets in self.of.items()}


class Meter:
    """Totals of metrics over all replicas of a column.

    A share of the cache is summed over the replicas too: its mean times the ready ones. Figures of
    a moment are averaged over ``gauge_windows_s`` (0: as they are), requests over
    ``rate_windows_s``.
    """

    def __init__(
        self, metrics: Sequence[Metric], gauge_windows_s: Float, rate_windows_s: Float
    ) -> None:
        gauges = [name for name in metrics if name != "request-rate"]
        self._means = {name: MovingMean(gauge_windows_s) for name in gauges}
        self._rate = MovingRate(rate_windows_s) if "request-rate" in metrics else None

    def read(self, signals: Signals) -> dict[Metric, Float]:
        """The totals at this look."""
        totals: dict[Metric, Float] = {
            name: mean.add(signals.at_s, _metric_total(name, signals))
            for name, mean in self._means.items()
        }
        if self._rate is not None:
            totals["request-rate"] = self._rate.add(signals.at_s, signals.arrived)[1]
        return totals


def _metric_total(metric: Metric, signals: Signals) -> Float:
    if metric == "waiting":
        return signals.waiting.copy()
    if metric == "running":
        return signals.running.copy()
    if metric == "kv-usage":
        return signals.kv_usage * signals.ready
    return open_requests(signals)
