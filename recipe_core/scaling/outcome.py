"""The outcome of a simulation: totals, and series over time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf

import numpy as np

from recipe_core.base.arrays import Bool, Float, Int
from recipe_core.estimates.serving.scheduler import Requests
from recipe_core.estimates.serving.simulate import reach_client
from recipe_core.scaling.fleet import Fleet, Service
from recipe_core.scaling.traces.trace import Trace

HOUR_S = 3600.0
MONTH_S = 365.25 / 12 * 24 * HOUR_S


@dataclass(frozen=True, slots=True)
class Series:
    """One number an interval of ``interval_s``: requests that arrived, kept the limits, replicas.

    arrived, kept_requests: by the interval of their arrival. ready, starting, desired: replicas,
    means over the interval. waiting, running: requests, means over it. ttft_s: mean of those that
    arrived in it, NaN where none did.
    """

    interval_s: float
    arrived: Float
    kept_requests: Float
    ready: Float
    starting: Float
    desired: Float
    waiting: Float
    running: Float
    ttft_s: Float


@dataclass(frozen=True, slots=True)
class Outcome:
    """Totals of one column over ``span_s``.

    kept_requests: those that kept all limits, of ``requests``. replica_s: seconds of replicas that
    were paid. rented_s: seconds of devices that were paid, of whole machines where these are
    rented. starts: replicas that were ordered after the beginning. delayed: requests that waited
    because a replica was still starting. lost: replicas that failed or were reclaimed.
    """

    span_s: float
    requests: float
    kept_requests: float
    replica_s: float
    rented_s: float
    starts: float
    delayed: float
    lost: float
    most_replicas: float
    series: Series

    @property
    def attainment(self) -> float:
        """Share of requests that kept the limits; 1 where none came."""
        return self.kept_requests / self.requests if self.requests else 1.0

    @property
    def worst_interval(self) -> tuple[float, float]:
        """Second at which the interval with the smallest share begins, and that share.

        Intervals with less than a tenth of the mean number of requests do not count.
        """
        arrived = self.series.arrived
        counts = arrived > 0.1 * arrived.mean()
        if not counts.any():
            return 0.0, 1.0
        share = np.where(counts, self.series.kept_requests / np.maximum(arrived, 1e-9), np.inf)
        worst = int(np.argmin(share))
        return worst * self.series.interval_s, float(share[worst])

    @property
    def device_hours(self) -> float:
        return self.rented_s / HOUR_S

    def usd(self, usd_per_device_hour: float | None) -> float | None:
        """Money for the whole time; None without a price."""
        return None if usd_per_device_hour is None else self.device_hours * usd_per_device_hour

    def usd_per_month(self, usd_per_device_hour: float | None) -> float | None:
        """Money for a month of 365.25 / 12 days at this rate; None without a price."""
        paid = self.usd(usd_per_device_hour)
        return None if paid is None else paid / self.span_s * MONTH_S


# Of a share that equals the wanted one but for its bits.
SLACK = 1e-12


def rank_outcome(attainment: float, rented_s: float, share: float) -> tuple[float, ...]:
    """Return what sorts the better first: by cost where the share is reached, else by distance."""
    if attainment >= share - SLACK:
        return (0.0, rented_s, -attainment)
    return (1.0, -attainment, rented_s)


class Lives:
    """Times of all replicas by number, infinite until they come; what a run counts besides.

    met_start: requests that arrived while a replica was starting. sent_again: those whose replica
    was lost. desired: what the policy said when.
    """

    def __init__(self, requests: int) -> None:
        self.requests = requests
        self.ordered: list[float] = []
        self.ready: list[float] = []
        self.drained: list[float] = []
        self.ended: list[float] = []
        self.lost: set[int] = set()
        self.sent_again: set[int] = set()
        self.met_start: list[int] = []
        self.desired: list[tuple[float, float]] = []

    def order(self, now: float) -> int:
        """A new replica; its number."""
        self.ordered.append(now)
        for times in (self.ready, self.drained, self.ended):
            times.append(inf)
        return len(self.ordered) - 1


def latencies(
    service: Service, trace: Trace, first_s: Float, done_s: Float
) -> tuple[Float, Float, Float]:
    """Seconds to first token, between tokens and to the end, of each request, for its client."""
    outputs = np.maximum(trace.output_tokens, 1)
    late = service.late_steps * service.rules.tokens_per_step
    first_s, done_s, tpot_s = reach_client(first_s, done_s, outputs, late, service.held_tokens)
    return first_s - trace.arrival_s, tpot_s, done_s - trace.arrival_s


def keeps_all_limits(
    limits_s: Mapping[str, float], ttft_s: Float, tpot_s: Float, latency_s: Float
) -> Bool:
    """Requests that ended and kept every limit."""
    keeps = np.isfinite(latency_s)
    figures = {"ttft_s": ttft_s, "tpot_s": tpot_s, "request_latency_s": latency_s}
    for name, limit in limits_s.items():
        keeps = keeps & (figures[name] <= limit)
    return keeps


def mean_counts(begins: Float, ends: Float, edges: Float) -> Float:
    """Mean number of what lasts from a beginning to an end, in each interval between edges."""
    seconds = np.diff(_seconds_since(begins, edges) - _seconds_since(ends, edges))
    return np.asarray(seconds / np.diff(edges))


def _seconds_since(times: Float, at: Float) -> Float:
    """Seconds since each of the times, together, at some moments."""
    times = np.sort(times[np.isfinite(times)])
    sums = np.concatenate([np.zeros(1), np.cumsum(times)])
    before = np.searchsorted(times, at, side="right")
    return np.asarray(before * at - sums[before])


def outcome_of(
    fleet: Fleet,
    trace: Trace,
    requests: Requests,
    lives: Lives,
    span_s: float,
    interval_s: float,
) -> Outcome:
    """Totals and series of a simulation by requests."""
    edges = np.append(np.arange(0.0, span_s, interval_s), span_s)
    entered, first, done = (
        np.array(times) for times in (requests.entered, requests.first, requests.done)
    )
    ttft_s, tpot_s, latency_s = latencies(fleet.service, trace, first, done)
    keeps_limits = keeps_all_limits(fleet.limits_s, ttft_s, tpot_s, latency_s)
    keeps_limits[np.array(sorted(lives.sent_again), dtype=np.int64)] = False
    ordered, ready, drained, ended = (
        np.array(t, dtype=float) for t in (lives.ordered, lives.ready, lives.drained, lives.ended)
    )
    paid_from, paid_to = np.minimum(ordered, span_s), np.minimum(ended, span_s)
    up_from, up_to = np.minimum(ready, ended), np.minimum(drained, ended)
    ready_now = mean_counts(ready, np.where(np.isfinite(ready), up_to, inf), edges)
    place = np.minimum((trace.arrival_s // interval_s).astype(np.int64), len(edges) - 2)
    arrived = _sum_by_interval(place, np.ones(len(trace)), edges)
    with np.errstate(invalid="ignore"):
        mean_ttft_s = _sum_by_interval(place, ttft_s, edges) / np.where(
            arrived > 0, arrived, np.nan
        )
    series = Series(
        interval_s=interval_s,
        arrived=arrived,
        kept_requests=_sum_by_interval(place, keeps_limits.astype(float), edges),
        ready=ready_now,
        starting=mean_counts(ordered, up_from, edges),
        desired=_step_means(lives.desired, edges, float((ready == 0.0).sum())),
        waiting=mean_counts(trace.arrival_s, np.minimum(entered, done), edges),
        running=mean_counts(entered, done, edges),
        ttft_s=mean_ttft_s,
    )
    return Outcome(
        span_s=span_s,
        requests=float(len(trace)),
        kept_requests=float(keeps_limits.sum()),
        replica_s=float((paid_to - paid_from).sum()),
        rented_s=_rented_s(fleet, paid_from, paid_to),
        starts=float((ordered > 0.0).sum()),
        delayed=float(_count_delayed(fleet.service, trace, entered, lives)),
        lost=float(len(lives.lost)),
        most_replicas=_most_replicas(ordered, ended, span_s),
        series=series,
    )


def _sum_by_interval(place: Int, values: Float, edges: Float) -> Float:
    sums: Float = np.bincount(place, weights=values, minlength=len(edges) - 1).astype(float)
    return sums


def _step_means(changes: list[tuple[float, float]], edges: Float, begin: float) -> Float:
    """Mean of what was last said, in each interval."""
    times = np.array([0.0, *(at for at, _ in changes)])
    values = np.array([begin, *(value for _, value in changes)])
    areas = np.concatenate([np.zeros(1), np.cumsum(values[:-1] * np.diff(times))])
    last = np.searchsorted(times, edges, side="right") - 1
    reached = areas[last] + values[last] * (edges - times[last])
    return np.asarray(np.diff(reached) / np.diff(edges))


def _count_delayed(service: Service, trace: Trace, entered: Float, lives: Lives) -> int:
    """Requests that arrived while a replica was starting and waited for more than a step."""
    met = np.array(lives.met_start, dtype=np.int64)
    inputs = trace.input_tokens[met]
    reached = trace.arrival_s[met] + service.request_s + service.request_token_s * inputs
    return int((entered[met] - reached > service.longest_step_s).sum())


def _rented_s(fleet: Fleet, paid_from: Float, paid_to: Float) -> float:
    """Seconds of devices that are paid while replicas are."""
    times = np.concatenate([paid_from, paid_to])
    change = np.concatenate([np.ones(len(paid_from)), -np.ones(len(paid_to))])
    order = np.argsort(times, kind="stable")
    replicas = np.cumsum(change[order])[:-1]
    return float((fleet.rented(replicas) * np.diff(times[order])).sum())


def _most_replicas(ordered: Float, ended: Float, span_s: float) -> float:
    ended = ended[ended < span_s]
    times = np.concatenate([ordered, ended])
    change = np.concatenate([np.ones(len(ordered)), -np.ones(len(ended))])
    order = np.lexsort((change, times))
    return float(np.cumsum(change[order]).max(initial=0.0))
