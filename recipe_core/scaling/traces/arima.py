"""ARIMA whose order is chosen by AIC, fitted seldom and carried on by its own recursion."""

from __future__ import annotations

import warnings
from collections import deque

import numpy as np

from recipe_core.base.arrays import Float

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
