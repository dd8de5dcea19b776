"""KEDA: an HPA on totals of metrics, and the step between no replica and the first.

Source of the rules: KEDA documentation, ScaledObject specification and scaling of deployments.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from recipe_core.base.arrays import Bool, Float
from recipe_core.request.scaling import Scaling, Trigger
from recipe_core.scaling.fleet import Signals
from recipe_core.scaling.policies import hpa
from recipe_core.scaling.policies.columns import (
    ROUNDING,
    SLACK_S,
    Delayed,
    Paced,
    default_of,
    next_look,
    open_requests,
    parameters,
    same_number,
)
from recipe_core.scaling.policies.hpa import Behavior, hpa_defaults


def is_active(metric: Float, activation: Float) -> Bool:
    """Whether a trigger is active: its metric is strictly greater than the activation value."""
    active: Bool = np.greater(metric, activation)
    return active


def replicas_with_activation(active: Bool, replicas: Float, low: Float) -> Float:
    """Replicas once the cooldown is over: activation wins over the target.

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


class Keda(Paced):
    """A batch of ScaledObjects with Prometheus triggers (``metricType: AverageValue``).

    Above zero the HPA looks every 15 s. A column that may have no replica is looked at every
    ``pollingInterval``: it gets its first one as soon as a request is seen at the gateway or a
    trigger is active, and loses the last one ``cooldownPeriod`` after that was last so.
    """

    def __init__(self, scalings: Sequence[Scaling], triggers: Sequence[Trigger]) -> None:
        sync_s = default_of("hpa", "sync_period_s")
        polling_s = same_number(
            scalings, lambda scaling: scaling.interval_s, default_of("keda", "polling_interval_s")
        )
        self._to_zero = np.array([scaling.min_replicas == 0 for scaling in scalings])
        self._some_to_zero = bool(self._to_zero.any())
        super().__init__(scalings, min(sync_s, polling_s) if self._some_to_zero else sync_s)
        self._sync_s, self._polling_s = sync_s, polling_s
        self._sync_due_s = self._poll_due_s = -np.inf
        self._cooldown_s = parameters(
            scalings, lambda scaling: scaling.idle_s, default_of("keda", "cooldown_s")
        )
        self._active_s = np.zeros(len(scalings))
        self._metrics = hpa.Metrics(scalings, triggers)
        self._gateway: Delayed[Float] = Delayed(default_of("hpa", "scrape_delay_s"))
        self._tolerance = hpa.tolerances(scalings)
        self._behavior = Behavior(scalings, self.interval_s, hpa_defaults())
        self._fewest = np.maximum(self._low, 1.0)

    def _begin(self, signals: Signals, /) -> None:
        self._behavior.begin(signals.at_s, self._wanted)
        self._active_s = np.full_like(self._wanted, signals.at_s)

    def _look(self, signals: Signals, /) -> Float:
        totals, _ = self._metrics.read(signals)
        number = self._wanted
        if signals.at_s >= self._sync_due_s - SLACK_S:
            self._sync_due_s = next_look(signals.at_s, self._sync_s)
            number = self._synced(signals.at_s, totals)
        if not self._some_to_zero:
            return number
        gateway = self._gateway.add(signals.at_s, open_requests(signals))
        if signals.at_s >= self._poll_due_s - SLACK_S:
            self._poll_due_s = next_look(signals.at_s, self._polling_s)
            number = self._polled(signals.at_s, number, self._active(totals, gateway))
        return number

    def _synced(self, at_s: float, totals: hpa.Totals) -> Float:
        """The HPA's number; 0 where there is no replica, as it is off then."""
        current = self._wanted
        desired = np.zeros_like(current)
        for metric, total in totals.items():
            target = self._metrics.targets.of[metric]
            replicas = hpa.by_average_value(current, total, target, self._tolerance)
            desired = np.maximum(desired, replicas)
        off = current == 0 if self._some_to_zero else None
        return self._behavior.apply(at_s, current, desired, self._fewest, self._high, off)

    def _active(self, totals: hpa.Totals, gateway: Float) -> Bool:
        activation = default_of("keda", "activation") + ROUNDING
        active = is_active(gateway, np.asarray(activation))
        for metric, total in totals.items():
            triggered = np.isfinite(self._metrics.targets.of[metric])
            active = active | (triggered & is_active(total, np.asarray(activation)))
        return active

    def _polled(self, at_s: float, number: Float, active: Bool) -> Float:
        self._active_s = np.where(active, at_s, self._active_s)
        warm = at_s - self._active_s < self._cooldown_s - SLACK_S
        number = replicas_with_activation(active | warm, number, self._low)
        return np.where((number == 0) & active, self._fewest, number)
