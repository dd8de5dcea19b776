"""The load that a request describes: rates of all intervals, by shapes of a week, and lengths."""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from recipe_core.base.arrays import Float, Int
from recipe_core.base.data_files import DataFile, DataRow
from recipe_core.base.errors import InputError, unknown
from recipe_core.base.provenance import Quantity, Sourced
from recipe_core.base.resources import PACKAGE
from recipe_core.base.types import Text
from recipe_core.request.over_time import DAY_S, HOUR_S, LengthPoint, OverTime
from recipe_core.request.serving_workload import ServingWorkload
from recipe_core.scaling.traces.trace import Trace

HOURS = 168
FIELD = "workload.over_time.shape"
FILE = DataFile(PACKAGE / "scaling" / "traces" / "shapes.yaml", FIELD)
RATES = PACKAGE / "scaling" / "traces" / "shapes.csv"


class ShapeFacts(DataRow):
    """The source of a shape, and how far it can be trusted.

    clock: whose hours. weekdays: whether hour 0 is a Monday; else it is some midnight. error: of an
    hour's rate, as a share; None where the rates are exact.
    """

    title: Text
    clock: Literal["UTC", "local"]
    weekdays: bool
    error: Quantity | None = None
    requests: Quantity | None = None
    clients: Quantity | None = None
    note: Text


class _File(Sourced):
    shapes: Annotated[dict[str, ShapeFacts], Field(min_length=1)]


@dataclass(frozen=True, slots=True)
class Shape:
    """A week: ``rates`` of its 168 hours, from Monday at midnight, with a mean of 1."""

    name: str
    rates: Float
    facts: ShapeFacts
    source: str

    def to_json(self) -> dict[str, Any]:
        """The shape with its source, and what it comes to."""
        days = self.rates.reshape(7, 24).mean(axis=1)
        return {
            "name": self.name,
            "title": self.facts.title,
            "clock": self.facts.clock,
            "weekdays": self.facts.weekdays,
            "error": self.facts.error.value if self.facts.error else None,
            "busiest_hour": float(self.rates.max()),
            "quietest_hour": float(self.rates.min()),
            "weekday_to_weekend": float(days[:5].mean() / days[5:].mean())
            if self.facts.weekdays
            else None,
            "note": self.facts.note,
            "source": self.source,
            "relative_rates": [float(rate) for rate in self.rates],
        }


def shape_names() -> list[str]:
    return list(_load_week_shapes())


def shape_rates(name: str) -> Float:
    """Rates of the 168 hours of a week relative to their mean, by the name of a shape.

    Raises:
        InputError: for an unknown name.
    """
    return find_shape(name).rates


def find_shape(name: str) -> Shape:
    """A shape with what is known of it.

    Raises:
        InputError: for an unknown name.
    """
    shapes = _load_week_shapes()
    if name not in shapes:
        message, hint = unknown("shape", name, list(shapes))
        raise InputError(message, field=FIELD, hint=hint)
    return shapes[name]


@cache
def _load_week_shapes() -> dict[str, Shape]:
    file = FILE.read_as(_File)
    with RATES.open(encoding="utf-8", newline="") as lines:
        rows = list(csv.DictReader(lines))
    if [row["hour_of_week"] for row in rows] != [str(hour) for hour in range(HOURS)]:
        raise FILE.problem("shapes.csv", "does not have the hours 0 to 167 in order", "Sort it.")
    shapes = {}
    for name, facts in file.shapes.items():
        if name not in rows[0]:
            raise FILE.problem(f"shapes.{name}", "is no column of shapes.csv", "Add it.")
        rates = np.asarray([float(row[name]) for row in rows])
        rates = rates / rates.mean()
        rates.setflags(write=False)
        shapes[name] = Shape(name, rates, facts, file.sources[_source_of(facts)].title)
    return shapes


def _source_of(facts: ShapeFacts) -> str:
    cited = (facts.error, facts.requests, facts.clients)
    return next(figure.source for figure in cited if figure is not None)


@dataclass(frozen=True, slots=True)
class Lengths:
    """A joint distribution of prompt and answer lengths; one number a point, weights sum to 1."""

    input_tokens: Float
    output_tokens: Float
    weight: Float

    @property
    def mean_input(self) -> float:
        return float(np.dot(self.input_tokens, self.weight))

    @property
    def mean_output(self) -> float:
        return float(np.dot(self.output_tokens, self.weight))


@dataclass(frozen=True, slots=True)
class Load:
    """Requests per second in intervals of ``interval_s`` from second 0 on.

    burstiness: coefficient of variation of the gaps between requests within an interval.
    start_hour: hour of the week at second 0. source: for people.
    """

    rates: Float
    interval_s: float
    lengths: Lengths
    burstiness: float = 1.0
    start_hour: int = 0
    source: str = ""

    @property
    def span_s(self) -> float:
        """Seconds of the whole time."""
        return len(self.rates) * self.interval_s

    @property
    def requests(self) -> float:
        return float(self.rates.sum() * self.interval_s)


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
    """Lengths of a workload: prompts and answers independent, each by its spread or shape."""
    inputs, outputs = (
        _shaped_lengths(mean, shape) if shape else _spread_lengths(mean, spread)
        for mean, spread, shape in (
            (workload.input_tokens, workload.input_spread, workload.relative_lengths("input")),
            (workload.output_tokens, workload.output_spread, workload.relative_lengths("output")),
        )
    )
    grid = np.meshgrid(inputs, outputs, indexing="ij")
    count = len(inputs) * len(outputs)
    return Lengths(grid[0].ravel(), grid[1].ravel(), np.full(count, 1 / count))


def _shaped_lengths(mean: int, relative: tuple[float, ...]) -> Float:
    """Means of equal parts of a shape around a mean, one token at least."""
    parts = np.array_split(np.asarray(relative), POINTS)
    return np.asarray([max(mean * float(part.mean()), 1.0) for part in parts])


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


MOST = 50_000_000


def draw_requests(load: Load, seed: int = 0) -> Trace:
    """Requests of a load; the same seed gives the same bits.

    Gaps are gamma distributed with the load's coefficient of variation, in a time in which one
    request is expected per unit: it runs as fast as the rate is high, so every interval has its
    rate on average, whatever the gaps. The first gap is drawn as for a process that runs already
    (its density is the chance of a longer gap), so that the expected number of requests up to any
    time is the integral of the rates. Lengths are drawn from the load's points, independent of
    the gaps.

    ``arrival_s`` counts from the start of the load, not from the first request.

    Raises:
        InputError: when more than 50 million requests are expected.
    """
    if load.requests > MOST:
        raise InputError(
            f"the load has {load.requests:,.0f} requests; one by one the limit is {MOST:,}.",
            field="workload.over_time",
            hint="Take fewer days or a lower rate.",
        )
    random = np.random.default_rng(seed)
    expected = np.concatenate(([0.0], np.cumsum(load.rates * load.interval_s)))
    ticks = _draw_ticks(float(expected[-1]), load.burstiness, random)
    edges = np.arange(len(load.rates) + 1, dtype=np.float64) * load.interval_s
    arrival = _arrival_seconds(ticks, expected, edges)
    drawn = _draw_points(load.lengths.weight, len(arrival), random)
    return Trace(
        arrival_s=arrival,
        input_tokens=np.rint(load.lengths.input_tokens).astype(np.int64)[drawn],
        output_tokens=np.rint(load.lengths.output_tokens).astype(np.int64)[drawn],
        source=load.source,
    )


def _draw_ticks(total: float, burstiness: float, random: np.random.Generator) -> Float:
    """Times from 0 to below ``total`` of a stationary renewal process of rate 1."""
    shape, scale = burstiness**-2, burstiness**2
    # The gap that time 0 falls into is drawn by its length, and 0 lies anywhere in it.
    now = float(random.gamma(shape + 1, scale) * random.random())
    parts = [np.asarray([now])]
    while now < total:
        remaining = total - now
        count = int(remaining + 4 * burstiness * remaining**0.5) + 16
        times = now + np.cumsum(random.gamma(shape, scale, count))
        parts.append(times)
        now = float(times[-1])
    ticks = np.concatenate(parts)
    return ticks[ticks < total]


def _arrival_seconds(ticks: Float, expected: Float, edges: Float) -> Float:
    """Seconds at which so many requests were expected; nothing comes in intervals of rate 0."""
    place = np.searchsorted(expected, ticks, side="right") - 1
    share = (ticks - expected[place]) / (expected[place + 1] - expected[place])
    return np.asarray(edges[place] + share * (edges[1] - edges[0]), dtype=np.float64)


def _draw_points(weight: Float, count: int, random: np.random.Generator) -> Int:
    ends = np.cumsum(weight)
    return np.searchsorted(ends[:-1] / ends[-1], random.random(count), side="right")
