"""Forecasts of a series that is seen one value at a time: rates, or numbers of requests.

A predictor is shown the values of equal intervals (``observe``) and asked for those to come
(``predict``). Models are fitted seldom, by statsmodels, and carried on by their own recursions in
between, so that a week of decisions every three minutes takes seconds.

``constant``: the last value. ``kalman``: a local linear trend. ``arima``: ARIMA by AIC.
``seasonal``: Holt-Winters with a season of a day or a week. Dynamo's planner has the first three,
with these parameters of ``kalman``, and Prophet in place of the last.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from recipe_core.base.arrays import Float
from recipe_core.base.errors import InputError, unknown

KINDS = ("constant", "kalman", "arima", "seasonal")


class Predictor(Protocol):
    """A forecast that learns as it goes. What it predicts is never negative."""

    def observe(self, value: float) -> None: ...

    def predict(self, steps: int = 1) -> Float:
        """Values of the next ``steps`` intervals; zeros before any was seen."""
        ...


def build_predictor(
    kind: str, *, season: int = 0, refit: int = 0, history: Float | None = None
) -> Predictor:
    """A predictor of a kind, which has seen ``history``.

    season: intervals after which the series repeats, for ``seasonal``: those of a day or a week.
    refit: intervals from one fit of ``arima`` or ``seasonal`` to the next; a season if left out,
    480 (a day of three minutes) where there is none.

    Raises:
        InputError: for a kind that is unknown, or ``seasonal`` without a season.
    """
    forecast = _make_predictor(kind, season, refit)
    for value in () if history is None else history:
        forecast.observe(float(value))
    return forecast


def _make_predictor(kind: str, season: int, refit: int) -> Predictor:
    # Each of these loads no more than it needs: statsmodels takes seconds.
    if kind == "constant":
        return Constant()
    if kind == "kalman":
        return Kalman()
    if kind == "arima":
        from recipe_core.scaling.traces.arima import Arima

        return Arima(refit or season or 480)
    if kind == "seasonal":
        from recipe_core.scaling.traces.seasonal import Seasonal

        if season < 2:
            raise InputError(
                f"season {season} is too short for a seasonal forecast.",
                field="season",
                hint="Give the intervals of a day or a week.",
            )
        return Seasonal(season, refit or season)
    message, hint = unknown("forecast", kind, KINDS)
    raise InputError(message, field="forecast", hint=hint)


class Constant:
    """The last value, forever."""

    def __init__(self) -> None:
        self._last = 0.0

    def observe(self, value: float) -> None:
        self._last = value

    def predict(self, steps: int = 1) -> Float:
        """The last value, ``steps`` times."""
        return np.full(steps, max(self._last, 0.0))


class Kalman:
    """Local linear trend: level' = level + trend, trend' = trend, value = level + noise.

    q_level, q_trend: variances of what level and trend change by in an interval. r: variance of the
    noise. Until ``fewest`` values were seen it repeats the last. The defaults are those of Dynamo's
    planner (kalman_q_level, kalman_q_trend, kalman_r, kalman_min_points of its configuration
    reference). They are absolute: the filter follows a series of thousands almost at once, and one
    of ones slowly.
    """

    def __init__(
        self, q_level: float = 1.0, q_trend: float = 0.1, r: float = 10.0, fewest: int = 5
    ) -> None:
        self._q_level, self._q_trend, self._r, self._fewest = q_level, q_trend, r, fewest
        self._level = self._trend = self._last = 0.0
        self._var_level, self._covariance, self._var_trend = r, 0.0, 1.0
        self._seen = 0

    def observe(self, value: float) -> None:
        """One step of the filter; the first value is taken as the level."""
        self._seen += 1
        self._last = value
        if self._seen == 1:
            self._level = value
            return
        level = self._level + self._trend
        var_level = self._var_level + 2 * self._covariance + self._var_trend + self._q_level
        covariance = self._covariance + self._var_trend
        var_trend = self._var_trend + self._q_trend
        gain_level = var_level / (var_level + self._r)
        gain_trend = covariance / (var_level + self._r)
        surprise = value - level
        self._level = level + gain_level * surprise
        self._trend += gain_trend * surprise
        self._var_level = (1 - gain_level) * var_level
        self._covariance = (1 - gain_level) * covariance
        self._var_trend = var_trend - gain_trend * covariance

    def predict(self, steps: int = 1) -> Float:
        """The level carried on by the trend."""
        if self._seen < self._fewest:
            return np.full(steps, max(self._last, 0.0))
        ahead = np.arange(1, steps + 1, dtype=np.float64)
        return np.maximum(self._level + self._trend * ahead, 0.0)
