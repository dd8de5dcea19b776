"""The space searched of each policy: values of its parameters, and the policy at a point of them.

Targets are searched as shares of what a replica holds or serves at its capacity, so that the same
values fit a small model and a large one. Numbers are rounded to what autoscalers can be told: whole
seconds, targets to a thousandth. Only what a bundle can write is searched.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
from optuna.distributions import BaseDistribution, IntDistribution

from recipe_core.base.arrays import Int
from recipe_core.request.over_time import HOUR_S
from recipe_core.request.scaling import Metric, Period, Policy, Scaling, Trigger
from recipe_core.scaling.policies.rows import default_of, policy_row

WEEK_HOURS = 168
# Of delays: Kubernetes refuses longer windows.
LONGEST_S = 3600.0
# Kubernetes reads targets to a thousandth.
GRAIN = 1000

Point = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Need:
    """The need of the load, in replicas.

    replicas: for each interval of the load, whole. capacity_per_s: requests per second of a replica
    within the limits; in_flight: requests in it then, kv_usage: share of its cache. start_s: of a
    cold start. start_hour: hour of the week at which the load begins. gauges: what the engine
    reports.
    """

    replicas: Int
    interval_s: float
    capacity_per_s: float
    in_flight: float
    kv_usage: float
    start_s: float
    start_hour: int
    gauges: frozenset[Metric]

    @property
    def peak(self) -> int:
        return int(self.replicas.max())

    def quantile(self, share: float) -> int:
        """Replicas that are enough in this share of the intervals."""
        return int(np.quantile(self.replicas, share, method="higher"))

    def by_hour(self, share: float) -> Int:
        """Replicas for each hour of the week: enough in this share of its intervals.

        An hour that the load does not reach has those of the same hour of other days.
        """
        at = np.arange(len(self.replicas)) * self.interval_s / HOUR_S
        hours = ((self.start_hour + at) % WEEK_HOURS).astype(np.int64)
        out = np.full(WEEK_HOURS, -1, dtype=np.int64)
        for hour in np.unique(hours):
            some = self.replicas[hours == hour]
            out[hour] = int(np.quantile(some, share, method="higher"))
        for hour in np.flatnonzero(out < 0):
            same = out[hour % 24 :: 24]
            reached_hours = same[same >= 0]
            out[hour] = int(reached_hours.max()) if len(reached_hours) else self.peak
        return out


@dataclass(frozen=True, slots=True)
class Space:
    """Values of a policy's parameters in their order, and the policy at a point of them.

    at: None where that is nothing new.
    """

    policy: Policy
    values: Mapping[str, tuple[float, ...]]
    at: Callable[[Point], Scaling | None]

    @property
    def distributions(self) -> dict[str, BaseDistribution]:
        """Places of values, so that near ones are alike, those at both ends are met, and 0 is."""
        return {name: IntDistribution(0, len(some) - 1) for name, some in self.values.items()}

    def scaling(self, places: Mapping[str, int]) -> Scaling | None:
        """Return the policy with the values at these places."""
        return self.at({name: self.values[name][place] for name, place in places.items()})


def _schedule_space(need: Need) -> Space:
    leads = tuple(float(hours) for hours in range(math.ceil(need.start_s / HOUR_S) + 1))
    values = {**policy_row("schedule").search, "lead": leads}
    by_share = {share: need.by_hour(share) for share in values["share"]}

    def at(point: Point) -> Scaling | None:
        hours = by_share[point["share"]]
        hours = np.ceil(hours * (1 + point["headroom"]) - 1e-9).astype(np.int64)
        return schedule_of(hours, lead=int(point["lead"]), merge=point["merge"])

    return Space("schedule", values, at)


def schedule_of(hours: Int, *, lead: int = 0, merge: float = 0.0) -> Scaling | None:
    """A schedule with so many replicas in each hour of the week.

    Args:
        hours: replicas by hour of the week, 168 numbers.
        lead: hours by which replicas are there before they are needed.
        merge: hours whose numbers differ by at most this share have the larger one together.

    Returns:
        The policy; None where all hours are alike, which is a fixed number.
    """
    ahead = np.max([np.roll(hours, -by) for by in range(lead + 1)], axis=0)
    merged = _merge_hours(ahead, merge)
    base = int(merged.min())
    if base == int(merged.max()):
        return None
    periods, begin = [], 0
    for count, same in groupby(merged.tolist()):
        end = begin + len(list(same))
        if count > base:
            periods.append(Period(from_hour=begin, to_hour=end, replicas=int(count)))
        begin = end
    return Scaling(
        policy="schedule",
        min_replicas=base,
        max_replicas=max(int(merged.max()), 1),
        periods=tuple(periods),
    )


def _merge_hours(hours: Int, share: float) -> Int:
    """Neighbouring hours within a share of their largest number, raised to it."""
    out, begin = hours.copy(), 0
    for hour in range(1, len(hours) + 1):
        part = hours[begin : hour + 1]
        if hour == len(hours) or part.min() < part.max() * (1 - share) - 1e-9:
            out[begin:hour] = hours[begin:hour].max()
            begin = hour
    return out


def space_of(policy: Policy, need: Need) -> Space:
    """Return the space of a policy; of ``fixed`` there is none, see ``bounds``."""
    row = policy_row(policy)
    if policy == "schedule":
        return _schedule_space(need)
    values = {
        name: _min_replica_counts(need, zero=some[0] == 0) if name == "least" else some
        for name, some in row.search.items()
    }
    metric = _followed_metric(need) if row.several else next(iter(row.metrics), None)

    def at(point: Point) -> Scaling:
        fields: dict[str, Any] = {"policy": policy, "triggers": ()}
        for name, value in point.items():
            if name == "target":
                assert metric is not None  # noqa: S101 - a row with targets has metrics
                fields["triggers"] = (_capacity_trigger(need, metric, value),)
            elif name in row.metrics:
                trigger = {"metric": name, "target": _round_target(value)}
                fields["triggers"] += (Trigger.model_validate(trigger),)
            elif name == "least":
                fields |= _replica_bounds(need, int(value))
            elif name == "lead":
                fields["lead_s"] = _whole_s(need.start_s * value)
            elif name == "tolerance":
                fields[name] = None if value == default_of(policy, name) else value
            else:
                fields[name] = _whole_s(value) if name.endswith("_s") else round(value, 3)
        return Scaling(**fields)

    return Space(policy, values, at)


# Values


def _min_replica_counts(need: Need, *, zero: bool) -> tuple[float, ...]:
    """Fewest replicas: none where nothing comes at times, else parts of the need."""
    quantiles = {max(need.quantile(share), 1) for share in (0.0, 0.25, 0.5, 0.75)} | {1}
    idle = {0} if zero and (need.replicas == 0).any() else set()
    return tuple(float(count) for count in sorted(idle | quantiles))


def _replica_bounds(need: Need, min_replicas: int) -> dict[str, int]:
    """Bounds of the number of replicas; the most leave room for a late start."""
    return {
        "min_replicas": min_replicas,
        "max_replicas": max(math.ceil(1.5 * need.peak), need.peak + 2, min_replicas),
    }


def _followed_metric(need: Need) -> Metric:
    """Return the metric of Kubernetes' autoscalers: requests in flight where engines tell them."""
    order: tuple[Metric, ...] = ("in-flight", "running", "kv-usage", "waiting")
    return next((metric for metric in order if metric in need.gauges), "request-rate")


def _capacity_trigger(need: Need, metric: Metric, share: float) -> Trigger:
    """The trigger whose target is a share of what a replica has at its capacity."""
    full: dict[Metric, float] = {
        "waiting": max(need.in_flight / 4, 1.0),
        "running": need.in_flight,
        "in-flight": need.in_flight,
        "kv-usage": need.kv_usage,
        "request-rate": need.capacity_per_s,
    }
    return Trigger(metric=metric, target=_round_target(full[metric] * share))


def _round_target(value: float) -> float:
    """A target with three digits, as Kubernetes can read it."""
    digits = 2 - math.floor(math.log10(value)) if value > 0 else 0
    return max(round(round(value, min(digits, 3)) * GRAIN) / GRAIN, 1 / GRAIN)


def _whole_s(seconds: float) -> float:
    return float(min(round(seconds), LONGEST_S))
