"""What policies share: defaults, parameters as columns, figures read, means over windows.

Samples carry a time, so a window holds what its seconds say however often it is asked. Every column
has a window of its own. A sample as old as the window is no longer in it; the newest always is.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from functools import cache
from typing import Annotated, Generic, TypeVar

import numpy as np
from pydantic import Field

from recipe_core.base.arrays import Bool, Float, Int
from recipe_core.base.data_files import DataFile, DataRow
from recipe_core.base.provenance import Remark, Sourced, Status
from recipe_core.base.resources import PACKAGE
from recipe_core.base.types import Text
from recipe_core.request.scaling import Metric, Policy, Scaling, Trigger
from recipe_core.scaling.fleet import Signals

FILE = DataFile(PACKAGE / "scaling" / "policies" / "defaults.yaml", "options.scaling.policy")


class Default(DataRow):
    """A number that a project sets, 0 included; ``source`` is a key of the file's ``sources``."""

    value: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    source: str
    status: Status
    note: Remark | None = None


class PolicyDefaults(DataRow):
    """The numbers of one project, and the version that they were read in."""

    version: Text
    defaults: dict[str, Default]


class Defaults(Sourced):
    """The file."""

    policies: dict[Policy, PolicyDefaults]


@cache
def all_defaults() -> Defaults:
    return FILE.read_as(Defaults)


@cache
def default_of(policy: Policy, name: str) -> float:
    return all_defaults().policies[policy].defaults[name].value


# Times that differ by less are the same: sums of intervals round.
SLACK_S = 1e-6

Item = TypeVar("Item")


class _Samples:
    """Samples with their times, the newest last, in ``layers`` tables of a row a sample.

    Old rows are dropped when room is needed; the newest one outside of all windows stays.
    """

    def __init__(self, windows_s: Float, layers: int, rows: int) -> None:
        self._lengths_s, self._which = np.unique(windows_s, return_inverse=True)
        self._columns = np.arange(len(windows_s))
        self._zero = windows_s <= 0
        self._instant = bool(self._zero.all())
        self._some_instant = bool(self._zero.any())
        self._times = np.empty(2 * rows)
        self._tables = np.empty((layers, 2 * rows, len(windows_s)))
        self._count = 0

    def _row(self, at_s: float) -> int:
        if self._count == len(self._times):
            self._make_room(at_s)
        self._times[self._count] = at_s
        self._count += 1
        return self._count - 1

    def _make_room(self, at_s: float) -> None:
        edge_s = at_s - float(self._lengths_s[-1]) + SLACK_S
        first = max(int(self._times.searchsorted(edge_s, side="right")) - 1, 0)
        remaining = self._count - first
        rows = max(len(self._times), 4 * remaining)
        times, tables = self._times, self._tables
        self._times = np.empty(rows)
        self._tables = np.empty((self._layers(rows), rows, tables.shape[2]))
        self._times[:remaining] = times[first:]
        self._tables[: len(tables), :remaining] = tables[:, first:]
        self._count = remaining

    def _layers(self, _rows: int, /) -> int:
        return len(self._tables)

    def _outside(self, at_s: float) -> Int:
        """Rows before each of the different windows; the newest row is in every window."""
        edges_s = at_s - self._lengths_s + SLACK_S
        outside = self._times[: self._count].searchsorted(edges_s, side="right")
        newest_in: Int = np.minimum(outside, self._count - 1)
        return newest_in

    def _at(self, table: int, rows: Int) -> Float:
        """Each column's value in the row of its window."""
        if len(rows) == 1:
            row_values: Float = self._tables[table, int(rows[0])]
            return row_values
        values: Float = self._tables[table, rows[self._which], self._columns]
        return values


class MovingMean(_Samples):
    """Mean of the samples in each column's window, by differences of running sums.

    A sum that only zeros were added to does not move, so an idle window is exactly 0.
    """

    def __init__(self, windows_s: Float, rows: int = 64) -> None:
        super().__init__(windows_s, 1, rows)
        self._sum = np.zeros(len(windows_s))
        self._tables[0, self._row(-np.inf)] = 0.0

    def add(self, at_s: float, sample: Float) -> Float:
        if self._instant:
            return sample
        row = self._row(at_s)
        self._sum = self._sum + sample
        self._tables[0, row] = self._sum
        base = self._outside(at_s) - 1
        samples = row - base if len(base) == 1 else (row - base)[self._which]
        mean: Float = (self._sum - self._at(0, base)) / samples
        return np.where(self._zero, sample, mean) if self._some_instant else mean


class MovingSum(_Samples):
    """Sum of what was noted within each column's window, the newest too only while it is in it."""

    def __init__(self, windows_s: Float, rows: int = 64) -> None:
        super().__init__(windows_s, 1, rows)
        self._sum = np.zeros(len(windows_s))
        self._tables[0, self._row(-np.inf)] = 0.0

    def note(self, at_s: float, amount: Float) -> None:
        """Adds an amount."""
        row = self._row(at_s)
        self._sum = self._sum + amount
        self._tables[0, row] = self._sum

    def total(self, at_s: float) -> Float:
        """The sums at a moment."""
        edges_s = at_s - self._lengths_s + SLACK_S
        base = self._times[: self._count].searchsorted(edges_s, side="right") - 1
        total: Float = self._sum - self._at(0, base)
        return total


class MovingRate(_Samples):
    """Increase of a counter in each column's window, and its rate."""

    def __init__(self, windows_s: Float, rows: int = 64) -> None:
        super().__init__(windows_s, 1, rows)

    def add(self, at_s: float, counter: Float) -> tuple[Float, Float]:
        """Increase and increase a second, over the window or the time since the first sample."""
        row = self._row(at_s)
        self._tables[0, row] = counter
        edges_s = at_s - self._lengths_s + SLACK_S
        base = self._times[: self._count].searchsorted(edges_s, side="right") - 1
        base = np.clip(base, 0, max(row - 1, 0))
        increase = counter - self._at(0, base)
        elapsed_s = np.maximum(at_s - self._times[base], SLACK_S)
        return increase, increase / (elapsed_s if len(base) == 1 else elapsed_s[self._which])


class MovingMax(_Samples):
    """Largest of the samples in each column's window.

    Table k holds the maxima of 2^k rows that end in a row; two of them that overlap cover a window.
    """

    def __init__(self, windows_s: Float, rows: int = 32) -> None:
        super().__init__(windows_s, _levels(2 * rows), rows)

    def _layers(self, rows: int, /) -> int:
        return _levels(rows)

    def _make_room(self, at_s: float) -> None:
        old_levels = len(self._tables)
        super()._make_room(at_s)
        for level in range(old_levels, len(self._tables)):
            for row in range(self._count):
                self._join(level, row)

    def add(self, at_s: float, sample: Float) -> Float:
        """The maxima with this sample."""
        if self._instant:
            return sample
        row = self._row(at_s)
        self._tables[0, row] = sample
        first = self._outside(at_s)
        lengths = row + 1 - first
        for level in range(1, int(lengths.max()).bit_length()):
            self._join(level, row)
        if len(first) == 1:
            level = int(lengths[0]).bit_length() - 1
            lower = int(first[0]) + (1 << level) - 1
            pair: Float = np.maximum(self._tables[level, row], self._tables[level, lower])
            return pair
        levels = np.frexp(lengths)[1] - 1
        lower_rows = first + (1 << levels) - 1
        which, columns = self._which, self._columns
        newest = self._tables[levels[which], row, columns]
        largest: Float = np.maximum(newest, self._tables[levels[which], lower_rows[which], columns])
        return largest

    def _join(self, level: int, row: int) -> None:
        below = self._tables[level - 1]
        earlier = max(row - (1 << (level - 1)), 0)
        np.maximum(below[row], below[earlier], out=self._tables[level, row])


def _levels(rows: int) -> int:
    return max(rows, 1).bit_length()


class Delayed(Generic[Item]):
    """What was seen ``delay_s`` ago; the first until there is anything as old."""

    def __init__(self, delay_s: float) -> None:
        self._delay_s = delay_s
        self._items: deque[tuple[float, Item]] = deque()

    def add(self, at_s: float, item: Item) -> Item:
        """The newest item that is at least as old as the delay."""
        items = self._items
        items.append((at_s, item))
        edge_s = at_s - self._delay_s + SLACK_S
        while len(items) > 1 and items[1][0] <= edge_s:
            items.popleft()
        return items[0][1]


# Sums of flows round: a part of a replica or of a request below this is none.
ROUNDING = 1e-6


def whole_up(number: Float) -> Float:
    """Whole numbers at or above, but for rounding."""
    rounded: Float = np.ceil(number - ROUNDING)
    return rounded


def whole_down(number: Float) -> Float:
    """Whole numbers at or below, but for rounding."""
    rounded: Float = np.floor(number + ROUNDING)
    return rounded


def parameters(
    scalings: Sequence[Scaling], of: Callable[[Scaling], float | None], default: float
) -> Float:
    """A parameter of every column; ``default`` where it is left out."""
    values = (of(scaling) for scaling in scalings)
    return np.array([default if number is None else float(number) for number in values])


def same_number(
    scalings: Sequence[Scaling], of: Callable[[Scaling], float | None], default: float
) -> float:
    """A parameter that all columns share.

    Raises:
        ValueError: they differ. Simulate such scalings one batch after the other.
    """
    values = np.unique(parameters(scalings, of, default))
    if len(values) > 1:
        raise ValueError(f"columns of one batch look at different intervals: {values.tolist()} s")
    return float(values[0])


class Paced(ABC):
    """A policy that looks every ``interval_s``: asked sooner, it repeats its last answer.

    Looks lie on a grid from second 0, so a simulator with steps of its own keeps their mean pace.
    """

    def __init__(self, scalings: Sequence[Scaling], interval_s: float) -> None:
        self.interval_s = interval_s
        self._low = parameters(scalings, lambda scaling: scaling.min_replicas, 0)
        self._high = parameters(scalings, lambda scaling: scaling.max_replicas, 1)
        self._wanted = self._low
        self._due_s = -np.inf

    def decide(self, signals: Signals) -> Float:
        """Replicas that should be there, one number a column. Not to be written to."""
        if signals.at_s < self._due_s - SLACK_S:
            return self._wanted
        if self._due_s == -np.inf:
            self._wanted = self._bounded(np.rint(signals.ready + signals.starting))
            self._begin(signals)
        self._due_s = next_look(signals.at_s, self.interval_s)
        self._wanted = self._look(signals)
        return self._wanted

    def _begin(self, _signals: Signals, /) -> None:
        """What is to be done before the first look."""
        return

    def _bounded(self, replicas: Float) -> Float:
        bounded: Float = np.minimum(np.maximum(replicas, self._low), self._high)
        return bounded

    @abstractmethod
    def _look(self, signals: Signals, /) -> Float:
        """The new number of replicas; ``self._wanted`` is the last one."""


def next_look(at_s: float, interval_s: float) -> float:
    """The first multiple of an interval after a moment."""
    return (math.floor((at_s + SLACK_S) / interval_s) + 1) * interval_s


def open_requests(signals: Signals) -> Float:
    return signals.waiting + signals.running


def has_waiting(signals: Signals) -> Bool:
    """Where requests wait, for a replica or in one."""
    wait: Bool = signals.waiting > ROUNDING
    return wait


class Targets:
    """Targets by metric, one number a column: infinite where a column has no such trigger."""

    def __init__(self, scalings: Sequence[Scaling], default: Sequence[Trigger]) -> None:
        columns = len(scalings)
        self.of: dict[Metric, Float] = {}
        for column, scaling in enumerate(scalings):
            for trigger in scaling.triggers or default:
                targets = self.of.setdefault(trigger.metric, np.full(columns, np.inf))
                targets[column] = min(targets[column], trigger.target)
        self.partial = {name: bool(np.isinf(targets).any()) for name, targets in self.of.items()}


class Meter:
    """Totals of metrics over all replicas of a column.

    A share of the cache is summed over the replicas too: its mean times the ready ones. Figures of
    a moment are averaged over ``gauge_windows_s`` (0: as they are), requests over
    ``rate_windows_s``.
    """

    def __init__(
        self, metrics: Sequence[Metric], gauge_windows_s: Float, rate_windows_s: Float
    ) -> None:
        gauges = [name for name in metrics if name != "request-rate"]
        self._means = {name: MovingMean(gauge_windows_s) for name in gauges}
        self._rate = MovingRate(rate_windows_s) if "request-rate" in metrics else None

    def read(self, signals: Signals) -> dict[Metric, Float]:
        """The totals at this look."""
        totals: dict[Metric, Float] = {
            name: mean.add(signals.at_s, _metric_total(name, signals))
            for name, mean in self._means.items()
        }
        if self._rate is not None:
            totals["request-rate"] = self._rate.add(signals.at_s, signals.arrived)[1]
        return totals


def _metric_total(metric: Metric, signals: Signals) -> Float:
    if metric == "waiting":
        return signals.waiting.copy()
    if metric == "running":
        return signals.running.copy()
    if metric == "kv-usage":
        return signals.kv_usage * signals.ready
    return open_requests(signals)
