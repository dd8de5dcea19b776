"""What was simulated as the values of an answer: shares, money, series with fewer points."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from recipe_core.base.arrays import Float
from recipe_core.request.scaling import Scaling
from recipe_core.scaling.fleet import Fleet
from recipe_core.scaling.outcome import HOUR_S, Outcome, Series
from recipe_core.scaling.result import (
    Against,
    Band,
    Checked,
    LoadAnswer,
    PolicyAnswer,
    ReplicaCounts,
    SeriesAnswer,
    WorstInterval,
)
from recipe_core.scaling.traces.load import Load

# Points of a series in an answer at most.
MOST_POINTS = 720
# Share of missed requests below which none are.
LEAST_MISSED = 1e-6
# Lengths that intervals of an answer have.
STEPS_S = (60, 120, 300, 600, 900, 1800, 3600, 7200, 14_400, 21_600, 43_200, 86_400)


@dataclass(frozen=True, slots=True)
class Replays:
    """One policy over the whole time, and over its hardest day under several chances.

    day: of those the one with the chances of ``outcome``. others: with other starts and events, and
    with quick and with slow starts.
    """

    outcome: Outcome
    day: Outcome | None = None
    others: tuple[Outcome, ...] = ()

    @property
    def attainment(self) -> float:
        """Share of requests that kept the limits."""
        return self.outcome.attainment

    @property
    def rented_s(self) -> float:
        """Seconds of devices that were paid."""
        return self.outcome.rented_s

    def shares(self) -> Band:
        """The share with its range: what chances change on the hardest day, in proportion.

        Where nothing is missed on that day, it alone changes.
        """
        value, every = self.attainment, [self.attainment]
        if self.day is not None:
            missed = 1 - self.day.attainment
            for other in self.others:
                change = (1 - other.attainment) - missed
                if missed > LEAST_MISSED:
                    whole = (1 - value) * (missed + change) / missed
                else:
                    whole = 1 - value + change * self.day.requests / self.outcome.requests
                every.append(1 - min(whole, 1 - value + max(change, 0.0)))
        return Band(value=_share(value), low=_share(min(every)), high=_share(max(every)))


def policy_answer(
    name: str,
    scaling: Scaling | None,
    replays: Replays,
    fleet: Fleet,
    wanted: float,
    checked: Checked | None = None,
) -> PolicyAnswer:
    """A policy, before it is held against the bounds."""
    first = replays.outcome
    at_s, share = first.worst_interval
    price = fleet.usd_per_device_hour
    there = first.series.ready + first.series.starting
    return PolicyAnswer(
        name=name,
        scaling=scaling,
        meets=replays.attainment >= wanted,
        attainment=replays.shares(),
        replica_hours=first.replica_s / HOUR_S,
        gpu_hours=first.device_hours,
        usd=first.usd(price),
        usd_per_month=first.usd_per_month(price),
        worst_interval=WorstInterval(
            at_s=at_s, share=_share(share), seconds=first.series.interval_s
        ),
        cold_starts=first.starts,
        requests_delayed=first.delayed,
        replicas_lost=first.lost,
        replicas=ReplicaCounts(
            min=float(np.rint(there.min())),
            mean=float(there.mean()),
            max=float(np.rint(max(there.max(), first.most_replicas))),
        ),
        against=Against(always_peak=None, clairvoyant=None),
        checked=checked,
        series=series_answer(first.series),
    )


def against(policy: PolicyAnswer, always_peak: PolicyAnswer, clairvoyant: PolicyAnswer) -> Against:
    """The cost of a policy beside that of the bounds."""
    hours = policy.gpu_hours
    return Against(
        always_peak=_ratio(hours, always_peak.gpu_hours),
        clairvoyant=_ratio(hours, clairvoyant.gpu_hours),
    )


def load_answer(load: Load) -> LoadAnswer:
    """The load with fewer points."""
    step = step_s(load.span_s, load.interval_s)
    return LoadAnswer(
        source=load.source or "rates of the request",
        span_s=load.span_s,
        requests=load.requests,
        mean_rate_per_s=float(load.rates.mean()),
        peak_rate_per_s=float(load.rates.max()),
        burstiness=load.burstiness,
        input_tokens=load.lengths.mean_input,
        output_tokens=load.lengths.mean_output,
        start_hour=load.start_hour,
        interval_s=step,
        rates_per_s=_plain(_means(load.rates, round(step / load.interval_s))),
    )


def series_answer(series: Series) -> SeriesAnswer:
    """A series with fewer points: sums of requests, means of the rest."""
    step = step_s(series.interval_s * len(series.arrived), series.interval_s)
    count = round(step / series.interval_s)
    known = np.isfinite(series.ttft_s)
    weight = np.where(known, np.maximum(series.arrived, 1e-9), 0.0)
    waited = _sums(np.where(known, series.ttft_s, 0.0) * weight, count)
    total = _sums(weight, count)
    ttft_s = np.divide(waited, total, out=np.full(len(total), np.nan), where=total > 0)
    return SeriesAnswer(
        interval_s=step,
        arrived=_plain(_sums(series.arrived, count)),
        kept=_plain(_sums(series.kept, count)),
        ready=_plain(_means(series.ready, count)),
        starting=_plain(_means(series.starting, count)),
        wanted=_plain(_means(series.wanted, count)),
        waiting=_plain(_means(series.waiting, count)),
        running=_plain(_means(series.running, count)),
        ttft_s=tuple(_short(value) if np.isfinite(value) else None for value in ttft_s),
    )


def step_s(span_s: float, interval_s: float) -> float:
    """The shortest length of intervals, whole ones of ``interval_s``, that are few enough."""
    for step in STEPS_S:
        whole = step / interval_s
        if whole >= 1 and float(whole).is_integer() and span_s / step <= MOST_POINTS:
            return float(step)
    return float(interval_s * max(1, -(-int(span_s / interval_s) // MOST_POINTS)))


def _groups(values: Float, count: int) -> Float:
    """Rows of ``count`` values, the last one filled with what is nothing."""
    rest = -len(values) % count
    return np.pad(values, (0, rest), constant_values=np.nan).reshape(-1, count)


def _sums(values: Float, count: int) -> Float:
    return np.asarray(np.nansum(_groups(values, count), axis=1))


def _means(values: Float, count: int) -> Float:
    return np.asarray(np.nanmean(_groups(values, count), axis=1))


def _plain(values: Float) -> tuple[float, ...]:
    return tuple(_short(value) for value in np.maximum(values, 0.0))


def _short(value: float) -> float:
    """Five digits: a chart shows no more, and answers are a third as long."""
    return float(f"{value:.5g}")


def _share(value: float) -> float:
    return float(min(max(value, 0.0), 1.0))


def _ratio(hours: float, of: float) -> float | None:
    return hours / of if of > 0 else None
