"""Holt-Winters: a level, a damped trend, and a season that repeats, each learnt as it goes."""

from __future__ import annotations

import warnings
from collections import deque

import numpy as np

from recipe_core.base.arrays import Float

# Seasons that a fit looks back on.
SEASONS = 4


class Seasonal:
    """Additive Holt-Winters on square roots, which makes busy hours vary as much as quiet ones.

    Fitted by statsmodels (``ExponentialSmoothing``) on the last four seasons, from the second on,
    and again every ``refit`` intervals; in between level, trend and season go on by their own
    recursions with the weights of the fit. Before that it repeats the last value. A forecast is
    squared; that its mean is a little above is left out.
    """

    def __init__(self, season: int, refit: int) -> None:
        self._season, self._refit = season, refit
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
        if enough and (not self._fitted or self._since >= self._refit):
            self._fit()
        elif self._fitted:
            self._step(root)

    def predict(self, steps: int = 1) -> Float:
        """The level, its damped trend and the season of each step."""
        if not self._fitted:
            return np.full(steps, self._values[-1] ** 2 if self._values else 0.0)
        ahead = np.arange(1, steps + 1)
        damped = np.cumsum(self._phi**ahead)
        season = np.asarray(self._seasonal)[(ahead - 1) % self._season]
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
