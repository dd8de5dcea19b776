"""A workload's fields taken from a trace: rates, bursts, lengths, reuse of prefixes."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np

from recipe_core.base.arrays import Float, Int
from recipe_core.base.errors import InputError
from recipe_core.request.over_time import DAY_S, HOUR_S, MOST_RATES, LengthPoint, OverTime
from recipe_core.request.serving_workload import PrefixReuse
from recipe_core.scaling.traces.describe import burstiness
from recipe_core.scaling.traces.loads import HOURS, Lengths, find_shape
from recipe_core.scaling.traces.trace import Rates, Trace, measure_prefix_reuse

INTERVALS_S = (60.0, 300.0, 600.0, 1800.0, HOUR_S, 6 * HOUR_S, DAY_S)
# Intervals that a trace is told in at most, unless they are stated: two weeks in ten minutes.
WANTED = 2_016
LEAST_BURSTINESS, MOST_BURSTINESS = 0.01, 100.0
# Shares of requests at which lengths are cut; narrow about the 50th, 90th, 95th and 99th.
CUTS = (0, 0.12, 0.25, 0.37, 0.48, 0.52, 0.63, 0.75, 0.88, 0.92, 0.94, 0.96, 0.985, 0.995, 1)
# Hour of the week at which 1970 began.
THURSDAY_H = 72


def over_time_of(
    trace: Trace | Rates,
    *,
    days: float | None = None,
    shape: str | None = None,
    mean_rate: float | None = None,
    interval_s: float | None = None,
    growth_per_month: float = 0.0,
) -> OverTime:
    """The load over time that a trace shows.

    Its rates in intervals of ``interval_s`` (a minute for some hours, ten for a week, longer for
    more; a table's own), the burstiness within them, its lengths. They last as long as the trace,
    or repeat for ``days``.

    shape: of a week, in place of the trace's rates: a trace of an hour gives lengths, burstiness
    and mean rate, the shape day and week. If the trace has dates its mean rate is that of its hours
    of the week, otherwise that of the whole week. mean_rate: instead of the trace's.

    Raises:
        InputError: for an unknown shape, or more than 20,160 intervals.
    """
    common: dict[str, Any] = {
        "mean_rate": mean_rate,
        "growth_per_month": growth_per_month,
        "start_hour": trace_hour_of_week(trace.began_s),
        "source": trace.source[:4096] or None,
    }
    if isinstance(trace, Trace):
        interval_s, rates = rates_in(trace, interval_s or trace_interval_of(trace.span_s))
        burst = burstiness(trace, interval_s)
        common["lengths"] = length_points_of(group_trace_lengths(trace))
    else:
        interval_s, rates, burst = trace.interval_s, trace.rates, trace.burstiness or 1.0
    common["burstiness"] = min(max(burst, LEAST_BURSTINESS), MOST_BURSTINESS)
    if shape is not None:
        rate = mean_rate or float(f"{rates.mean() / _relative_rate(trace, shape):.6g}")
        common |= {"shape": shape, "mean_rate": rate, "days": days or 7.0}
        return OverTime(**common)
    if len(rates) > MOST_RATES:
        raise InputError(
            f"{len(rates):,} intervals of {interval_s:g} s are too many; "
            f"the limit is {MOST_RATES:,}.",
            field="workload.over_time.interval_s",
            hint="Take longer intervals or a part of the trace.",
        )
    days = days or min(len(rates) * interval_s / DAY_S, 366.0)
    per_s = tuple(float(f"{rate:.6g}") for rate in rates)
    return OverTime(rates=per_s, interval_s=interval_s, days=days, **common)


def workload_fields(
    trace: Trace, *, days: float | None = None, shape: str | None = None
) -> dict[str, Any]:
    """Fields of a request's serving workload as a trace shows them, as plain values.

    Mean lengths, the longest request, arrivals at the mean rate, ``over_time``, and where the trace
    has hashes of blocks ``prefix_reuse``.
    """
    fields: dict[str, Any] = {
        "mode": "open",
        "input_tokens": max(round(float(trace.input_tokens.mean())), 1),
        "output_tokens": max(round(float(trace.output_tokens.mean())), 1),
        "max_context": int((trace.input_tokens + np.maximum(trace.output_tokens, 1)).max()),
        "over_time": over_time_of(trace, days=days, shape=shape).to_json(),
    }
    if trace.rate_per_s > 0:
        fields["request_rate"] = float(f"{trace.rate_per_s:.6g}")
    reuse = prefix_reuse(trace)
    if reuse:
        fields["prefix_reuse"] = [point.model_dump() for point in reuse]
    return fields


def traffic_fields(
    traffic: Trace | Rates, *, days: float | None = None, shape: str | None = None
) -> dict[str, Any]:
    """``workload_fields`` of a trace; of a table of rates, which has no lengths, ``over_time``."""
    if isinstance(traffic, Trace):
        return workload_fields(traffic, days=days, shape=shape)
    over_time = over_time_of(traffic, days=days, shape=shape)
    return {
        "mode": "open",
        "request_rate": float(f"{traffic.rates.mean():.6g}"),
        "over_time": over_time.to_json(),
    }


def prefix_reuse(trace: Trace) -> tuple[PrefixReuse, ...]:
    """Hits by the size of the cache, two sizes for each doubling; empty without block hashes."""
    curve = measure_prefix_reuse(trace, per_octave=2)
    if curve is None:
        return ()
    highest_hit = 1 - 1e-9  # a hit is below 1: something of every prompt is computed
    return tuple(
        PrefixReuse(cache_tokens=float(size), hit=min(float(hit), highest_hit))
        for size, hit in zip(curve.cache_tokens, curve.hit, strict=True)
    )


def trace_interval_of(span_s: float) -> float:
    """The shortest usual interval of which a span has at most 2,016; a day for longer ones."""
    return next((interval_s for interval_s in INTERVALS_S if span_s <= WANTED * interval_s), DAY_S)


def rates_in(trace: Trace, interval_s: float) -> tuple[float, Float]:
    """The length of the intervals of a trace, and requests per second in each.

    Up to a day they divide the span evenly, so that the trace's last requests have an interval as
    long as the others; ``interval_s`` is then kept as nearly as that allows. Longer traces keep it,
    for hours to stay hours, and what is left at the end is left out.
    """
    span = max(trace.span_s, 1.0)
    if span <= DAY_S:
        number = max(round(span / interval_s), 1)
        interval_s = max(span / number, 1.0)
    else:
        number = int(span / interval_s)
    place = np.floor(trace.arrival_s / interval_s).astype(np.int64)
    if span <= DAY_S:
        place = np.minimum(place, number - 1)  # the last request ends the last interval
    counts = np.bincount(place[place < number], minlength=number)
    return interval_s, np.asarray(counts / interval_s, dtype=np.float64)


def group_trace_lengths(trace: Trace) -> Lengths:
    """Lengths of a trace in at most 196 weighted points.

    Requests are cut into 14 groups by the length of their prompt, and each of these into 14 by that
    of the answer, with narrow groups about the percentiles that people ask for; a point has the
    means of its group. So both means are kept, percentiles and the correlation nearly. An answer
    without tokens (of an embedding) counts as one.
    """
    inputs, outputs = trace.input_tokens, np.maximum(trace.output_tokens, 1)
    pairs, number = np.unique(np.stack((inputs, outputs)), axis=1, return_counts=True)
    if len(number) <= (len(CUTS) - 1) ** 2:
        prompts, answers = pairs.astype(np.float64)
        return Lengths(prompts, answers, number / number.sum())
    group = np.zeros(len(inputs), dtype=np.int64)
    by_input = np.lexsort((outputs, inputs))
    for n, rows in enumerate(_cut_rows(by_input, CUTS)):
        by_output = rows[np.argsort(outputs[rows], kind="stable")]
        for m, part in enumerate(_cut_rows(by_output, CUTS)):
            group[part] = n * len(CUTS) + m
    _, group = np.unique(group, return_inverse=True)
    weight = np.bincount(group).astype(np.float64)
    return Lengths(
        np.bincount(group, weights=inputs) / weight,
        np.bincount(group, weights=outputs) / weight,
        weight / weight.sum(),
    )


def _cut_rows(rows: Int, cuts: tuple[float, ...]) -> list[Int]:
    ends = np.rint(np.asarray(cuts) * len(rows)).astype(np.int64)
    return [rows[a:b] for a, b in pairwise(ends) if b > a]


def length_points_of(lengths: Lengths) -> tuple[LengthPoint, ...]:
    """Lengths as fields of a request: whole tokens, at least one."""
    columns = (lengths.input_tokens, lengths.output_tokens, lengths.weight)
    return tuple(
        LengthPoint(
            input_tokens=max(round(float(prompt)), 1),
            output_tokens=max(round(float(answer)), 1),
            weight=float(f"{weight:.6g}"),
        )
        for prompt, answer, weight in zip(*columns, strict=True)
    )


def trace_hour_of_week(began_s: float | None) -> int:
    """The hour of the week (UTC, 0 is Monday at midnight) of a time; 0 where there is none."""
    if began_s is None:
        return 0
    return int(math.floor(began_s / HOUR_S) + THURSDAY_H) % HOURS


def _relative_rate(trace: Trace | Rates, name: str) -> float:
    """Return a shape's rate in the hours of a trace, relative to its week; 1 without dates."""
    week = find_shape(name).rates
    if trace.began_s is None or trace.span_s >= HOURS * HOUR_S:
        return 1.0
    start = trace.began_s / HOUR_S + THURSDAY_H
    hours = start + np.arange(0, max(trace.span_s / HOUR_S, 1 / 60), 1 / 60)
    relative = float(week[np.floor(hours).astype(np.int64) % HOURS].mean())
    return relative if relative > 0 else 1.0
