"""Policies that bring a metric to its target: replicas are what all of them have, over the target.

They differ in how they settle on a number. Kubernetes' autoscaler looks back on windows and limits
steps (``Behaved``: HPA, KEDA, and llm-d, whose own number an HPA follows), Knative has a stable and
a panic mean (``Kpa``), SkyServe and Ray Serve hold a change back (``Held``). Parameters are those
of ``policies.yaml`` where a scaling states none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

import numpy as np

from recipe_core.base.arrays import Bool, Float
from recipe_core.request.scaling import Metric, Policy, Scaling, Trigger
from recipe_core.scaling.fleet import Signals
from recipe_core.scaling.policies.controller import Due, Paced, has_waiting, open_requests
from recipe_core.scaling.policies.rows import default_of, defaults_of, parameters, same_parameter
from recipe_core.scaling.policies.rules import (
    ROUNDING,
    Hold,
    Panic,
    ScaleRates,
    StepLimits,
    Thresholds,
    analyse_saturation,
    desired_pods,
    is_over_panic,
    next_variants,
    replicas_from_zero,
    replicas_with_activation,
    smoothed_replicas,
    track_target,
    whole_up,
)
from recipe_core.scaling.policies.windows import (
    SLACK_S,
    Delayed,
    MovingMax,
    MovingMean,
    MovingRate,
    MovingSum,
)

# What a policy scales by where its scaling states no triggers.
Triggers = Mapping[Policy, Sequence[Trigger]]
GAUGES: tuple[Metric, ...] = ("waiting", "running", "in-flight", "kv-usage")
Number = TypeVar("Number", bound=np.generic)


def batch_columns(scalings: Sequence[Scaling], policy: Policy) -> slice:
    """Return the columns of a policy, which stand together."""
    places = [place for place, scaling in enumerate(scalings) if scaling.policy == policy]
    return slice(places[0], places[-1] + 1) if places else slice(0, 0)


class Figures:
    """Totals of metrics over all replicas, a row for each trigger of each column.

    A share of the cache is summed over the replicas too: its mean times the ready ones. Figures of
    a moment are averaged over a window (0: as they are), requests counted over one. share: of the
    windows.
    """

    def __init__(self, scalings: Sequence[Scaling], triggers: Triggers, share: float = 1.0) -> None:
        rows = [
            (column, trigger)
            for column, scaling in enumerate(scalings)
            for trigger in _tightest(scaling.triggers or triggers[scaling.policy])
        ]
        by_row = [scalings[column] for column, _ in rows]
        self.column = np.array([column for column, _ in rows], dtype=np.int64)
        self.first = np.flatnonzero(np.diff(self.column, prepend=-1))
        self.target = np.array([trigger.target for _, trigger in rows])
        self.is_rate = np.array([trigger.metric == "request-rate" for _, trigger in rows])
        gauges = ~self.is_rate
        metrics = [trigger.metric for _, trigger in rows if trigger.metric in GAUGES]
        self._gauge = np.array([GAUGES.index(metric) for metric in metrics], dtype=np.int64)
        self._gauge_column = self.column[gauges]
        self._mean = MovingMean(share * parameters(by_row, "window_s")[gauges])
        windows_s = [s.window_s or _rate_window_s(s.policy) for s in by_row]
        rate_s = share * np.array(windows_s)[self.is_rate]
        self._rate = MovingRate(rate_s) if len(rate_s) else None
        self._counts = np.array([s.policy == "skyserve" for s in by_row])[self.is_rate]
        self._rate_s, self._rate_column = rate_s, self.column[self.is_rate]

    def read(self, signals: Signals) -> Float:
        """Return the totals at this look, one number a row."""
        figures = np.stack(
            [
                signals.waiting,
                signals.running,
                open_requests(signals),
                signals.kv_usage * signals.ready,
            ]
        )
        gauges = self._mean.add(signals.at_s, figures[self._gauge, self._gauge_column])
        if self._rate is None:
            return gauges
        totals = np.empty(len(self.column))
        totals[~self.is_rate] = gauges
        increase, per_s = self._rate.add(signals.at_s, signals.arrived[self._rate_column])
        # SkyServe divides by its window, however short the time since it began.
        totals[self.is_rate] = np.where(self._counts, increase / self._rate_s, per_s)
        return totals

    def most(self, rows: Float) -> Float:
        """Return the largest number of each column, which has rows for all its triggers."""
        largest: Float = np.maximum.reduceat(rows, self.first)
        return largest


def _tightest(triggers: Sequence[Trigger]) -> list[Trigger]:
    """Triggers of different metrics; of one metric the one with the smallest target."""
    by_metric: dict[Metric, Trigger] = {}
    for trigger in sorted(triggers, key=lambda trigger: -trigger.target):
        by_metric[trigger.metric] = trigger
    return list(by_metric.values())


def _rate_window_s(policy: Policy) -> float:
    numbers = defaults_of(policy)
    return numbers.get("rate_window_s", numbers.get("window_s", 0.0))


class Behavior:
    """The ``behavior`` of autoscaling/v2: windows, then policies of steps, then bounds."""

    def __init__(self, scalings: Sequence[Scaling]) -> None:
        self._up, self._down = (_step_limits(scalings, side) for side in ("up", "down"))
        self._highest = MovingMax(parameters(scalings, "down_delay_s"))
        self._lowest = MovingMax(parameters(scalings, "up_delay_s"))  # of negated ones
        self._changes = MovingSum(np.concatenate([self._up.period_s, self._down.period_s]))

    def begin(self, at_s: float, current: Float) -> None:
        """Start with the number that is there as the first recommendation."""
        self._highest.add(at_s, current)
        self._lowest.add(at_s, -current)

    def apply(
        self, at_s: float, current: Float, desired: Float, low: Float, high: Float, off: Bool
    ) -> Float:
        """Return the new number of replicas, between ``low`` and ``high``.

        off: columns whose HPA is off, as they have no replica. They stay as they are, and nothing
        is recommended.
        """
        highest = self._highest.add(at_s, np.where(off, -np.inf, desired))
        lowest = -self._lowest.add(at_s, np.where(off, -np.inf, -desired))
        number = np.minimum(np.maximum(current, lowest), highest)
        number = np.minimum(np.maximum(number, low), high)
        ups, downs = self._changes.total(at_s).reshape(2, -1)
        number = np.minimum(number, np.maximum(self._up.highest(current - ups), current))
        number = np.maximum(number, np.minimum(self._down.lowest(current - downs), current))
        number = np.where(off, current, number)
        change = number - current
        self._changes.note(at_s, np.concatenate([change, change]))
        return number


def _step_limits(scalings: Sequence[Scaling], side: str) -> StepLimits:
    """A stated step stands in place of both policies."""
    is_stated = np.array([getattr(scaling, f"{side}_step") is not None for scaling in scalings])
    percent = parameters(scalings, f"{side}_percent") * ~is_stated
    period_s = parameters(scalings, f"{side}_period_s")
    return StepLimits(parameters(scalings, f"{side}_step"), percent, period_s)


class Behaved(Paced):
    """A batch of HPAs, ScaledObjects, and variants of llm-d, which stand in this order.

    Metrics are as old as a scrape; a pod that starts has none. Above zero the HPA looks every 15 s.
    A ScaledObject that may have no replica is looked at every ``pollingInterval``: it gets its
    first one as soon as a request is seen at the gateway or a trigger is active, and loses the last
    one ``cooldownPeriod`` after that was last so.
    """

    def __init__(self, scalings: Sequence[Scaling], triggers: Triggers) -> None:
        self._hpas, self._kedas, part = (
            batch_columns(scalings, policy) for policy in ("hpa", "keda", "llm-d")
        )
        self._wva = Wva(scalings[part], triggers) if scalings[part] else None
        self._own, self._tracked = part, slice(0, max(self._hpas.stop, self._kedas.stop))
        self._syncs = Due(default_of("hpa", "sync_period_s"))
        self._to_zero = any(scaling.min_replicas == 0 for scaling in scalings)
        paces_s = [self._syncs.interval_s]
        if scalings[self._kedas]:
            self._polls = Due(same_parameter(scalings[self._kedas], "interval_s"))
            paces_s += [self._polls.interval_s] * self._to_zero
        if scalings[part] and self._to_zero:
            paces_s.append(default_of("llm-d", "interval_at_zero_s"))
        super().__init__(scalings, min(paces_s))
        tracked = scalings[self._tracked]
        self._figures = Figures(tracked, triggers) if tracked else None
        self._scraped: Delayed[tuple[Float, Float, Float]] = Delayed(
            default_of("hpa", "scrape_delay_s")
        )
        self._tolerance = parameters(scalings, "tolerance")
        self._behavior = Behavior(scalings)
        self._fewest = np.maximum(self._low, 1.0)
        self._cooldown_s = parameters(scalings[self._kedas], "idle_s")
        self._active_s = np.zeros(len(self._cooldown_s))
        self._pods = np.zeros(0, dtype=bool)
        if self._figures is not None:
            self._pods = self._figures.column < self._hpas.stop

    def _begin(self, signals: Signals, /) -> None:
        self._behavior.begin(signals.at_s, self._wanted)
        self._active_s = np.full_like(self._active_s, signals.at_s)
        if self._wva is not None:
            self._wva.begin(signals, self._own, self._wanted[self._own])

    def _look(self, signals: Signals, /) -> Float:
        at_s, number, figures = signals.at_s, self._wanted, self._figures
        totals = ready = gateway = np.zeros(0)
        if figures is not None:
            now = figures.read(signals), signals.ready.copy(), open_requests(signals)
            totals, ready, gateway = self._scraped.add(at_s, now)
        if self._syncs.comes(at_s):
            number = self._synced(signals, totals, ready)
        if not self._to_zero:
            return number
        if self._kedas.stop and self._polls.comes(at_s):
            number = self._polled(at_s, number.copy(), totals, gateway)
        if self._wva is not None:
            number = number.copy()
            number[self._own] = self._wva.wake(has_waiting(signals)[self._own], number[self._own])
        return number

    def _synced(self, signals: Signals, totals: Float, ready: Float) -> Float:
        """The HPAs' numbers; 0 where there is no replica, as they are off then."""
        current = self._wanted
        desired, low = np.zeros_like(current), self._fewest
        if self._figures is not None:
            desired[self._tracked] = self._track(totals, ready)
        if self._wva is not None:
            part = self._own
            number = self._wva.sync(
                signals, part, self._fewest[part], self._high[part], current[part]
            )
            measured, tolerance = np.maximum(current[part], 1.0), self._tolerance[part]
            unit = np.ones_like(measured)
            desired[part] = track_target(current[part], number, unit, tolerance, measured)
            low = low.copy()
            low[part] = np.where(number == 0, 0.0, low[part])
        off = current == 0
        return self._behavior.apply(signals.at_s, current, desired, low, self._high, off)

    def _track(self, totals: Float, ready: Float) -> Float:
        """Replicas by metrics of pods of HPAs, and by totals of ScaledObjects."""
        figures = self._figures
        assert figures is not None  # noqa: S101 - asked for where there are triggers
        current = self._wanted[figures.column]
        measured = np.where(self._pods, ready[figures.column], np.maximum(current, 1.0))
        missing = np.where(self._pods, np.maximum(current - measured, 0.0), 0.0)
        tolerance = self._tolerance[figures.column]
        return figures.most(
            track_target(current, totals, figures.target, tolerance, measured, missing)
        )

    def _polled(self, at_s: float, number: Float, totals: Float, gateway: Float) -> Float:
        kedas, activation = self._kedas, default_of("keda", "activation") + ROUNDING
        assert self._figures is not None  # noqa: S101 - KEDA scales by triggers
        triggered = np.logical_or.reduceat(totals > activation, self._figures.first)
        active = (triggered | (gateway[self._tracked] > activation))[kedas]
        self._active_s = np.where(active, at_s, self._active_s)
        warm = at_s - self._active_s < self._cooldown_s - SLACK_S
        replicas = replicas_with_activation(active | warm, number[kedas], self._low[kedas])
        number[kedas] = np.where((replicas == 0) & active, self._fewest[kedas], replicas)
        return number


class Wva:
    """llm-d's workload variant autoscaler of models with one variant each.

    It looks every 60 s at the highest cache use and queue of the last minute and asks for one more
    or one fewer than are ready, nothing while its last number is not reached. The HPA follows
    within its windows. Replicas of a fleet are alike here, so all are saturated or none.
    """

    def __init__(self, scalings: Sequence[Scaling], triggers: Triggers) -> None:
        self._looks = Due(same_parameter(scalings, "interval_s"))
        window_s = parameters(scalings, "window_s")
        self._kv, self._queue = MovingMax(window_s), MovingMax(window_s)
        self._scraped: Delayed[tuple[Float, Float]] = Delayed(default_of("hpa", "scrape_delay_s"))
        self._limits = _thresholds(scalings, triggers)
        self._retention_s = parameters(scalings, "idle_s")
        self._can_end = parameters(scalings, "min_replicas") == 0
        self.desired = self._busy_s = self._arrived = np.zeros(len(scalings))

    def begin(self, signals: Signals, part: slice, current: Float) -> None:
        """Start with the number that is there."""
        self.desired = current
        self._busy_s = np.full_like(current, signals.at_s)
        self._arrived = signals.arrived[part].copy()

    def wake(self, waiting: Bool, number: Float) -> Float:
        """Return one replica where there is none and a request waits."""
        wakes = (number == 0) & waiting
        self.desired = np.where(wakes, 1.0, self.desired)
        return np.where(wakes, 1.0, number)

    def sync(self, signals: Signals, part: slice, low: Float, high: Float, current: Float) -> Float:
        """Return its number; ``own``: its columns of the signals."""
        at_s, ready = signals.at_s, signals.ready[part]
        queue = signals.waiting[part] / np.maximum(ready, 1.0)
        kv, queue = self._scraped.add(at_s, (signals.kv_usage[part].copy(), queue))
        kv, queue = self._kv.add(at_s, kv), self._queue.add(at_s, queue)
        if self._looks.comes(at_s):
            state = analyse_saturation(kv[:, None], queue[:, None], ready[:, None], self._limits)
            number = next_variants(
                ready[:, None],
                self.desired[:, None],
                np.ones(1),
                state.scale_up,
                state.scale_down_safe,
            )[:, 0]
            number = np.minimum(np.maximum(number, low), high)
            self.desired = self._idle(at_s, signals.arrived[part], current, number)
        return self.desired

    def _idle(self, at_s: float, arrived: Float, current: Float, number: Float) -> Float:
        """0 where nothing came for the retention period, or nothing is there to come back for."""
        self._busy_s = np.where(arrived - self._arrived > ROUNDING, at_s, self._busy_s)
        self._arrived = arrived.copy()
        idle = self._can_end & (at_s - self._busy_s >= self._retention_s - SLACK_S)
        woken = np.where(self._can_end & (self.desired == 0), 1.0, number)
        return np.where(idle | (current == 0), 0.0, woken)


def _thresholds(scalings: Sequence[Scaling], triggers: Triggers) -> Thresholds:
    usual = {"kv-usage": "kv_threshold", "waiting": "queue_threshold"}
    columns = []
    for metric, name in usual.items():
        limits = [
            min(
                (t.target for t in scaling.triggers or triggers["llm-d"] if t.metric == metric),
                default=default_of("llm-d", name),
            )
            for scaling in scalings
        ]
        columns.append(np.array(limits)[:, None])
    spares = (default_of("llm-d", name) for name in ("kv_spare", "queue_spare", "fewest_to_shrink"))
    kv, queue = columns
    return Thresholds(kv, queue, *spares)


class Kpa(Paced):
    """A batch of Knative revisions. Their metric is scraped every second, so it has no delay.

    A trigger's target is the value that a pod holds at the right number of pods, what Knative
    calls target × utilisation. Without replicas the activator reports requests at once; the last
    pod ends once nothing came for the stable window and the longer of the grace period (its upper
    limit) and the retention.
    """

    def __init__(self, scalings: Sequence[Scaling], triggers: Triggers) -> None:
        numbers = defaults_of("kpa")
        super().__init__(scalings, numbers["sync_period_s"])
        self._stable = Figures(scalings, triggers)
        self._panicked = Figures(scalings, triggers, numbers["panic_window"])
        self._rates = ScaleRates(numbers["max_up"], numbers["max_down"], numbers["panic_threshold"])
        self._panic = Panic(parameters(scalings, "window_s"))
        self._delay = MovingMax(parameters(scalings, "down_delay_s"))
        self._grace_s = np.maximum(parameters(scalings, "idle_s"), numbers["grace_s"])
        self._busy_s = np.zeros(len(scalings))

    def _begin(self, signals: Signals, /) -> None:
        self._panic.begin(signals.at_s, signals.ready)
        self._busy_s = np.full_like(self._wanted, signals.at_s)

    def _look(self, signals: Signals, /) -> Float:
        at_s, ready, target = signals.at_s, signals.ready, self._stable.target
        # Nothing was recorded at zero: what the activator holds is the whole mean.
        activated = (ready <= 0) & ~self._stable.is_rate
        stable, panicked = (
            np.where(activated, open_requests(signals), figures.read(signals))
            for figures in (self._stable, self._panicked)
        )
        over = is_over_panic(panicked, target, ready, self._rates)
        pods, panic = (
            desired_pods(mean, target, ready, self._rates) for mean in (stable, panicked)
        )
        number = self._delay.add(at_s, self._panic.apply(at_s, over, pods, panic))
        self._busy_s = np.where(number > 0, at_s, self._busy_s)
        keeps = (self._wanted > 0) & (at_s - self._busy_s < self._grace_s - SLACK_S)
        wakes = (self._wanted == 0) & has_waiting(signals)
        return self._bounded(np.maximum(number, keeps | wakes))


class Held(Paced):
    """A batch of SkyServe's services and Ray Serve's deployments, which stand in this order.

    Services look every 20 s, those without a replica every 5 s. Handles and replicas of Ray report
    every 10 s, so it looks as often; its delays are of the wall clock, as in recent versions.
    """

    def __init__(self, scalings: Sequence[Scaling], triggers: Triggers) -> None:
        self._skies, self._rays = (
            batch_columns(scalings, policy) for policy in ("skyserve", "ray-serve")
        )
        services, deployments = scalings[self._skies], scalings[self._rays]
        intervals_s = [
            same_parameter(part, "interval_s") for part in (services, deployments) if part
        ]
        self._syncs = Due(max(intervals_s))
        if any(scaling.min_replicas == 0 for scaling in services):
            intervals_s.append(default_of("skyserve", "interval_at_zero_s"))
        super().__init__(scalings, min(intervals_s))
        self._figures = Figures(scalings, triggers)
        self._is_sky = np.array([scaling.policy == "skyserve" for scaling in scalings])
        down_s, last_s = (
            parameters(scalings, "down_delay_s"),
            parameters(scalings, "idle_s", np.nan),
        )
        last_s = np.where(np.isnan(last_s), down_s, last_s)
        up_s = parameters(scalings, "up_delay_s")
        self._hold = Hold(self._wanted, up_s, down_s, last_s, ~self._is_sky)
        self._looked_s = -np.inf

    def _begin(self, signals: Signals, /) -> None:
        self._hold.number = self._wanted
        self._looked_s = signals.at_s - self._syncs.interval_s

    def _look(self, signals: Signals, /) -> Float:
        at_s, hold, rays = signals.at_s, self._hold, self._rays
        totals, at_once = self._figures.read(signals), open_requests(signals)
        desired = whole_up(totals / self._figures.target)
        none_runs = signals.ready <= 0
        if rays.stop:
            running = np.maximum(signals.ready[rays], 1.0)
            tracked = smoothed_replicas(running, totals[rays], self._figures.target[rays])
            first = replicas_from_zero(hold.number[rays], at_once[rays])
            desired[rays] = np.where(none_runs[rays], first, tracked)
        desired = self._bounded(desired)
        asleep = self._is_sky & (hold.number == 0)
        desired = np.maximum(desired, asleep & has_waiting(signals))
        if not self._syncs.comes(at_s):
            hold.number = np.where(asleep, desired, hold.number)
            return hold.number
        counted_s = np.where(self._is_sky, at_s - self._looked_s, 0.0)
        self._looked_s = at_s
        return hold.apply(at_s, desired, counted_s, asleep | (none_runs & ~self._is_sky))
