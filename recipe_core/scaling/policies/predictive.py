"""Policies that forecast: replicas for the load when they would be ready, and Dynamo's planner."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from recipe_core.base.arrays import Float
from recipe_core.request.over_time import DAY_S, WEEK_S
from recipe_core.request.scaling import Scaling
from recipe_core.scaling.fleet import Signals
from recipe_core.scaling.policies.controller import Due, Paced, has_waiting, open_requests
from recipe_core.scaling.policies.rows import default_of, parameters, same_parameter
from recipe_core.scaling.policies.rules import ROUNDING, change_of_aggregated, whole_up
from recipe_core.scaling.policies.windows import SLACK_S, MovingMax
from recipe_core.scaling.traces.forecast import Kalman, Predictor, Seasonal
from recipe_core.scaling.traces.loads import Load


def seasonal_predictor(history: Load | None, interval_s: float) -> Predictor:
    """A forecast with trend and season, fitted once a season at most.

    The season is a week where two are known before the start, else a day. The last two seasons of
    the history are shown to it, which takes one fit; before two are known it repeats the last
    value.
    """
    span_s = 0.0 if history is None else history.span_s
    season_s = WEEK_S if span_s >= 2 * WEEK_S else DAY_S
    season = max(round(season_s / interval_s), 2)
    forecast = Seasonal(season)
    for count in [] if history is None else counts_of(history, interval_s)[-2 * season :]:
        forecast.observe(float(count))
    return forecast


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


def replicas_for_rate(rate_per_s: Float, headroom: Float, capacity_per_s: float) -> Float:
    """Return ceil(rate × (1 + headroom) / requests per second of a replica)."""
    return whole_up(rate_per_s * (1 + headroom) / capacity_per_s)


class Predictive(Paced):
    """A batch of policies on one forecast, which learns the mean rate of every ``window_s``.

    It orders for the highest rate between now and the end of the interval that begins ``lead_s``
    from now, so that it neither orders late nor ends replicas that the present still needs; and
    never for less than the last interval had. A column without replicas gets one when a request
    waits, and loses the last one when nothing came for ``idle_s`` and less than one request is
    expected within ``lead_s``.
    """

    def __init__(
        self,
        scalings: Sequence[Scaling],
        capacity_per_s: float,
        start_s: float,
        history: Load | None = None,
    ) -> None:
        super().__init__(scalings, same_parameter(scalings, "interval_s"))
        self._window_s = same_parameter(scalings, "window_s")
        self._learns = Due(self._window_s)
        self._capacity_per_s = capacity_per_s
        self._lead_s = parameters(scalings, "lead_s", start_s)
        self._steps = np.ceil(self._lead_s / self._window_s).astype(int)
        self._headroom = parameters(scalings, "headroom")
        self._idle_s = parameters(scalings, "idle_s")
        self._highest = MovingMax(parameters(scalings, "down_delay_s"))
        self._busy_s = np.zeros(len(scalings))
        self._forecast = self._wanted
        self._arrivals = Arrivals(seasonal_predictor(history, self._window_s), self._window_s)

    def _begin(self, signals: Signals, /) -> None:
        self._arrivals.begin(signals)
        self._busy_s = np.full_like(self._wanted, signals.at_s)
        self._forecast = self._wanted
        self._learns.comes(signals.at_s)

    def _look(self, signals: Signals, /) -> Float:
        if self._learns.comes(signals.at_s):
            self._forecast = self._replicas(signals)
        self._busy_s = np.where(open_requests(signals) > ROUNDING, signals.at_s, self._busy_s)
        needed = self._highest.add(signals.at_s, self._forecast)
        keeps = (self._wanted > 0) & (signals.at_s - self._busy_s < self._idle_s - SLACK_S)
        wakes = (self._wanted == 0) & has_waiting(signals)
        return self._bounded(np.maximum(needed, keeps | wakes))

    def _replicas(self, signals: Signals) -> Float:
        """Replicas for the highest rate of each column's horizon; 0 below one request in it."""
        rates = self._arrivals.rates(signals, int(self._steps.max()) + 1)
        highest = np.maximum.accumulate(np.maximum(rates, self._arrivals.last_rate))
        rate = highest[self._steps]
        replicas = replicas_for_rate(rate, self._headroom, self._capacity_per_s)
        few = rate * np.maximum(self._lead_s, self._window_s) < 1
        return np.where(few, np.minimum(replicas, self._low), replicas)


# The forecast that is simulated, by the planner's name of it (``load_predictor``).
PREDICTOR = "kalman"


class Dynamo(Paced):
    """A batch of planners with both rules, for engines that do prefill and decode.

    Engines of a fleet are alike here and share its mean latencies, so "all engines" is the mean.
    In a real fleet one fast engine holds a scale-up back. Nothing new is decided while a replica
    starts. Requests are forecast by its Kalman filter; lengths are taken to stay as they are.
    """

    def __init__(
        self,
        scalings: Sequence[Scaling],
        capacity_per_s: float,
        limits_s: Mapping[str, float],
    ) -> None:
        super().__init__(scalings, same_parameter(scalings, "interval_s"))
        self._forecasts = Due(same_parameter(scalings, "window_s"))
        self._capacity_per_s = capacity_per_s
        self._ttft_s = np.asarray(limits_s.get("ttft_s", default_of("dynamo", "ttft_s")))
        self._itl_s = np.asarray(limits_s.get("tpot_s", default_of("dynamo", "itl_s")))
        default_tolerance = 1 - default_of("dynamo", "down_sensitivity")
        sensitivity = 1 - parameters(scalings, "tolerance", default_tolerance)
        self._sensitivity = sensitivity[:, np.newaxis]  # the last axis is of the engines
        self._headroom = parameters(scalings, "headroom")
        self._arrivals = Arrivals(Kalman(), self._forecasts.interval_s)
        self._floor = self._low

    def _begin(self, signals: Signals, /) -> None:
        self._arrivals.begin(signals)
        self._floor = self._low
        self._forecasts.comes(signals.at_s)

    def _look(self, signals: Signals, /) -> Float:
        if self._forecasts.comes(signals.at_s):
            rate = self._arrivals.rates(signals, 1)
            floor = replicas_for_rate(rate[0], self._headroom, self._capacity_per_s)
            self._floor = self._bounded(floor)
        ttft_s, tpot_s = signals.times_s()
        change = change_of_aggregated(
            ttft_s[..., np.newaxis],
            tpot_s[..., np.newaxis],
            self._ttft_s,
            self._itl_s,
            self._sensitivity,
        )
        number = self._bounded(np.maximum(self._wanted + change, self._floor))
        return np.where(signals.starting > 0, self._wanted, number)
