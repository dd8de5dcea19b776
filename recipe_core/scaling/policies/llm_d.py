"""llm-d's workload variant autoscaler (WVA), and the HPA that follows its number.

Source of the rules: llm-d-workload-variant-autoscaler, docs/saturation-analyzer.md and the tests of
internal/saturation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from recipe_core.base.arrays import Bool, Float
from recipe_core.request.scaling import Scaling, Trigger
from recipe_core.scaling.policies import hpa
from recipe_core.scaling.policies.behavior import Behavior, Usual
from recipe_core.scaling.policies.columns import (
    ROUNDING,
    Paced,
    Targets,
    next_look,
    numbers,
    waiting,
)
from recipe_core.scaling.policies.columns import same_number as same
from recipe_core.scaling.policies.defaults import default
from recipe_core.scaling.policies.windows import SLACK_S, Delayed, MovingMax
from recipe_core.scaling.signals import Signals


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


def saturation(kv: Float, queue: Float, replicas: Float, limits: Thresholds) -> Saturation:
    """The analysis of groups of replicas that are alike, along the last axis.

    kv, queue: of a replica of each group; replicas: how many there are. Spare is the threshold
    minus the mean of the replicas that are not saturated, 0 where there is none. More are wanted
    when the spare cache or the spare queue is below its trigger; one fewer is safe when the load of
    at least two that are not saturated leaves both when it is spread over one fewer.
    """
    counts = np.where((kv < limits.kv) & (queue < limits.queue), replicas, 0.0)
    left = counts.sum(axis=-1)
    mean_kv = (counts * kv).sum(axis=-1) / np.maximum(left, 1.0)
    mean_queue = (counts * queue).sum(axis=-1) / np.maximum(left, 1.0)
    # Thresholds are columns with an axis of groups, or plain numbers.
    kv_limit, queue_limit = limits.kv[..., 0], limits.queue[..., 0]
    spare_kv = np.where(left > 0, kv_limit - mean_kv, 0.0)
    spare_queue = np.where(left > 0, queue_limit - mean_queue, 0.0)
    scarce = (spare_kv < limits.kv_spare) | (spare_queue < limits.queue_spare)
    spread = left / np.maximum(left - 1, 1.0)
    spared = (kv_limit - mean_kv * spread >= limits.kv_spare) & (
        queue_limit - mean_queue * spread >= limits.queue_spare
    )
    safe = (left >= limits.fewest_to_shrink) & spared
    return Saturation(left, spare_kv, spare_queue, scarce & (replicas.sum(axis=-1) > 0), safe)


@dataclass(frozen=True, slots=True)
class Variant:
    """A variant of a model: cost, its ready replicas, and the number decided on (None: same)."""

    cost: float
    ready: int
    desired: int | None = None


def next_variants(
    variants: Mapping[str, Variant], *, scale_up: bool, scale_down_safe: bool
) -> dict[str, int]:
    """Replicas of every variant: one more of the cheapest, or one fewer of the dearest.

    Of equal ones the first, and the last, by name. As in the code, a variant that has not reached
    its number blocks all of them.
    """
    numbers_of = {name: one.desired or one.ready for name, one in variants.items()}
    if any(numbers_of[name] != one.ready for name, one in variants.items()):
        return numbers_of
    by_cost = sorted(variants, key=lambda name: (variants[name].cost, name))
    if scale_up:
        numbers_of[by_cost[0]] += 1
    elif scale_down_safe:
        numbers_of[by_cost[-1]] -= 1
    return numbers_of


class LlmD(Paced):
    """A batch of models with one variant each.

    The WVA looks every 60 s at the highest cache use and queue of the last minute and asks for one
    more or one fewer than are ready, nothing while its last number is not reached. The HPA follows
    within its windows. Replicas of a fleet are alike here, so all are saturated or none.
    """

    def __init__(self, scalings: Sequence[Scaling], triggers: Sequence[Trigger]) -> None:
        sync_s = default("hpa", "sync_period_s")
        some_to_zero = any(scaling.min_replicas == 0 for scaling in scalings)
        super().__init__(
            scalings, default("llm-d", "interval_at_zero_s") if some_to_zero else sync_s
        )
        self._some_to_zero, self._sync_s = some_to_zero, sync_s
        self._wva_s = same(scalings, lambda one: one.interval_s, default("llm-d", "interval_s"))
        self._sync_due_s = self._wva_due_s = -np.inf
        window_s = numbers(scalings, lambda one: one.window_s, default("llm-d", "window_s"))
        self._kv, self._queue = MovingMax(window_s), MovingMax(window_s)
        self._delayed: Delayed[tuple[Float, Float]] = Delayed(default("hpa", "scrape_delay_s"))
        self._limits = _thresholds(scalings, triggers)
        self._tolerance = hpa.tolerances(scalings)
        self._behavior = Behavior(scalings, sync_s, _usual())
        self._retention_s = numbers(
            scalings, lambda one: one.idle_s, default("llm-d", "retention_s")
        )
        self._desired = self._wanted
        self._fewest = np.maximum(self._low, 1.0)
        self._busy_s = self._arrived = np.zeros(len(scalings))

    def _begin(self, seen: Signals, /) -> None:
        self._behavior.begin(seen.at_s, self._wanted)
        self._desired = self._wanted
        self._busy_s = np.full_like(self._wanted, seen.at_s)
        self._arrived = seen.arrived.copy()

    def _look(self, seen: Signals, /) -> Float:
        number = self._wanted
        if seen.at_s >= self._sync_due_s - SLACK_S:
            self._sync_due_s = next_look(seen.at_s, self._sync_s)
            number = self._synced(seen)
        if self._some_to_zero:
            wakes = (number == 0) & waiting(seen)
            self._desired = np.where(wakes, 1.0, self._desired)
            number = np.where(wakes, 1.0, number)
        return number

    def _synced(self, seen: Signals) -> Float:
        at_s, current = seen.at_s, self._wanted
        queue = seen.waiting / np.maximum(seen.ready, 1.0)
        kv, queue = self._delayed.add(at_s, (seen.kv_usage.copy(), queue))
        kv, queue = self._kv.add(at_s, kv), self._queue.add(at_s, queue)
        if at_s >= self._wva_due_s - SLACK_S:
            self._wva_due_s = next_look(at_s, self._wva_s)
            self._desired = self._analysed(seen, kv, queue)
        target = np.ones_like(current)
        followed = hpa.by_average_value(current, self._desired, target, self._tolerance)
        low, off = self._fewest, None
        if self._some_to_zero:
            low, off = np.where(self._desired == 0, 0.0, self._fewest), current == 0
        return self._behavior.apply(at_s, current, followed, low, self._high, off)

    def _analysed(self, seen: Signals, kv: Float, queue: Float) -> Float:
        """The WVA's number."""
        axis = np.newaxis
        state = saturation(kv[:, axis], queue[:, axis], seen.ready[:, axis], self._limits)
        number = seen.ready + np.where(state.scale_up, 1.0, -1.0 * state.scale_down_safe)
        number = np.minimum(np.maximum(number, self._fewest), self._high)
        transition = self._desired != seen.ready
        number = np.where(transition, self._desired, number)
        return self._idle(seen, number) if self._some_to_zero else number

    def _idle(self, seen: Signals, number: Float) -> Float:
        """0 where nothing came for the retention period, or nothing is there to come back for."""
        busy = seen.arrived - self._arrived > ROUNDING
        self._arrived = seen.arrived.copy()
        self._busy_s = np.where(busy, seen.at_s, self._busy_s)
        idle = (self._low == 0) & (seen.at_s - self._busy_s >= self._retention_s - SLACK_S)
        asleep = self._wanted == 0
        return np.where(idle | asleep, 0.0, np.where(self._desired == 0, 1.0, number))


def _thresholds(scalings: Sequence[Scaling], triggers: Sequence[Trigger]) -> Thresholds:
    targets = Targets(scalings, triggers).of
    columns = len(scalings)
    kv = targets.get("kv-usage", np.full(columns, np.inf))
    queue = targets.get("waiting", np.full(columns, np.inf))
    kv = np.where(np.isinf(kv), default("llm-d", "kv_threshold"), kv)
    queue = np.where(np.isinf(queue), default("llm-d", "queue_threshold"), queue)
    spares = (default("llm-d", name) for name in ("kv_spare", "queue_spare", "fewest_to_shrink"))
    return Thresholds(kv[:, np.newaxis], queue[:, np.newaxis], *spares)


def _usual() -> Usual:
    """Behavior of the HPA in the project's Helm chart."""
    window_s, pods = default("llm-d", "hpa_window_s"), default("llm-d", "hpa_pods")
    return Usual(window_s, window_s, pods, 0.0, pods, 0.0, default("llm-d", "hpa_period_s"))
