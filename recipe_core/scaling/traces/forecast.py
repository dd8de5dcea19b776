"""Forecasts of a series that is seen one value at a time: rates, or numbers of requests.

A predictor is shown the values of equal intervals (``observe``) and asked for those to come
(``predict``). Weights are fitted seldom, by statsmodels, and carried on by the model's own
recursion in between, so that a week of decisions every three minutes takes seconds.
"""

from __future__ import annotations

import warnings
from collections import deque
from typing import Protocol

import numpy as np

from recipe_core.base.arrays import Float

# Seasons that a fit looks back on.
SEASONS = 4


class Predictor(Protocol):
    """A forecast that learns as it goes. What it predicts is never negative."""

    def observe(self, value: float) -> None: ...

    def predict(self, steps: int = 1) -> Float:
        """Return values of the next ``steps`` intervals; zeros before any was seen."""
        ...


class Seasonal:
    """Additive Holt-Winters on square roots, which makes busy hours vary as much as quiet ones.

    Fitted by statsmodels (``ExponentialSmoothing``) on the last four seasons, from the second on,
    and again every season; in between level, trend and season go on by their own recursions with
    the weights of the fit. Before that it repeats the last value. A forecast is squared; that its
    mean is a little above is left out.

    Args:
        season: intervals after which the series repeats, 2 or more: those of a day or a week.
    """

    def __init__(self, season: int) -> None:
        self._season = season
        self._values: deque[float] = deque(maxlen=SEASONS * season)
        self._since = 0
        self._fitted = False
        self._alpha = self._beta = self._gamma = self._phi = 0.0
        self._level = self._trend = 0.0
        self._seasonal: deque[float] = deque(maxlen=season)

    def observe(self, value: float) -> None:
        """Learn a value; fits where it is time."""
        root = max(value, 0.0) ** 0.5
        self._values.append(root)
        self._since += 1
        enough = len(self._values) >= 2 * self._season
        if enough and (not self._fitted or self._since >= self._season):
            self._fit()
        elif self._fitted:
            self._step(root)

    def predict(self, steps: int = 1) -> Float:
        """The level, its damped trend and the season of each step."""
        if not self._fitted:
            return np.full(steps, self._values[-1] ** 2 if self._values else 0.0)
        ahead = np.arange(1, steps + 1)
        damped = np.cumsum(self._phi**ahead)
        season = np.array([self._seasonal[step % self._season] for step in range(steps)])
        root: Float = np.maximum(self._level + self._trend * damped + season, 0.0)
        return root**2

    def _step(self, root: float) -> None:
        season = self._seasonal.popleft()
        before, trend = self._level, self._phi * self._trend
        self._level = self._alpha * (root - season) + (1 - self._alpha) * (before + trend)
        self._trend = self._beta * (self._level - before) + (1 - self._beta) * trend
        self._seasonal.append(self._gamma * (root - before - trend) + (1 - self._gamma) * season)

    def _fit(self) -> None:
        # Loaded before warnings are silenced: statsmodels sets filters of its own.
        from statsmodels.tsa.holtwinters import ExponentialSmoothing

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that the search of weights ended early
            model = ExponentialSmoothing(
                np.asarray(self._values),
                trend="add",
                damped_trend=True,
                seasonal="add",
                seasonal_periods=self._season,
                initialization_method="heuristic",
            )
            result = model.fit(use_brute=False)
        weights = result.params
        self._alpha = float(weights["smoothing_level"])
        self._beta = float(weights["smoothing_trend"])
        self._gamma = float(weights["smoothing_seasonal"])
        self._phi = float(weights["damping_trend"])
        self._level, self._trend = float(result.level[-1]), float(result.trend[-1])
        self._seasonal = deque(map(float, result.season[-self._season :]), maxlen=self._season)
        self._fitted, self._since = True, 0


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
