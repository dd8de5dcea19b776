"""Knative's pod autoscaler (KPA), which KServe uses in its serverless mode.

Source of the rules: knative/serving, pkg/autoscaler/scaling/autoscaler.go and its tests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from recipe_core.base.arrays import Bool, Float
from recipe_core.request.scaling import Scaling, Trigger
from recipe_core.scaling.fleet import Signals
from recipe_core.scaling.policies.columns import (
    SLACK_S,
    Meter,
    MovingMax,
    Paced,
    Targets,
    default_of,
    has_waiting,
    open_requests,
    parameters,
    whole_down,
    whole_up,
)


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
    desired = whole_up(mean / target)
    fewest = whole_down(pods / rates.max_down) if reachable else np.zeros_like(pods)
    number = np.minimum(np.maximum(desired, fewest), whole_up(pods * rates.max_up))
    if activation_scale > 1:
        number = np.where(desired > 0, np.maximum(number, activation_scale), number)
    return number


def is_over_panic(panic_mean: Float, target: Float, ready: Float, rates: Rates) -> Bool:
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
        super().__init__(scalings, default_of("kpa", "evaluation_period_s"))
        stable_s = parameters(
            scalings, lambda scaling: scaling.window_s, default_of("kpa", "stable_window_s")
        )
        panic_s = stable_s * default_of("kpa", "panic_window")
        self._targets = Targets(scalings, triggers)
        metrics = list(self._targets.of)
        self._stable_meter = Meter(metrics, stable_s, stable_s)
        self._panic_meter = Meter(metrics, panic_s, panic_s)
        self._rates = Rates(*(default_of("kpa", name) for name in RATES))
        self._panic = Panic(len(scalings), stable_s)
        delay_s = default_of("kpa", "scale_down_delay_s")
        self._delay = MovingMax(parameters(scalings, lambda scaling: scaling.down_delay_s, delay_s))
        retention_s = parameters(
            scalings, lambda scaling: scaling.idle_s, default_of("kpa", "pod_retention_s")
        )
        self._grace_s = np.maximum(retention_s, default_of("kpa", "grace_s"))
        self._busy_s = np.zeros(len(scalings))

    def _begin(self, signals: Signals, /) -> None:
        self._panic.begin(signals.at_s, signals.ready)
        self._busy_s = np.full_like(self._wanted, signals.at_s)

    def _look(self, signals: Signals, /) -> Float:
        stable, panic, over = self._desired(signals)
        number = self._panic.apply(signals.at_s, over, stable, panic)
        number = self._delay.add(signals.at_s, number)
        self._busy_s = np.where(number > 0, signals.at_s, self._busy_s)
        grace = signals.at_s - self._busy_s < self._grace_s - SLACK_S
        number = np.maximum(number, (self._wanted > 0) & grace)
        number = np.maximum(number, (self._wanted == 0) & has_waiting(signals))
        return self._bounded(number)

    def _desired(self, signals: Signals) -> tuple[Float, Float, Bool]:
        """Pods by the stable and the panic mean, and where that is a panic."""
        stable_totals, panic_totals = (
            self._stable_meter.read(signals),
            self._panic_meter.read(signals),
        )
        stable = panic = np.zeros_like(signals.ready)
        unready = signals.ready <= 0
        over = np.zeros(len(signals.ready), dtype=bool)
        for metric, total in stable_totals.items():
            target = self._targets.of[metric]
            panicked = panic_totals[metric]
            if metric != "request-rate":
                # Nothing was recorded at zero: what the activator holds is the whole mean.
                total = np.where(unready, open_requests(signals), total)
                panicked = np.where(unready, open_requests(signals), panicked)
            stable = np.maximum(stable, desired_pods(total, target, signals.ready, self._rates))
            panic = np.maximum(panic, desired_pods(panicked, target, signals.ready, self._rates))
            over = over | is_over_panic(panicked, target, signals.ready, self._rates)
        return stable, panic, over


RATES = ("max_up", "max_down", "panic_threshold")


def default_target() -> float:
    """Requests at once in a pod without a trigger: 70 % of 100."""
    return default_of("kpa", "concurrency_target") * default_of("kpa", "concurrency_utilisation")
