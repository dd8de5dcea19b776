"""Kubernetes' Horizontal Pod Autoscaler (autoscaling/v2) and its ``behavior``.

Source of the rules: Kubernetes documentation, Horizontal Pod Autoscaling, and the tests of
pkg/controller/podautoscaler.

KEDA and llm-d scale through an HPA and share its ``behavior``: stabilisation windows, then
policies, then bounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from recipe_core.base.arrays import Bool, Float
from recipe_core.request.scaling import Metric, Scaling, Trigger
from recipe_core.scaling.fleet import Signals
from recipe_core.scaling.policies.columns import (
    Delayed,
    Meter,
    MovingMax,
    MovingSum,
    Paced,
    Targets,
    default_of,
    parameters,
    whole_down,
    whole_up,
)


@dataclass(frozen=True, slots=True)
class Limits:
    """Policies of one direction as columns: so many pods or so many percent in a period.

    Of the two the larger change counts (``selectPolicy: Max``); 0 is none.
    """

    pods: Float
    percent: Float
    period_s: Float


def stabilise(current: Float, lowest: Float, highest: Float) -> Float:
    """The number between the windows' recommendations that is next to ``current``.

    lowest: the lowest recommendation of the window for going up; highest: the highest one of the
    window for going down.
    """
    number: Float = np.minimum(np.maximum(current, lowest), highest)
    return number


def highest_allowed(before: Float, limits: Limits) -> Float:
    """Largest number that the policies allow, by the replicas at the beginning of the period."""
    by_percent = whole_up(before * (1 + limits.percent / 100))
    ceiling: Float = np.maximum(before + limits.pods, by_percent)
    return ceiling


def lowest_allowed(before: Float, limits: Limits) -> Float:
    """Smallest number that the policies allow, by the replicas at the beginning of the period."""
    by_percent = whole_down(before * (1 - limits.percent / 100))
    fewest: Float = np.minimum(before - limits.pods, by_percent)
    return fewest


@dataclass(frozen=True, slots=True)
class HpaDefaults:
    """What an HPA does where a scaling says nothing: windows in seconds, and policies."""

    up_window_s: float
    down_window_s: float
    up_pods: float
    up_percent: float
    down_pods: float
    down_percent: float
    period_s: float


def hpa_defaults() -> HpaDefaults:
    """The defaults of autoscaling/v2."""
    return HpaDefaults(
        up_window_s=default_of("hpa", "up_window_s"),
        down_window_s=default_of("hpa", "down_window_s"),
        up_pods=default_of("hpa", "up_pods"),
        up_percent=default_of("hpa", "up_percent"),
        down_pods=0.0,
        down_percent=default_of("hpa", "down_percent"),
        period_s=default_of("hpa", "period_s"),
    )


class Behavior:
    """Recommendations of a batch, and what it did within the policies' periods."""

    def __init__(
        self, scalings: Sequence[Scaling], interval_s: float, defaults: HpaDefaults
    ) -> None:
        self._up, self._down = _up_limits(scalings, defaults), _down_limits(scalings, defaults)
        down_window_s = parameters(
            scalings, lambda scaling: scaling.down_delay_s, defaults.down_window_s
        )
        up_window_s = parameters(scalings, lambda scaling: scaling.up_delay_s, defaults.up_window_s)
        self._highest = MovingMax(down_window_s)
        self._lowest = MovingMax(up_window_s)  # of negated recommendations
        self._up_changes = _track_changes(self._up.period_s, interval_s)
        self._down_changes = _track_changes(self._down.period_s, interval_s)

    def begin(self, at_s: float, current: Float) -> None:
        """The HPA starts with the number that is there as its first recommendation."""
        self._highest.add(at_s, current)
        self._lowest.add(at_s, -current)

    def apply(
        self,
        at_s: float,
        current: Float,
        desired: Float,
        low: Float,
        high: Float,
        off: Bool | None = None,
    ) -> Float:
        """The new number of replicas, between ``low`` and ``high``.

        off: columns whose HPA is off, as they have no replica. They stay as they are, and nothing
        is recommended.
        """
        highest, lowest = self._window(at_s, desired, off)
        number = stabilise(current, lowest, highest)
        number = np.minimum(np.maximum(number, low), high)
        ceiling = highest_allowed(_replicas_before(self._up_changes, at_s, current), self._up)
        floor = lowest_allowed(_replicas_before(self._down_changes, at_s, current), self._down)
        number = np.minimum(number, np.maximum(ceiling, current))
        number = np.maximum(number, np.minimum(floor, current))
        number = number if off is None else np.where(off, current, number)
        for changes in (self._up_changes, self._down_changes):
            if changes is not None:
                changes.note(at_s, number - current)
        return number

    def _window(self, at_s: float, desired: Float, off: Bool | None) -> tuple[Float, Float]:
        """Highest recommendation of the window for going down, lowest of the one for going up."""
        upper = desired if off is None else np.where(off, -np.inf, desired)
        lower = desired if off is None else np.where(off, np.inf, desired)
        return self._highest.add(at_s, upper), -self._lowest.add(at_s, -lower)


def _up_limits(scalings: Sequence[Scaling], defaults: HpaDefaults) -> Limits:
    pods = parameters(scalings, lambda scaling: scaling.up_step, defaults.up_pods)
    percent = np.array([defaults.up_percent * (scaling.up_step is None) for scaling in scalings])
    return Limits(
        pods, percent, parameters(scalings, lambda scaling: scaling.up_period_s, defaults.period_s)
    )


def _down_limits(scalings: Sequence[Scaling], defaults: HpaDefaults) -> Limits:
    pods = parameters(scalings, lambda scaling: scaling.down_step, defaults.down_pods)
    percent = np.array(
        [defaults.down_percent * (scaling.down_step is None) for scaling in scalings]
    )
    return Limits(
        pods,
        percent,
        parameters(scalings, lambda scaling: scaling.down_period_s, defaults.period_s),
    )


def _track_changes(periods_s: Float, interval_s: float) -> MovingSum | None:
    """Changes within the periods; None where no period reaches back to the last look."""
    return MovingSum(periods_s) if periods_s.max() > interval_s else None


def _replicas_before(changes: MovingSum | None, at_s: float, current: Float) -> Float:
    return current if changes is None else current - changes.total(at_s)


# Sums of metrics over all replicas, one number a column.
Totals = dict[Metric, Float]


@dataclass(frozen=True, slots=True)
class Pods:
    """Pods as the rule counts them, with numbers or arrays.

    measured: pods whose metric counts, and ``total`` the sum of it. unready: pods whose processor
    metric is left out, as they are not ready or started just now. missing: pods without a metric.
    Failed pods and pods that are being deleted are in none of them.
    """

    measured: Float
    total: Float
    unready: Float | float = 0.0
    missing: Float | float = 0.0


def by_pods(current: Float, pods: Pods, target: Float, tolerance: Float) -> Float:
    """Replicas by a metric of pods: ceil(counted pods × mean / target).

    Going up, pods that are unready or without a metric count as 0; going down, those without one
    count at the target and the unready ones are left out. ``current`` stays where the mean is
    within ``tolerance`` of the target, or where counting those pods turns the direction.
    """
    needed = pods.total / target
    up = needed > pods.measured
    counted = pods.measured + pods.missing + pods.unready * up
    needed = needed + pods.missing * ~up
    ratio = needed / np.maximum(counted, 1.0)
    stays = (np.abs(1 - ratio) <= tolerance) | (up & (ratio < 1))
    replicas = whole_up(needed)
    np.copyto(replicas, current, where=stays)
    return replicas


def by_value(current: Float, ready: Float, value: Float, target: Float, tolerance: Float) -> Float:
    """Replicas by a ``Value`` of an object or an external metric: ceil(ready × value / target)."""
    ratio = value / target
    replicas: Float = np.where(np.abs(1 - ratio) <= tolerance, current, whole_up(ready * ratio))
    return replicas


def by_average_value(current: Float, total: Float, target: Float, tolerance: Float) -> Float:
    """Replicas by an ``AverageValue`` of an object or an external metric: ceil(total / target).

    The number of replicas only decides whether the mean is within the tolerance.
    """
    needed = total / target
    within = np.abs(1 - needed / np.maximum(current, 1.0)) <= tolerance
    replicas: Float = np.where(within, current, whole_up(needed))
    return replicas


class Hpa(Paced):
    """A batch of HPAs on metrics of pods (``type: Pods``), which never end the last pod.

    Metrics are as old as a scrape; a pod that starts has none. Of several triggers the one that
    asks for most counts.
    """

    def __init__(self, scalings: Sequence[Scaling], triggers: Sequence[Trigger]) -> None:
        super().__init__(scalings, default_of("hpa", "sync_period_s"))
        self._metrics = Metrics(scalings, triggers)
        self._tolerance = tolerances(scalings)
        self._behavior = Behavior(scalings, self.interval_s, hpa_defaults())

    def _begin(self, signals: Signals, /) -> None:
        self._behavior.begin(signals.at_s, self._wanted)

    def _look(self, signals: Signals, /) -> Float:
        current = self._wanted
        totals, measured = self._metrics.read(signals)
        missing = np.maximum(current - measured, 0.0)
        desired = np.zeros_like(current)
        for metric, total in totals.items():
            target = self._metrics.targets.of[metric]
            counted = Pods(measured, total, missing=missing)
            replicas = by_pods(current, counted, target, self._tolerance)
            if self._metrics.targets.partial[metric]:
                replicas = np.where(np.isinf(target), 0.0, replicas)
            desired = np.maximum(desired, replicas)
        return self._behavior.apply(signals.at_s, current, desired, self._low, self._high)


class Metrics:
    """The metrics of triggers as an HPA reads them from Prometheus: as old as a scrape."""

    def __init__(self, scalings: Sequence[Scaling], triggers: Sequence[Trigger]) -> None:
        self.targets = Targets(scalings, triggers)
        gauge_s = parameters(scalings, lambda scaling: scaling.window_s, 0.0)
        rate_s = parameters(
            scalings, lambda scaling: scaling.window_s, default_of("hpa", "rate_window_s")
        )
        self._meter = Meter(list(self.targets.of), gauge_s, rate_s)
        self._delayed: Delayed[tuple[Totals, Float]] = Delayed(default_of("hpa", "scrape_delay_s"))

    def read(self, signals: Signals) -> tuple[Totals, Float]:
        return self._delayed.add(signals.at_s, (self._meter.read(signals), signals.ready.copy()))


def tolerances(scalings: Sequence[Scaling]) -> Float:
    return parameters(scalings, lambda scaling: scaling.tolerance, default_of("hpa", "tolerance"))
