"""Knative's pod autoscaler (KPA), which KServe uses in its serverless mode.

Source of the rules: knative/serving, pkg/autoscaler/scaling/autoscaler.go and its tests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from recipe_core.base.arrays import Bool, Float
from recipe_core.request.scaling import Scaling, Trigger
from recipe_core.scaling.policies.columns import (
    Meter,
    Paced,
    Targets,
    numbers,
    requests,
    waiting,
    whole_down,
    whole_up,
)
from recipe_core.scaling.policies.defaults import default
from recipe_core.scaling.policies.windows import SLACK_S, MovingMax
from recipe_core.scaling.signals import Signals


@dataclass(frozen=True, slots=True)
class Rates:
    """How far one evaluation goes: up to ``max_up`` times the ready pods, down to their part."""

    max_up: float
    max_down: float
    panic_threshold: float


def desired_pods(
    mean: Float,
    target: Float,
    ready: Float,
    rates: Rates,
    *,
    reachable: bool = True,
    activation_scale: float = 1.0,
) -> Float:
    """clamp(ceil(mean / target), floor(ready / max_down), ceil(ready × max_up)), ready at least 1.

    A revision that is not reachable has no lower clamp. activation_scale: fewest pods while there
    is any traffic.
    """
    pods = np.maximum(ready, 1.0)
    wanted = whole_up(mean / target)
    fewest = whole_down(pods / rates.max_down) if reachable else np.zeros_like(pods)
    number = np.minimum(np.maximum(wanted, fewest), whole_up(pods * rates.max_up))
    if activation_scale > 1:
        number = np.where(wanted > 0, np.maximum(number, activation_scale), number)
    return number


def over_panic(panic_mean: Float, target: Float, ready: Float, rates: Rates) -> Bool:
    """Whether ceil(panic mean / target), unclamped, is ``panic_threshold`` times the pods."""
    over: Bool = whole_up(panic_mean / target) >= rates.panic_threshold * np.maximum(ready, 1.0)
    return over


def excess_burst(
    ready: Float,
    target: Float,
    utilisation: float,
    burst: float,
    panic_mean: Float,
) -> Float:
    """Capacity beyond the burst: floor(ready × target / utilisation − burst − panic mean).

    Below 0 the activator stays in the path. -1 without a limit (``burst`` -1), 0 where it is 0.
    """
    if burst in (0, -1):
        return np.full_like(ready, burst)
    return np.floor(ready * target / utilisation - burst - panic_mean)


class Panic:
    """Panic of every column: since when, and the largest number of pods in it."""

    def __init__(self, columns: int, stable_window_s: Float) -> None:
        self._window_s = stable_window_s
        self._since_s = np.full(columns, -np.inf)
        self._most = np.zeros(columns)

    def begin(self, at_s: float, pods: Float) -> None:
        """An autoscaler starts in panic where more than one pod is ready."""
        self._since_s = np.where(pods > 1, at_s, -np.inf)
        self._most = np.where(pods > 1, pods, 0.0)

    def apply(self, at_s: float, over: Bool, stable: Float, panic: Float) -> Float:
        """Pods: ``stable`` ones, in panic the larger of both, and never fewer than before in it.

        ``over`` begins a panic and renews its time; it ends a whole stable window later.
        """
        self._since_s = np.where(over, at_s, self._since_s)
        panics = at_s - self._since_s <= self._window_s + SLACK_S
        largest = np.maximum(np.maximum(stable, panic), self._most)
        self._most = np.where(panics, largest, 0.0)
        return np.where(panics, largest, stable)


class Kpa(Paced):
    """A batch of revisions. Their metric is scraped every second, so it has no delay.

    A trigger's target is the value that a pod holds at the right number of pods, what Knative
    calls target × utilisation. Without replicas the activator reports requests at once; the last
    pod ends once nothing came for the stable window and the longer of the grace period (its upper
    limit) and the retention.
    """

    def __init__(self, scalings: Sequence[Scaling], triggers: Sequence[Trigger]) -> None:
        super().__init__(scalings, default("kpa", "evaluation_period_s"))
        stable_s = numbers(scalings, lambda one: one.window_s, default("kpa", "stable_window_s"))
        panic_s = stable_s * default("kpa", "panic_window")
        self._targets = Targets(scalings, triggers)
        metrics = list(self._targets.of)
        self._stable_meter = Meter(metrics, stable_s, stable_s)
        self._panic_meter = Meter(metrics, panic_s, panic_s)
        self._rates = Rates(*(default("kpa", name) for name in RATES))
        self._panic = Panic(len(scalings), stable_s)
        delay_s = default("kpa", "scale_down_delay_s")
        self._delay = MovingMax(numbers(scalings, lambda one: one.down_delay_s, delay_s))
        retention_s = numbers(scalings, lambda one: one.idle_s, default("kpa", "pod_retention_s"))
        self._grace_s = np.maximum(retention_s, default("kpa", "grace_s"))
        self._busy_s = np.zeros(len(scalings))

    def _begin(self, seen: Signals, /) -> None:
        self._panic.begin(seen.at_s, seen.ready)
        self._busy_s = np.full_like(self._wanted, seen.at_s)

    def _look(self, seen: Signals, /) -> Float:
        stable, panic, over = self._desired(seen)
        number = self._panic.apply(seen.at_s, over, stable, panic)
        number = self._delay.add(seen.at_s, number)
        self._busy_s = np.where(number > 0, seen.at_s, self._busy_s)
        grace = seen.at_s - self._busy_s < self._grace_s - SLACK_S
        number = np.maximum(number, (self._wanted > 0) & grace)
        number = np.maximum(number, (self._wanted == 0) & waiting(seen))
        return self._bounded(number)

    def _desired(self, seen: Signals) -> tuple[Float, Float, Bool]:
        """Pods by the stable and the panic mean, and where that is a panic."""
        stable_totals, panic_totals = self._stable_meter.read(seen), self._panic_meter.read(seen)
        stable = panic = np.zeros_like(seen.ready)
        unready = seen.ready <= 0
        over = np.zeros(len(seen.ready), dtype=bool)
        for metric, total in stable_totals.items():
            target = self._targets.of[metric]
            panicked = panic_totals[metric]
            if metric != "request-rate":
                # Nothing was recorded at zero: what the activator holds is the whole mean.
                total = np.where(unready, requests(seen), total)
                panicked = np.where(unready, requests(seen), panicked)
            stable = np.maximum(stable, desired_pods(total, target, seen.ready, self._rates))
            panic = np.maximum(panic, desired_pods(panicked, target, seen.ready, self._rates))
            over = over | over_panic(panicked, target, seen.ready, self._rates)
        return stable, panic, over


RATES = ("max_up", "max_down", "panic_threshold")


def default_target() -> float:
    """Requests at once in a pod without a trigger: 70 % of 100."""
    return default("kpa", "concurrency_target") * default("kpa", "concurrency_utilisation")
