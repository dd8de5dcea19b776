"""Kubernetes' Horizontal Pod Autoscaler (autoscaling/v2).

Source of the rules: Kubernetes documentation, Horizontal Pod Autoscaling, and the tests of
pkg/controller/podautoscaler.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from recipe_core.base.arrays import Float
from recipe_core.request.scaling import Metric, Scaling, Trigger
from recipe_core.scaling.policies.behavior import Behavior, hpa_defaults
from recipe_core.scaling.policies.columns import Meter, Paced, Targets, parameters, whole_up
from recipe_core.scaling.policies.defaults import default_of
from recipe_core.scaling.policies.windows import Delayed
from recipe_core.scaling.signals import Signals

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
