"""SkyPilot's SkyServe: requests per second, and counters that hold a change back.

Source of the rules: skypilot-org/skypilot, sky/serve/autoscalers.py and constants.py.
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
    MovingRate,
    Paced,
    Targets,
    default_of,
    has_waiting,
    next_look,
    parameters,
    whole_up,
)


def replicas_by_rate(
    requests: Float,
    window_s: float,
    target_per_s: Float,
    low: Float,
    high: Float,
) -> Float:
    desired = whole_up(requests / window_s / target_per_s)
    bounded: Float = np.minimum(np.maximum(desired, low), high)
    return bounded


@dataclass(frozen=True, slots=True)
class DelayedTarget:
    """A target, and for how long more or fewer were wanted (evaluations, or their seconds)."""

    target: Float
    up: Float
    down: Float


def next_target(
    previous: DelayedTarget,
    desired: Float,
    step: float | Float,
    up_after: Float,
    down_after: Float,
) -> DelayedTarget:
    """The next target: ``wanted`` after enough looks in a row, at once from a target of 0.

    step: what one look counts. A contrary look resets the other counter, an equal one both.
    """
    at_zero = previous.target == 0
    up = np.where(desired > previous.target, previous.up + step, 0.0)
    down = np.where(desired < previous.target, previous.down + step, 0.0)
    rises = (desired > previous.target) & (up >= up_after - SLACK_S)
    falls = (desired < previous.target) & (down >= down_after - SLACK_S)
    moves = rises | falls | at_zero
    return DelayedTarget(
        np.where(moves, desired, previous.target),
        np.where(moves, 0.0, up),
        np.where(moves, 0.0, down),
    )


class SkyServe(Paced):
    """A batch of services. They look every 20 s, those without a replica every 5 s."""

    def __init__(self, scalings: Sequence[Scaling], triggers: Sequence[Trigger]) -> None:
        busy_s, idle_s = (
            default_of("skyserve", "interval_s"),
            default_of("skyserve", "interval_at_zero_s"),
        )
        some_to_zero = any(scaling.min_replicas == 0 for scaling in scalings)
        super().__init__(scalings, idle_s if some_to_zero else busy_s)
        self._step_s = busy_s
        self._window_s = default_of("skyserve", "window_s")
        self._target_per_s = Targets(scalings, triggers).of["request-rate"]
        self._up_s = parameters(
            scalings, lambda scaling: scaling.up_delay_s, default_of("skyserve", "up_delay_s")
        )
        down_delay_s = default_of("skyserve", "down_delay_s")
        self._down_s = parameters(scalings, lambda scaling: scaling.down_delay_s, down_delay_s)
        self._requests = MovingRate(np.full(len(scalings), self._window_s))
        self._held = DelayedTarget(self._wanted, self._wanted, self._wanted)
        self._looked_s = self._busy_due_s = -np.inf

    def _begin(self, signals: Signals, /) -> None:
        none = np.zeros_like(self._wanted)
        self._held = DelayedTarget(self._wanted, none, none)
        self._looked_s = signals.at_s - self._step_s

    def _look(self, signals: Signals, /) -> Float:
        count = self._requests.add(signals.at_s, signals.arrived)[0]
        elapsed_s = signals.at_s - self._looked_s
        busy = signals.at_s >= self._busy_due_s - SLACK_S
        if not busy and self._held.target.all():
            return self._held.target
        desired = replicas_by_rate(count, self._window_s, self._target_per_s, self._low, self._high)
        asleep = self._held.target == 0
        desired = np.maximum(desired, asleep & has_waiting(signals))
        following = next_target(self._held, desired, elapsed_s, self._up_s, self._down_s)
        if busy:
            self._looked_s, self._busy_due_s = signals.at_s, next_look(signals.at_s, self._step_s)
            self._held = following
        else:
            self._held = _merge_columns(asleep, following, self._held)
        return self._held.target


def _merge_columns(columns: Bool, new: DelayedTarget, old: DelayedTarget) -> DelayedTarget:
    return DelayedTarget(
        np.where(columns, new.target, old.target),
        np.where(columns, new.up, old.up),
        np.where(columns, new.down, old.down),
    )
