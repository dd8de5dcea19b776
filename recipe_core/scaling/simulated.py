"""One deployment under many policies: all side by side as flows, and a worst hour by requests.

The simulation by flows knows no single request; where most is at stake, the one by requests is
asked: the hour around the worst interval, after a time in which the policy and the queues come to
where they were. The window is shorter where an hour has too many requests, longer where it has too
few to tell a share.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np

from recipe_core.base.arrays import Float
from recipe_core.request.over_time import DAY_S, HOUR_S, WEEK_S, OverTime
from recipe_core.request.scaling import Policy, Scaling
from recipe_core.request.serving_workload import ServingWorkload
from recipe_core.scaling.attainment import capacity_per_s, replicas_for
from recipe_core.scaling.fleet import Controller, Fleet, StartTime
from recipe_core.scaling.fluid import simulate_flow
from recipe_core.scaling.outcome import Outcome
from recipe_core.scaling.parameter_spaces import WEEK_HOURS, Need
from recipe_core.scaling.policies import BATCHES, controller_of
from recipe_core.scaling.policies.controller import Together
from recipe_core.scaling.policies.rows import policy_row, reported_metrics
from recipe_core.scaling.requests import simulate_requests
from recipe_core.scaling.result import Checked
from recipe_core.scaling.scenario import Deployment
from recipe_core.scaling.service import curve_of, max_requests_inside
from recipe_core.scaling.traces.loads import Load, build_load, draw_requests

# Of the flow.
STEP_S = 30.0
# Policies whose windows are those of a forecast, which all columns share.
FORECASTS: tuple[Policy, ...] = ("predictive", "dynamo")
# From one look of a policy to the next at least, where all are simulated side by side.
PACE_S = 60.0
# Time before the beginning that forecasts have learned, where the load repeats.
HISTORY_DAYS = 14.0


@dataclass(frozen=True, slots=True)
class Simulation:
    """A fleet under a load, ready for policies.

    history: the load before second 0, for forecasts; None where it is not known. interval_s: of the
    series of outcomes. begun: whether second 0 is in the midst of the load.
    """

    fleet: Fleet
    load: Load
    need: Need
    history: Load | None
    interval_s: float
    begun: bool = False

    @classmethod
    def of(cls, deployment: Deployment) -> Simulation:
        fleet, load = deployment.fleet, deployment.load
        capacity = capacity_per_s(fleet, load)
        curve = curve_of(fleet.service, load.lengths)
        rates, place = np.unique(load.rates, return_inverse=True)
        in_flight = float(np.interp(capacity, curve.rate, curve.in_flight))
        need = Need(
            replicas=replicas_for(fleet, load, rates)[place],
            interval_s=load.interval_s,
            capacity_per_s=capacity,
            in_flight=max(in_flight, 1.0),
            kv_usage=min(in_flight / max_requests_inside(fleet.service, load.lengths), 1.0),
            start_s=fleet.start.seconds,
            start_hour=load.start_hour,
            gauges=frozenset(
                reported_metrics(deployment.plan.setting(deployment.row).engine.metrics)
            ),
        )
        return cls(fleet, load, need, _load_history(deployment), series_interval_of(load.span_s))

    def outcomes(
        self, scalings: Sequence[Scaling], *, seed: int = 0, starts: Sequence[StartTime] = ()
    ) -> list[Outcome]:
        """Return what comes of policies, one a column, under the same arrivals and starts.

        Args:
            scalings: those of one policy stand together.
            seed: of starts and events.
            starts: of the policies, in place of the fleet's.
        """
        outcomes = simulate_flow(
            self.fleet,
            self.load,
            self.controller(scalings),
            columns=len(scalings),
            begin=self.begin(scalings),
            seed=seed,
            interval_s=self.interval_s,
            step_s=STEP_S,
            starts=starts,
        )
        alone = float(self.fleet.rented(np.ones(1))[0])
        return [
            replace(outcome, rented_s=outcome.replica_s * alone)
            if policy_row(scaling.policy).own_machines
            else outcome
            for scaling, outcome in zip(scalings, outcomes, strict=True)
        ]

    def controller(self, scalings: Sequence[Scaling]) -> Controller:
        """The controllers of policies side by side."""
        batches: dict[tuple[object, ...], list[int]] = {}
        order = {policy: place for place, policy in enumerate(chain(*BATCHES))}
        for column in sorted(range(len(scalings)), key=lambda at: order[scalings[at].policy]):
            batches.setdefault(_batch_key(scalings[column]), []).append(column)
        return Together(
            [
                (self.batch([scalings[column] for column in columns]), np.array(columns))
                for columns in batches.values()
            ],
            PACE_S,
        )

    def batch(self, scalings: Sequence[Scaling], before_s: float = 0.0) -> Controller:
        """The controller of one batch of policies.

        Args:
            scalings: as ``controller_of`` takes them.
            before_s: seconds of the load that have passed before it begins.
        """
        return controller_of(
            scalings,
            capacity_per_s=self.need.capacity_per_s,
            start_s=self.fleet.start.seconds,
            history=self._history_to(before_s),
            slots=round(self.need.in_flight),
            limits_s=self.fleet.limits_s,
        )

    def begin(self, scalings: Sequence[Scaling]) -> Float:
        """Replicas of each policy at the beginning: as stated, else what the load needs there."""
        first, hour = int(self.need.replicas[0]), self.need.start_hour
        return np.array(
            [
                float(_initial_replicas(scaling, first, hour))
                if scaling.begin_replicas is None or self.begun
                else float(scaling.begin_replicas)
                for scaling in scalings
            ]
        )

    def part(self, days: float) -> Simulation:
        """The same over the hardest days: those around the busiest interval, with the quietest one.

        The simulation itself where it is no longer than that.
        """
        from_s, to_s = hardest_days(self.load, days)
        if to_s - from_s >= self.load.span_s:
            return self
        load = load_part(self.load, from_s, to_s)
        first = int(from_s // self.load.interval_s)
        replicas = self.need.replicas[first : first + len(load.rates)]
        need = replace(self.need, replicas=replicas, start_hour=load.start_hour)
        history, begun = self._history_to(from_s), from_s > 0
        return replace(self, load=load, need=need, history=history, begun=begun)

    def _history_to(self, at_s: float) -> Load | None:
        past, count = self.history, int(at_s // self.load.interval_s)
        if not count:
            return past
        rates = self.load.rates[:count]
        if past is not None and past.interval_s == self.load.interval_s:
            rates = np.concatenate([past.rates, rates])
        return replace(self.load, rates=rates)


def _batch_key(scaling: Scaling) -> tuple[object, ...]:
    """Return what policies that one controller decides share: a stated interval is of one."""
    batch = next(batch for batch in BATCHES if scaling.policy in batch)
    of_one = scaling.policy if scaling.interval_s is not None else None
    forecasts = scaling.window_s if batch[0] in FORECASTS else None
    return (batch, of_one, scaling.interval_s, forecasts)


def _initial_replicas(scaling: Scaling, needed_first: int, hour: int) -> int:
    if scaling.policy == "fixed":
        return scaling.max_replicas
    if scaling.periods:
        now = [p.replicas for p in scaling.periods if p.from_hour <= hour < p.to_hour]
        return max(now, default=scaling.min_replicas)
    return min(max(needed_first, scaling.min_replicas), scaling.max_replicas)


def _load_history(deployment: Deployment) -> Load | None:
    """Two weeks before the beginning, where the load repeats; else nothing is known of them."""
    workload = deployment.request.workload
    over_time = workload.over_time if isinstance(workload, ServingWorkload) else None
    if over_time is None or not isinstance(workload, ServingWorkload):
        return None
    period_s = _period_s(over_time)
    days = HISTORY_DAYS * DAY_S // period_s * period_s / DAY_S
    if days <= 0 or (over_time.shape is None and over_time.days * DAY_S <= period_s):
        return None
    return build_load(
        over_time.model_copy(update={"days": days, "growth_per_month": 0.0}), workload
    )


def _period_s(over_time: OverTime) -> float:
    if over_time.shape is not None:
        return WEEK_S
    return len(over_time.rates) * over_time.interval_s


def load_part(load: Load, from_s: float, to_s: float) -> Load:
    """The load from one second to another, by its intervals."""
    first = int(from_s // load.interval_s)
    last = max(math.ceil(to_s / load.interval_s - 1e-9), first + 1)
    hour = int(load.start_hour + first * load.interval_s // HOUR_S) % WEEK_HOURS
    return replace(load, rates=load.rates[first:last], start_hour=hour)


def hardest_days(load: Load, days: float) -> tuple[float, float]:
    """From and to of whole days, in seconds: with the busiest interval, and the quietest beside it.

    Where the load is no longer, all of it.
    """
    length = round(days * DAY_S / load.interval_s)
    count = len(load.rates)
    if length >= count:
        return 0.0, load.span_s
    step = max(round(DAY_S / load.interval_s), 1)
    busiest = int(np.argmax(load.rates))
    begins = [at for at in range(0, count - length + 1, step) if at <= busiest < at + length]
    begins = begins or [min(max(busiest - length // 2, 0), count - length)]
    begin = min(begins, key=lambda at: float(load.rates[at : at + length].min()))
    return begin * load.interval_s, (begin + length) * load.interval_s


def series_interval_of(span_s: float) -> float:
    """Length of the intervals of a simulation's series: a minute, longer for months."""
    if span_s <= 15 * DAY_S:
        return 60.0
    return 300.0 if span_s <= 62 * DAY_S else 1800.0


# Requests of a window and of the time before it at most: some two seconds.
MOST_REQUESTS = 40_000
# Requests of a window, where the load has so many in a day.
FEWEST_REQUESTS = 500
SEED = 11
INTERVAL_S = 60.0


def check_worst_hour(simulation: Simulation, scaling: Scaling, outcome: Outcome) -> Checked | None:
    """The worst hour of a policy, request by request; None where nothing comes in it.

    Args:
        simulation: of the fleet and its load.
        scaling: the policy.
        outcome: of the policy by flows.
    """
    worst_s, _ = outcome.worst_interval
    warm_s, from_s, to_s = choose_worst_window(simulation.load, worst_s)
    part = load_part(simulation.load, warm_s, to_s)
    trace = draw_requests(part, SEED)
    if not len(trace):
        return None
    series = outcome.series
    at = min(int(warm_s // series.interval_s), len(series.ready) - 1)
    begin = round(float(series.ready[at] + series.starting[at]))
    by_requests = simulate_requests(
        simulation.fleet,
        trace,
        simulation.batch([scaling], before_s=warm_s),
        begin=begin,
        seed=SEED,
        interval_s=INTERVAL_S,
        start_hour=part.start_hour,
        span_s=part.span_s,
    )
    inside = by_requests.series
    share, requests = _kept_share_between(
        inside.arrived, inside.kept_requests, INTERVAL_S, from_s - warm_s, to_s - warm_s
    )
    flow, _ = _kept_share_between(
        series.arrived, series.kept_requests, series.interval_s, from_s, to_s
    )
    if not requests:
        return None
    return Checked(attainment=share, flow=flow, requests=round(requests), window=(from_s, to_s))


def choose_worst_window(load: Load, worst_s: float) -> tuple[float, float, float]:
    """Second at which to begin, and the window around the worst moment, all in whole intervals.

    Windows begin at a full hour of the load, so that policies find their hour of the week.
    """
    last_s = load.span_s
    length = HOUR_S
    while length < min(DAY_S, last_s) and _requests_around(load, worst_s, length) < FEWEST_REQUESTS:
        length *= 2
    while length > 600.0 and _requests_around(load, worst_s, 2 * length) > MOST_REQUESTS:
        length /= 2
    from_s = max(min(worst_s - length / 2, last_s - length), 0.0)
    from_s = math.floor(from_s / load.interval_s) * load.interval_s
    to_s = min(max(from_s + length, worst_s + INTERVAL_S), last_s)
    warm_s = math.floor(max(from_s - min(length, HOUR_S), 0.0) / HOUR_S) * HOUR_S
    if _requests_around(load, (warm_s + to_s) / 2, to_s - warm_s) > 2 * MOST_REQUESTS:
        warm_s = from_s
    return warm_s, from_s, to_s


def _requests_around(load: Load, middle_s: float, length_s: float) -> float:
    return load_part(
        load, max(middle_s - length_s / 2, 0.0), min(middle_s + length_s / 2, load.span_s)
    ).requests


def _kept_share_between(
    arrived: Float, kept_requests: Float, interval_s: float, from_s: float, to_s: float
) -> tuple[float, float]:
    """The share that was kept of what arrived between two moments, and how many arrived."""
    first = int(from_s // interval_s)
    last = max(math.ceil(to_s / interval_s - 1e-9), first + 1)
    requests = float(np.nansum(arrived[first:last]))
    if not requests:
        return 1.0, 0.0
    return float(min(max(np.nansum(kept_requests[first:last]) / requests, 0.0), 1.0)), requests
