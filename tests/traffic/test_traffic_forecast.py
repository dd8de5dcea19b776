"""Predictors: what they know, how they carry on, and what they do on a day that repeats."""

import numpy as np
import pytest

from recipe_core.base.arrays import Float
from recipe_core.base.errors import InputError
from recipe_core.traffic.forecast import KINDS, Kalman, predictor
from recipe_core.traffic.seasonal import Seasonal

DAY = 24


def days(number: int, noise: float = 0.0) -> Float:
    hours = np.arange(number * DAY)
    busy = 100 + 60 * np.sin(2 * np.pi * hours / DAY)
    return np.asarray(busy * (1 + noise * np.random.default_rng(0).normal(size=len(hours))))


def error_of(kind: str, series: Float, ahead: int, first: int) -> float:
    """Mean absolute error over the mean, of forecasts made after ``first`` values."""
    made = predictor(kind, season=DAY, history=series[:first])
    errors = []
    for n in range(first, len(series) - ahead):
        errors.append(abs(made.predict(ahead)[-1] - series[n + ahead - 1]))
        made.observe(float(series[n]))
    return float(np.mean(errors) / series[first:].mean())


@pytest.mark.parametrize("kind", KINDS)
def test_forecasts_begin_at_nothing_keep_a_level_stay_positive_and_repeat(kind: str) -> None:
    def forecast(history, ahead):
        return predictor(kind, season=DAY, history=history).predict(ahead)

    assert predictor(kind, season=DAY).predict(3).tolist() == [0, 0, 0]
    np.testing.assert_allclose(forecast(np.full(5 * DAY, 40.0), 6), 40, rtol=1e-3)
    fall = np.maximum(200.0 - 2 * np.arange(101), 0)
    assert (forecast(fall, 50) >= 0).all()
    series = days(4, noise=0.1)
    assert forecast(series, 5).tobytes() == forecast(series, 5).tobytes()


def test_a_kalman_filter_repeats_until_it_has_five_values() -> None:
    made = Kalman()
    for value in (10.0, 12.0, 14.0, 16.0):
        made.observe(value)
        assert made.predict(2).tolist() == [value, value]
    made.observe(18.0)
    assert made.predict(2)[1] > made.predict(2)[0] > 16
    line = predictor("kalman", history=10 + 3 * np.arange(200.0))
    np.testing.assert_allclose(line.predict(3), 10 + 3 * np.arange(200, 203), rtol=1e-3)


def test_a_kalman_filter_is_the_one_of_its_equations() -> None:
    random = np.random.default_rng(1)
    series = random.normal(50, 10, 40)
    state, spread = np.asarray([series[0], 0.0]), np.diag([10.0, 1.0])
    move, noise = np.asarray([[1.0, 1], [0, 1]]), np.diag([1.0, 0.1])
    for value in series[1:]:
        state, spread = move @ state, move @ spread @ move.T + noise
        gain = spread[:, 0] / (spread[0, 0] + 10)
        state = state + gain * (value - state[0])
        spread = spread - np.outer(gain, spread[0])
    made = predictor("kalman", history=series)
    assert made.predict(1)[0] == pytest.approx((move @ state)[0])


def test_a_season_is_learnt_and_goes_on_between_fits() -> None:
    series = days(8, noise=0.03)
    seasonal = error_of("seasonal", series, 4, 4 * DAY)
    assert seasonal < 0.06
    assert error_of("constant", series, 4, 4 * DAY) > 4 * seasonal
    series, expected = days(9, noise=0.03), days(9)[8 * DAY + 7 : 8 * DAY + 13]
    for made in (Seasonal(DAY, 10_000), Seasonal(DAY, DAY)):
        for value in series[: 8 * DAY + 7]:
            made.observe(float(value))
        np.testing.assert_allclose(made.predict(6), expected, rtol=0.1)


def test_arima_finds_an_autoregression_and_unknown_forecasts_are_named() -> None:
    random, series = np.random.default_rng(2), np.full(300, 50.0)
    for n in range(1, len(series)):
        series[n] = 50 + 0.8 * (series[n - 1] - 50) + random.normal()
    ahead = predictor("arima", history=series, refit=100).predict(3)
    expected = 50 + (series[-1] - 50) * 0.8 ** np.arange(1, 4)
    np.testing.assert_allclose(ahead, expected, atol=0.7)
    with pytest.raises(InputError, match="'prophet'"):
        predictor("prophet")
    with pytest.raises(InputError, match="season 0 is too short"):
        predictor("seasonal")
