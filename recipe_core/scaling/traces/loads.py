"""The load that a request describes: rates of all intervals, and lengths."""

from __future__ import annotations

import math

import numpy as np

from recipe_core.base.arrays import Float, Int
from recipe_core.base.errors import InputError
from recipe_core.request.over_time import DAY_S, HOUR_S, LengthPoint, OverTime
from recipe_core.request.serving_workload import ServingWorkload
from recipe_core.scaling.traces.load import Lengths, Load
from recipe_core.scaling.traces.shapes import HOURS, shape_rates

# Intervals that an hour of a shape is told in: five minutes each.
PARTS = 12
MONTH_S = 30 * DAY_S
# Spread of lengths where the workload states none, as in its percentiles.
SPREAD = 0.1
# Lengths that a spread is told in.
POINTS = 8
MOST_INTERVALS = 1_000_000


def build_load(over_time: OverTime, workload: ServingWorkload) -> Load:
    """The load over ``over_time.days``, with the lengths it states or else the workload's.

    A shape's hours are joined smoothly, in five minutes, and keep their means; rates stay as
    stated. Both repeat until the days are over (the last interval may reach beyond), and grow by
    ``growth_per_month`` from the start on, compounded.

    Raises:
        InputError: for an unknown shape, or more than a million intervals.
    """
    rates, interval_s = _repeated_rates(over_time)
    count = max(math.ceil(over_time.days * DAY_S / interval_s - 1e-9), 1)
    if count > MOST_INTERVALS:
        raise InputError(
            f"{over_time.days:g} days have {count:,} intervals of {interval_s:g} s; "
            f"the limit is {MOST_INTERVALS:,}.",
            field="workload.over_time.interval_s",
            hint="Take longer intervals or fewer days.",
        )
    repeated = np.resize(rates, count)
    middle_s = (np.arange(count) + 0.5) * interval_s
    growth = (1 + over_time.growth_per_month) ** (middle_s / MONTH_S)
    lengths = (
        _stated_lengths(over_time.lengths) if over_time.lengths else workload_lengths(workload)
    )
    return Load(
        rates=repeated * growth,
        interval_s=interval_s,
        lengths=lengths,
        burstiness=over_time.burstiness,
        start_hour=over_time.start_hour,
        source=over_time.source or over_time.shape or "stated rates",
    )


def workload_lengths(workload: ServingWorkload) -> Lengths:
    """Lengths of a workload: prompts and answers independent, each even over its spread."""
    inputs = _spread_lengths(workload.input_tokens, workload.input_spread)
    outputs = _spread_lengths(workload.output_tokens, workload.output_spread)
    grid = np.meshgrid(inputs, outputs, indexing="ij")
    count = len(inputs) * len(outputs)
    return Lengths(grid[0].ravel(), grid[1].ravel(), np.full(count, 1 / count))


def _spread_lengths(mean: int, spread: float | None) -> Float:
    """Means of equal parts of the even distribution over mean × (1 ± spread)."""
    share = SPREAD if spread is None else spread
    if not share:
        return np.asarray([float(mean)])
    middles = (np.arange(POINTS) + 0.5) / POINTS
    return np.asarray(mean * (1 + share * (2 * middles - 1)))


def _stated_lengths(points: tuple[LengthPoint, ...]) -> Lengths:
    weight = np.asarray([point.weight for point in points])
    return Lengths(
        np.asarray([float(point.input_tokens) for point in points]),
        np.asarray([float(point.output_tokens) for point in points]),
        weight / weight.sum(),
    )


def _repeated_rates(over_time: OverTime) -> tuple[Float, float]:
    """Rates of what repeats, and the length of their interval."""
    if over_time.shape is None:
        rates = np.asarray(over_time.rates, dtype=np.float64)
        if over_time.mean_rate is not None:
            rates = rates * (over_time.mean_rate / rates.mean())
        return rates, over_time.interval_s
    hours = np.roll(shape_rates(over_time.shape), -over_time.start_hour)
    return smooth_hourly_rates(hours) * (over_time.mean_rate or 1.0), HOUR_S / PARTS


def smooth_hourly_rates(hours: Float, parts: int = PARTS) -> Float:
    """Rates of ``parts`` intervals of each hour; hours repeat, keep their means and join smoothly.

    The integral of the rates is interpolated by cubics that rise everywhere: slopes at the hours'
    ends are harmonic means of the two rates that meet (Fritsch and Butland 1984).
    """
    before = np.roll(hours, 1)
    both = before + hours
    left_slope = np.divide(2 * before * hours, both, out=np.zeros_like(hours), where=both > 0)
    right_slope = np.roll(left_slope, -1)
    at = np.arange(parts + 1)[None, :] / parts
    integral = (
        (at**3 - 2 * at**2 + at) * left_slope[:, None]
        + (3 * at**2 - 2 * at**3) * hours[:, None]
        + (at**3 - at**2) * right_slope[:, None]
    )
    return np.maximum(np.diff(integral, axis=1).ravel() * parts, 0.0)


def load_hours_of_week(load: Load) -> Int:
    """Hour of the week, 0 to 167, in which each interval begins."""
    hours = load.start_hour + np.arange(len(load.rates)) * load.interval_s / HOUR_S
    hour: Int = np.floor(hours).astype(np.int64) % HOURS
    return hour
