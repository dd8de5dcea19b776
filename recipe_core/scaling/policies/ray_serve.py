"""Ray Serve's autoscaling of a deployment.

Source of the rules: ray-project/ray, python/ray/serve/autoscaling_policy.py and its tests. Delays
are of the wall clock, as in recent versions; older ones count loops of 0.1 s.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from recipe_core.base.arrays import Float
from recipe_core.request.scaling import Scaling, Trigger
from recipe_core.scaling.fleet import Signals
from recipe_core.scaling.policies.columns import (
    ROUNDING,
    SLACK_S,
    MovingMean,
    Paced,
    Targets,
    default_of,
    open_requests,
    parameters,
    same_number,
    whole_up,
)


def desired_replicas(
    current: Float,
    ongoing: Float,
    target: Float,
    up_factor: float = 1.0,
    down_factor: float = 1.0,
) -> Float:
    """ceil(current × (1 + factor × (ongoing / (target × current) − 1))), unbounded.

    current: replicas that run, at least 1. One less where a wanted decrease would get stuck.
    """
    ratio = ongoing / (target * current)
    factor = np.where(ratio >= 1, up_factor, down_factor)
    desired = whole_up(current * (1 + factor * (ratio - 1)))
    stuck = (whole_up(current * ratio) < current) & (desired == current)
    number: Float = np.where(stuck, desired - 1, desired)
    return number


def replicas_from_zero(decided: Float, ongoing: Float, up_factor: float = 1.0) -> Float:
    """Replicas while none runs: any request asks for ceil(1 × factor) at once."""
    first = float(np.ceil(up_factor))
    number: Float = np.where(ongoing > ROUNDING, np.maximum(first, decided), decided)
    return number


@dataclass(frozen=True, slots=True)
class Delays:
    """Seconds for which a decision must hold: up, down, and from one replica to none."""

    up_s: Float
    down_s: Float
    to_zero_s: Float


class Decision:
    """The number that was decided, and since when another is asked for without a break."""

    def __init__(self, decided: Float, delays: Delays) -> None:
        self.decided = decided
        self._delays = delays
        self._up_since_s = np.full_like(decided, np.inf)
        self._down_since_s = np.full_like(decided, np.inf)

    def apply(self, at_s: float, desired: Float) -> Float:
        """Takes ``desired`` once it held for its delay; a contrary one begins anew.

        From more than one replica it goes to 1 first, and to 0 only after a delay of its own.
        """
        decided, delays = self.decided, self._delays
        up, down = desired > decided, desired < decided
        self._up_since_s = np.where(up, np.minimum(self._up_since_s, at_s), np.inf)
        self._down_since_s = np.where(down, np.minimum(self._down_since_s, at_s), np.inf)
        last = decided == 1
        down_s = np.where(last, delays.to_zero_s, delays.down_s)
        rises = up & (at_s - self._up_since_s >= delays.up_s - SLACK_S)
        falls = down & (at_s - self._down_since_s >= down_s - SLACK_S)
        lower = np.where(last, desired, np.maximum(desired, 1.0))
        self.decided = np.where(rises, desired, np.where(falls, lower, decided))
        self._up_since_s = np.where(rises, np.inf, self._up_since_s)
        self._down_since_s = np.where(falls, np.inf, self._down_since_s)
        return self.decided

    def set(self, decided: Float) -> None:
        """Takes a number without a delay."""
        self.decided = decided


class RayServe(Paced):
    """A batch of deployments. Handles and replicas report every 10 s, so it looks as often."""

    def __init__(self, scalings: Sequence[Scaling], triggers: Sequence[Trigger]) -> None:
        interval_s = same_number(
            scalings,
            lambda scaling: scaling.interval_s,
            default_of("ray-serve", "metrics_interval_s"),
        )
        super().__init__(scalings, interval_s)
        self._target = Targets(scalings, triggers).of["in-flight"]
        look_back_s = default_of("ray-serve", "look_back_s")
        self._mean = MovingMean(parameters(scalings, lambda scaling: scaling.window_s, look_back_s))
        down_s = parameters(
            scalings, lambda scaling: scaling.down_delay_s, default_of("ray-serve", "down_delay_s")
        )
        idle_s = parameters(scalings, lambda scaling: scaling.idle_s, np.nan)
        self._delays = Delays(
            parameters(
                scalings, lambda scaling: scaling.up_delay_s, default_of("ray-serve", "up_delay_s")
            ),
            down_s,
            np.where(np.isnan(idle_s), down_s, idle_s),
        )
        self._decision = Decision(self._wanted, self._delays)

    def _begin(self, _signals: Signals, /) -> None:
        self._decision.set(self._wanted)

    def _look(self, signals: Signals, /) -> Float:
        at_once = open_requests(signals)
        mean = self._mean.add(signals.at_s, at_once)
        runs = signals.ready > 0
        desired = desired_replicas(np.maximum(signals.ready, 1.0), mean, self._target)
        none_runs = replicas_from_zero(self._decision.decided, at_once)
        desired = self._bounded(np.where(runs, desired, none_runs))
        number = self._decision.apply(signals.at_s, desired)
        asleep = ~runs & (desired > number)
        if asleep.any():
            self._decision.set(np.where(asleep, desired, number))
        return self._decision.decided
