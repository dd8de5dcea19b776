"""A forecast of the request rate from the arrivals that a policy sees."""

from __future__ import annotations

import numpy as np

from recipe_core.base.arrays import Float
from recipe_core.request.over_time import DAY_S, WEEK_S
from recipe_core.scaling.signals import Signals
from recipe_core.scaling.traces.forecast import Predictor, build_predictor
from recipe_core.scaling.traces.load import Load


def seasonal_predictor(history: Load | None, interval_s: float) -> Predictor:
    """A forecast with trend and season, fitted once a season at most.

    The season is a week where two are known before the start, else a day. The last two seasons of
    the history are shown to it, which takes one fit; before two are known it repeats the last
    value.
    """
    span_s = 0.0 if history is None else history.span_s
    season_s = WEEK_S if span_s >= 2 * WEEK_S else DAY_S
    season = max(round(season_s / interval_s), 2)
    counts = None if history is None else counts_of(history, interval_s)[-2 * season :]
    return build_predictor("seasonal", season=season, history=counts)


def counts_of(load: Load, interval_s: float) -> Float:
    """Requests of a load in whole intervals of ``interval_s`` up to its end."""
    ends_s = np.arange(len(load.rates) + 1) * load.interval_s
    arrived = np.concatenate([[0.0], np.cumsum(load.rates) * load.interval_s])
    intervals = int((load.span_s + 1e-6) // interval_s)
    edges_s = load.span_s - np.arange(intervals, -1, -1) * interval_s
    return np.diff(np.interp(edges_s, ends_s, arrived))


class Arrivals:
    """Requests of intervals, one after the other, as a predictor learns them.

    All columns are fleets under the same load, so one forecast serves them all.
    """

    def __init__(self, forecast: Predictor, interval_s: float) -> None:
        self._forecast = forecast
        self._interval_s = interval_s
        self._arrived = self._at_s = 0.0
        self.last_rate = 0.0

    def begin(self, signals: Signals) -> None:
        self._arrived, self._at_s = float(signals.arrived[0]), signals.at_s

    def rates(self, signals: Signals, steps: int) -> Float:
        """Requests per second of the next ``steps`` intervals, after learning the last one.

        Raises:
            ValueError: the columns did not see the same arrivals.
        """
        arrived = float(signals.arrived[0])
        if (signals.arrived != arrived).any():
            raise ValueError("columns of one batch are fleets under the same load")
        elapsed_s = signals.at_s - self._at_s
        self.last_rate = (arrived - self._arrived) / elapsed_s if elapsed_s > 0 else self.last_rate
        self._arrived, self._at_s = arrived, signals.at_s
        self._forecast.observe(self.last_rate * self._interval_s)
        return self._forecast.predict(steps) / self._interval_s
