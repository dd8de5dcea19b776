"""Forecasts of a series that is seen one value at a time: rates, or numbers of requests.

A predictor is shown the values of equal intervals (``observe``) and asked for those to come
(``predict``). Models are fitted seldom, by statsmodels, and carried on by their own recursions in
between, so that a week of decisions every three minutes takes seconds.

``constant``: the last value. ``kalman``: a local linear trend. ``arima``: ARIMA by AIC.
``seasonal``: Holt-Winters with a season of a day or a week. Dynamo's planner has the first three,
with these parameters of ``kalman``, and Prophet in place of the last.
"""

from __future__ import annotations

import warnings
from collections import deque
from typing import Protocol

import numpy as np

from recipe_core.base.arrays import Float
from recipe_core.base.errors import InputError, unknown

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


# Pairs of p and q that are tried.
ORDERS = ((0, 0), (1, 0), (0, 1), (1, 1), (2, 1))
# Values that a fit looks back on.
WINDOW = 360
# Numbers of values after which it is fitted, before it is so every ``refit``.
FIRST_FITS = (20, 60, 180)
# When the search of coefficients ends; the likelihood is in nats.
SEARCH = {"options": {"maxiter": 30, "gtol": 1e-2, "disp": False}}
SIGNIFICANT = 0.05


class Arima:
    """ARIMA(p, d, q) with p + q at most 3 and d 0 or 1, as automatic procedures choose it.

    d is 1 where the KPSS test refuses that the level stays (as in Hyndman and Khandakar 2008), p
    and q have the least AIC. Before the first fit, and where none succeeds, it repeats the last
    value.
    """

    def __init__(self, refit: int) -> None:
        self._refit = refit
        self._values: deque[float] = deque(maxlen=WINDOW)
        self._seen = self._since = 0
        self._order = (0, 1, 0)
        self._mean = 0.0
        self._phi: Float = np.zeros(0)
        self._theta: Float = np.zeros(0)
        self._recent: deque[float] = deque()
        self._surprises: deque[float] = deque()

    def observe(self, value: float) -> None:
        """Learn a value; fits where it is time."""
        before = self._values[-1] if self._values else value
        self._values.append(value)
        self._seen += 1
        self._since += 1
        if self._seen in FIRST_FITS or (self._seen > FIRST_FITS[-1] and self._since >= self._refit):
            self._fit()
        else:
            self._step(value - before if self._order[1] else value)

    def predict(self, steps: int = 1) -> Float:
        """The recursion carried on without surprises."""
        if not self._values:
            return np.zeros(steps)
        recent, surprises = deque(self._recent), deque(self._surprises)
        out = np.empty(steps)
        for step in range(steps):
            out[step] = self._next(recent, surprises)
            recent.appendleft(out[step] - self._mean)
            surprises.appendleft(0.0)
        if self._order[1]:
            out = self._values[-1] + np.cumsum(out)
        return np.maximum(out, 0.0)

    def _next(self, recent: deque[float], surprises: deque[float]) -> float:
        ar = sum(phi * value for phi, value in zip(self._phi, recent, strict=False))
        ma = sum(theta * value for theta, value in zip(self._theta, surprises, strict=False))
        return self._mean + float(ar) + float(ma)

    def _step(self, value: float) -> None:
        surprise = value - self._next(self._recent, self._surprises)
        self._recent.appendleft(value - self._mean)
        self._surprises.appendleft(surprise)
        while len(self._recent) > max(len(self._phi), 1):
            self._recent.pop()
        while len(self._surprises) > max(len(self._theta), 1):
            self._surprises.pop()

    def _fit(self) -> None:
        # Loaded before warnings are silenced: statsmodels sets filters of its own.
        import statsmodels.tsa.api  # noqa: F401

        self._since = 0
        values = np.asarray(self._values)
        if np.ptp(values) <= 0:
            self._take((0, 1, 0), 0.0, np.zeros(0), np.zeros(0), np.diff(values))
            return
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of searches that end early, and of coarse tables
            d = _difference_order(values)
            series = np.diff(values) if d else values
            best = _fit_best_order(series, trend="n" if d else "c")
        if best is None:
            self._take((0, 1, 0), 0.0, np.zeros(0), np.zeros(0), np.diff(values))
        else:
            (p, q), mean, phi, theta = best
            self._take((p, d, q), mean, phi, theta, series)

    def _take(
        self, order: tuple[int, int, int], mean: float, phi: Float, theta: Float, series: Float
    ) -> None:
        self._order, self._mean, self._phi, self._theta = order, mean, phi, theta
        self._recent.clear()
        self._surprises.clear()
        for value in series:
            self._step(float(value))


def _difference_order(values: Float) -> int:
    from statsmodels.tsa.stattools import kpss

    return int(kpss(values, regression="c", nlags="auto")[1] < SIGNIFICANT)


def _fit_best_order(
    series: Float, trend: str
) -> tuple[tuple[int, int], float, Float, Float] | None:
    """Orders, mean and coefficients with the least AIC; None where nothing could be fitted.

    Each is fitted by the likelihood of its innovations, about the mean of the series (trend ``c``)
    or about 0 (``n``).
    """
    from statsmodels.tsa.arima.estimators.innovations import innovations_mle

    mean = float(series.mean()) if trend == "c" else 0.0
    best = None
    least_aic = np.inf
    for p, q in ORDERS:
        try:
            fit, details = innovations_mle(
                series - mean, order=(p, 0, q), demean=False, minimize_kwargs=SEARCH
            )
        except (ValueError, ArithmeticError, np.linalg.LinAlgError):
            continue
        aic = 2 * (p + q) + 2 * float(details.minimize_results.fun)
        if np.isfinite(aic) and aic < least_aic:
            least_aic = aic
            best = (p, q), mean, np.asarray(fit.ar_params), np.asarray(fit.ma_params)
    return best


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
    if kind == "constant":
        return Constant()
    if kind == "kalman":
        return Kalman()
    if kind == "arima":
        return Arima(refit or season or 480)
    if kind == "seasonal":
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
