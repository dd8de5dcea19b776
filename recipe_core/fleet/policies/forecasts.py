"""A forecast of the request rate from the arrivals that a policy sees."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from recipe_core.base.arrays import Float
from recipe_core.fleet.signals import Signals
from recipe_core.traffic.load import Load


class Predictor(Protocol):
    """A forecast of a series: shown one value an interval, asked for those of the next ones."""

    def observe(self, value: float) -> None:
        """Show it the value of an interval."""
        ...

    def predict(self, steps: int = 1) -> Float:
        """Values of the next intervals."""
        ...


class Constant:
    """The last value, forever."""

    def __init__(self) -> None:
        self._last = 0.0

    def observe(self, value: float) -> None:
        """Keep it."""
        self._last = value

    def predict(self, steps: int = 1) -> Float:
        """The last value for every step."""
        return np.full(steps, self._last)


class Arrivals:
    """Request rates of intervals, one after the other, as a predictor learns them.

    All columns are fleets under the same load, so one forecast serves them all.
    """

    def __init__(self, predictor: Predictor) -> None:
        self._predictor = predictor
        self._arrived = 0.0
        self._at_s = 0.0
        self.last_rate = 0.0

    def begin(self, seen: Signals) -> None:
        """Counts from this moment on."""
        self._arrived, self._at_s = float(seen.arrived[0]), seen.at_s

    def learn(self, history: Load, interval_s: float) -> None:
        """Shows the predictor the load before the start, in intervals of ``interval_s``."""
        ends_s = np.arange(len(history.rates) + 1) * history.interval_s
        counts = np.concatenate([[0.0], np.cumsum(history.rates) * history.interval_s])
        whole = int(history.span_s // interval_s)
        edges_s = history.span_s - np.arange(whole, -1, -1) * interval_s
        rates = np.diff(np.interp(edges_s, ends_s, counts)) / interval_s
        for rate in rates:
            self._predictor.observe(float(rate))

    def forecast(self, seen: Signals, steps: int) -> Float:
        """Shows the rate since the last time, and gives those of the next ``steps`` intervals.

        Raises:
            ValueError: the columns did not see the same arrivals.
        """
        arrived = float(seen.arrived[0])
        if (seen.arrived != arrived).any():
            raise ValueError("columns of one batch are fleets under the same load")
        elapsed_s = seen.at_s - self._at_s
        self.last_rate = (arrived - self._arrived) / elapsed_s if elapsed_s > 0 else self.last_rate
        self._predictor.observe(self.last_rate)
        self._arrived, self._at_s = arrived, seen.at_s
        return self._predictor.predict(steps)
