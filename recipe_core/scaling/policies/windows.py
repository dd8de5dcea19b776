"""Means, sums and maxima over windows of time, one window a column; what is seen late.

Samples carry a time, so a window holds what its seconds say however often it is asked. Every column
has a window of its own. A sample as old as the window is no longer in it; the newest always is.
"""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

import numpy as np

from recipe_core.base.arrays import Float, Int

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
    """The value seen ``delay_s`` ago; the first until there is one as old."""

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
