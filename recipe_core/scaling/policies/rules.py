"""The rules of autoscalers, each restated from its project's documentation, code and tests.

Sources: Kubernetes documentation, Horizontal Pod Autoscaling, and pkg/controller/podautoscaler;
KEDA, ScaledObject specification; knative/serving, pkg/autoscaler/scaling; skypilot-org/skypilot,
sky/serve/autoscalers.py; ray-project/ray, python/ray/serve/autoscaling_policy.py; ai-dynamo/dynamo,
planner design; llm-d-workload-variant-autoscaler, docs/saturation-analyzer.md and
internal/saturation. Arrays have one number a column.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from recipe_core.base.arrays import Bool, Float
from recipe_core.scaling.policies.windows import SLACK_S

# Sums of flows round: a part of a replica or of a request below this is none.
ROUNDING = 1e-6


def whole_up(number: Float) -> Float:
    """Return whole numbers at or above, but for rounding."""
    rounded: Float = np.ceil(number - ROUNDING)
    return rounded


def whole_down(number: Float) -> Float:
    """Return whole numbers at or below, but for rounding."""
    rounded: Float = np.floor(number + ROUNDING)
    return rounded


# Kubernetes, KEDA


def track_target(
    current: Float,
    total: Float,
    target: Float,
    tolerance: Float | float,
    measured: Float,
    missing: Float | float = 0.0,
    unready: Float | float = 0.0,
) -> Float:
    """Return the replicas that bring a metric to its target: ceil(total / target).

    ``current`` stays where the mean is within ``tolerance`` of the target (below 0: nowhere), or
    where counting the pods without a metric turns the direction.

    Args:
        current: replicas that were ordered.
        total: the metric of all replicas together.
        target: of one replica.
        tolerance: share of the target.
        measured: replicas that the mean is of, infinite where nothing is compared with it.
        missing: pods without a metric, which count as 0 going up and at the target going down.
        unready: pods that are left out going down, and count as 0 going up.
    """
    needed = total / target
    up = needed > measured
    counted = measured + missing + unready * up
    needed = needed + missing * ~up
    ratio = needed / np.maximum(counted, 1.0)
    stays = (np.abs(1 - ratio) <= tolerance) | (up & (ratio < 1))
    replicas = whole_up(needed)
    np.copyto(replicas, current, where=stays)
    return replicas


@dataclass(frozen=True, slots=True)
class StepLimits:
    """Policies of one direction as columns: so many pods or so many percent in a period.

    Of the two the larger change counts (``selectPolicy: Max``); 0 is none.
    """

    pods: Float
    percent: Float
    period_s: Float

    def highest(self, before: Float) -> Float:
        """Return the most replicas after a period that began with ``before``."""
        by_percent = whole_up(before * (1 + self.percent / 100))
        ceiling: Float = np.maximum(before + self.pods, by_percent)
        return ceiling

    def lowest(self, before: Float) -> Float:
        """Return the fewest replicas after a period that began with ``before``."""
        by_percent = whole_down(before * (1 - self.percent / 100))
        fewest: Float = np.minimum(before - self.pods, by_percent)
        return fewest


def replicas_with_activation(active: Bool, replicas: Float, low: Float) -> Float:
    """Return KEDA's replicas once the cooldown is over: activation wins over the target.

    An inactive column goes to 0 whatever the target asks for, unless it keeps at least one.
    """
    number: Float = np.where(active | (low >= 1), replicas, 0.0)
    return number


# Replicas while a scaler fails, by the fallback's behavior: of the current and the stated ones.
FALLBACKS: Mapping[str, Callable[[Float, Float], Float]] = {
    "static": lambda current, fallback: fallback,
    "currentReplicas": lambda current, fallback: current,
    "currentReplicasIfHigher": np.maximum,
    "currentReplicasIfLower": np.minimum,
}


# Knative


@dataclass(frozen=True, slots=True)
class ScaleRates:
    """The reach of one evaluation: up to ``max_up`` times the ready pods, down to their part."""

    max_up: float
    max_down: float
    panic_threshold: float


def desired_pods(
    mean: Float,
    target: Float,
    ready: Float,
    rates: ScaleRates,
    *,
    reachable: bool = True,
    activation_scale: float = 1.0,
) -> Float:
    """Return ceil(mean / target) from floor(ready / max_down) to ceil(ready × max_up).

    ``ready`` counts as 1 at least. A revision that is not reachable has no lower bound.
    activation_scale: fewest pods while there is any traffic.
    """
    pods = np.maximum(ready, 1.0)
    desired = whole_up(mean / target)
    fewest = whole_down(pods / rates.max_down) if reachable else np.zeros_like(pods)
    number = np.minimum(np.maximum(desired, fewest), whole_up(pods * rates.max_up))
    if activation_scale > 1:
        number = np.where(desired > 0, np.maximum(number, activation_scale), number)
    return number


def is_over_panic(panic_mean: Float, target: Float, ready: Float, rates: ScaleRates) -> Bool:
    """Return where ceil(panic mean / target), unclamped, is ``panic_threshold`` times the pods."""
    over: Bool = whole_up(panic_mean / target) >= rates.panic_threshold * np.maximum(ready, 1.0)
    return over


class Panic:
    """Knative's panic of every column: since when, and the largest number of pods in it."""

    def __init__(self, stable_window_s: Float) -> None:
        self._window_s = stable_window_s
        self._since_s = np.full(len(stable_window_s), -np.inf)
        self._most = np.zeros(len(stable_window_s))

    def begin(self, at_s: float, pods: Float) -> None:
        """Start in panic where more than one pod is ready, as an autoscaler does."""
        self._since_s = np.where(pods > 1, at_s, -np.inf)
        self._most = np.where(pods > 1, pods, 0.0)

    def apply(self, at_s: float, over: Bool, stable: Float, panic: Float) -> Float:
        """Return ``stable`` pods, in panic the larger of both, and never fewer than before in it.

        ``over`` begins a panic and renews its time; it ends a whole stable window later.
        """
        self._since_s = np.where(over, at_s, self._since_s)
        panics = at_s - self._since_s <= self._window_s + SLACK_S
        largest = np.maximum(np.maximum(stable, panic), self._most)
        self._most = np.where(panics, largest, 0.0)
        return np.where(panics, largest, stable)


# SkyServe, Ray Serve


def smoothed_replicas(
    current: Float,
    ongoing: Float,
    target: Float,
    up_factor: float = 1.0,
    down_factor: float = 1.0,
) -> Float:
    """Return ceil(current × (1 + factor × (ongoing / (target × current) − 1))), unbounded.

    current: replicas that run, at least 1. One less where a wanted decrease would get stuck.
    """
    ratio = ongoing / (target * current)
    factor = np.where(ratio >= 1, up_factor, down_factor)
    desired = whole_up(current * (1 + factor * (ratio - 1)))
    stuck = (whole_up(current * ratio) < current) & (desired == current)
    number: Float = np.where(stuck, desired - 1, desired)
    return number


def replicas_from_zero(decided: Float, ongoing: Float, up_factor: float = 1.0) -> Float:
    """Return Ray's replicas while none runs: any request asks for ceil(1 × factor) at once."""
    first = float(np.ceil(up_factor))
    number: Float = np.where(ongoing > ROUNDING, np.maximum(first, decided), decided)
    return number


class Hold:
    """A number that changes once another is asked for without a break for a delay.

    up_s, down_s: the delays. last_s: from one replica to none. to_one: columns that go to 1 first
    from more than one.
    """

    def __init__(
        self, number: Float, up_s: Float, down_s: Float, last_s: Float, to_one: Bool | bool = True
    ) -> None:
        self.number = number
        self._up_s, self._down_s, self._last_s, self._to_one = up_s, down_s, last_s, to_one
        self._up_since_s = np.full_like(number, np.inf)
        self._down_since_s = np.full_like(number, np.inf)

    def apply(
        self,
        at_s: float,
        desired: Float,
        counted_s: Float | float = 0.0,
        at_once: Bool | bool = False,
    ) -> Float:
        """Take ``desired`` once it held for its delay; a contrary one begins anew.

        counted_s: for which one look counts. at_once: columns that take it without a delay.
        """
        number = self.number
        up, down = desired > number, desired < number
        since_s = at_s - counted_s
        self._up_since_s = np.where(up, np.minimum(self._up_since_s, since_s), np.inf)
        self._down_since_s = np.where(down, np.minimum(self._down_since_s, since_s), np.inf)
        last = number == 1
        down_s = np.where(last, self._last_s, self._down_s)
        rises = up & ((at_s - self._up_since_s >= self._up_s - SLACK_S) | at_once)
        falls = down & (at_s - self._down_since_s >= down_s - SLACK_S)
        lower = np.where(last, desired, np.maximum(desired, self._to_one))
        self.number = np.where(rises, desired, np.where(falls, lower, number))
        self._up_since_s = np.where(rises, np.inf, self._up_since_s)
        self._down_since_s = np.where(falls, np.inf, self._down_since_s)
        return self.number


# Dynamo


def change_by_time(times: Float, limit: Float, sensitivity: Float) -> Float:
    """Return +1 where all engines are above the limit, -1 where all are below its share.

    times: of the engines, along the last axis. The rule of a prefill pool (TTFT) and of a decode
    pool (time between tokens). sensitivity: the share.
    """
    up = (times > limit).all(axis=-1)
    down = (times < limit * sensitivity).all(axis=-1)
    change: Float = up.astype(float) - down
    return change


def change_of_aggregated(
    ttft: Float, itl: Float, ttft_limit: Float, itl_limit: Float, sensitivity: Float
) -> Float:
    """Return +1 where one of both asks for more, -1 where both ask for fewer."""
    first = change_by_time(ttft, ttft_limit, sensitivity)
    between = change_by_time(itl, itl_limit, sensitivity)
    change: Float = np.maximum(first, between)
    return change


# llm-d


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Cache use and queue at which a replica is saturated, and the spare that asks for more."""

    kv: Float
    queue: Float
    kv_spare: float
    queue_spare: float
    fewest_to_shrink: float


@dataclass(frozen=True, slots=True)
class Saturation:
    """Replicas that are not saturated, their mean spare, and what follows from it."""

    non_saturated: Float
    spare_kv: Float
    spare_queue: Float
    scale_up: Bool
    scale_down_safe: Bool


def analyse_saturation(kv: Float, queue: Float, replicas: Float, limits: Thresholds) -> Saturation:
    """Return the analysis of groups of replicas that are alike, along the last axis.

    kv, queue: of a replica of each group; replicas: how many there are. Spare is the threshold
    minus the mean of the replicas that are not saturated, 0 where there is none. More are wanted
    when the spare cache or the spare queue is below its trigger; one fewer is safe when the load of
    at least two that are not saturated leaves both when it is spread over one fewer.
    """
    counts = np.where((kv < limits.kv) & (queue < limits.queue), replicas, 0.0)
    unsaturated = counts.sum(axis=-1)
    mean_kv = (counts * kv).sum(axis=-1) / np.maximum(unsaturated, 1.0)
    mean_queue = (counts * queue).sum(axis=-1) / np.maximum(unsaturated, 1.0)
    # Thresholds are columns with an axis of groups, or plain numbers.
    kv_limit, queue_limit = limits.kv[..., 0], limits.queue[..., 0]
    spare_kv = np.where(unsaturated > 0, kv_limit - mean_kv, 0.0)
    spare_queue = np.where(unsaturated > 0, queue_limit - mean_queue, 0.0)
    scarce = (spare_kv < limits.kv_spare) | (spare_queue < limits.queue_spare)
    spread = unsaturated / np.maximum(unsaturated - 1, 1.0)
    spared = (kv_limit - mean_kv * spread >= limits.kv_spare) & (
        queue_limit - mean_queue * spread >= limits.queue_spare
    )
    safe = (unsaturated >= limits.fewest_to_shrink) & spared
    return Saturation(
        unsaturated, spare_kv, spare_queue, scarce & (replicas.sum(axis=-1) > 0), safe
    )


def next_variants(ready: Float, desired: Float, cost: Float, up: Bool, safe: Bool) -> Float:
    """Return replicas of the variants of a model: one more of the cheapest, or one fewer.

    The fewer is of the dearest. As in the code, a variant that has not reached its number blocks
    all of them.

    Args:
        ready: of each variant, by name along the last axis.
        desired: the numbers decided on.
        cost: of a replica of each.
        up: models that need more.
        safe: models that one replica fewer serves.
    """
    places = np.arange(len(cost))
    more = places == np.argmin(cost)
    fewer = places == len(cost) - 1 - np.argmax(cost[::-1])
    number = ready + np.where(up[..., None], more, -1.0 * (fewer & safe[..., None]))
    moving = (desired != ready).any(axis=-1, keepdims=True)
    return np.where(moving, desired, number)
