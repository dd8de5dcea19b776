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
from recipe_core.scaling.fleet import Signals
from recipe_core.scaling.policies import hpa
from recipe_core.scaling.policies.columns import (
    ROUNDING,
    SLACK_S,
    Delayed,
    MovingMax,
    Paced,
    Targets,
    default_of,
    has_waiting,
    next_look,
    parameters,
    same_number,
)
from recipe_core.scaling.policies.hpa import Behavior, HpaDefaults


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
    """The analysis of groups of replicas that are alike, along the last axis.

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
    numbers_of = {name: variant.desired or variant.ready for name, variant in variants.items()}
    if any(numbers_of[name] != variant.ready for name, variant in variants.items()):
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
        sync_s = default_of("hpa", "sync_period_s")
        some_to_zero = any(scaling.min_replicas == 0 for scaling in scalings)
        super().__init__(
            scalings, default_of("llm-d", "interval_at_zero_s") if some_to_zero else sync_s
        )
        self._some_to_zero, self._sync_s = some_to_zero, sync_s
        self._wva_s = same_number(
            scalings, lambda scaling: scaling.interval_s, default_of("llm-d", "interval_s")
        )
        self._sync_due_s = self._wva_due_s = -np.inf
        window_s = parameters(
            scalings, lambda scaling: scaling.window_s, default_of("llm-d", "window_s")
        )
        self._kv, self._queue = MovingMax(window_s), MovingMax(window_s)
        self._delayed: Delayed[tuple[Float, Float]] = Delayed(default_of("hpa", "scrape_delay_s"))
        self._limits = _thresholds(scalings, triggers)
        self._tolerance = hpa.tolerances(scalings)
        self._behavior = Behavior(scalings, sync_s, _llm_d_hpa_defaults())
        self._retention_s = parameters(
            scalings, lambda scaling: scaling.idle_s, default_of("llm-d", "retention_s")
        )
        self._desired = self._wanted
        self._fewest = np.maximum(self._low, 1.0)
        self._busy_s = self._arrived = np.zeros(len(scalings))

    def _begin(self, signals: Signals, /) -> None:
        self._behavior.begin(signals.at_s, self._wanted)
        self._desired = self._wanted
        self._busy_s = np.full_like(self._wanted, signals.at_s)
        self._arrived = signals.arrived.copy()

    def _look(self, signals: Signals, /) -> Float:
        number = self._wanted
        if signals.at_s >= self._sync_due_s - SLACK_S:
            self._sync_due_s = next_look(signals.at_s, self._sync_s)
            number = self._synced(signals)
        if self._some_to_zero:
            wakes = (number == 0) & has_waiting(signals)
            self._desired = np.where(wakes, 1.0, self._desired)
            number = np.where(wakes, 1.0, number)
        return number

    def _synced(self, signals: Signals) -> Float:
        at_s, current = signals.at_s, self._wanted
        queue = signals.waiting / np.maximum(signals.ready, 1.0)
        kv, queue = self._delayed.add(at_s, (signals.kv_usage.copy(), queue))
        kv, queue = self._kv.add(at_s, kv), self._queue.add(at_s, queue)
        if at_s >= self._wva_due_s - SLACK_S:
            self._wva_due_s = next_look(at_s, self._wva_s)
            self._desired = self._analysed(signals, kv, queue)
        target = np.ones_like(current)
        followed = hpa.by_average_value(current, self._desired, target, self._tolerance)
        low, off = self._fewest, None
        if self._some_to_zero:
            low, off = np.where(self._desired == 0, 0.0, self._fewest), current == 0
        return self._behavior.apply(at_s, current, followed, low, self._high, off)

    def _analysed(self, signals: Signals, kv: Float, queue: Float) -> Float:
        """The WVA's number."""
        axis = np.newaxis
        state = analyse_saturation(
            kv[:, axis], queue[:, axis], signals.ready[:, axis], self._limits
        )
        number = signals.ready + np.where(state.scale_up, 1.0, -1.0 * state.scale_down_safe)
        number = np.minimum(np.maximum(number, self._fewest), self._high)
        transition = self._desired != signals.ready
        number = np.where(transition, self._desired, number)
        return self._idle(signals, number) if self._some_to_zero else number

    def _idle(self, signals: Signals, number: Float) -> Float:
        """0 where nothing came for the retention period, or nothing is there to come back for."""
        busy = signals.arrived - self._arrived > ROUNDING
        self._arrived = signals.arrived.copy()
        self._busy_s = np.where(busy, signals.at_s, self._busy_s)
        idle = (self._low == 0) & (signals.at_s - self._busy_s >= self._retention_s - SLACK_S)
        asleep = self._wanted == 0
        return np.where(idle | asleep, 0.0, np.where(self._desired == 0, 1.0, number))


def _thresholds(scalings: Sequence[Scaling], triggers: Sequence[Trigger]) -> Thresholds:
    targets = Targets(scalings, triggers).of
    columns = len(scalings)
    kv = targets.get("kv-usage", np.full(columns, np.inf))
    queue = targets.get("waiting", np.full(columns, np.inf))
    kv = np.where(np.isinf(kv), default_of("llm-d", "kv_threshold"), kv)
    queue = np.where(np.isinf(queue), default_of("llm-d", "queue_threshold"), queue)
    spares = (default_of("llm-d", name) for name in ("kv_spare", "queue_spare", "fewest_to_shrink"))
    return Thresholds(kv[:, np.newaxis], queue[:, np.newaxis], *spares)


def _llm_d_hpa_defaults() -> HpaDefaults:
    """Behavior of the HPA in the project's Helm chart."""
    window_s, pods = default_of("llm-d", "hpa_window_s"), default_of("llm-d", "hpa_pods")
    return HpaDefaults(
        window_s, window_s, pods, 0.0, pods, 0.0, default_of("llm-d", "hpa_period_s")
    )
