"""Predictors: what they know, how they carry on, and what they do on a day that repeats."""

from __future__ import annotations

import numpy as np
import pytest

from recipe_core.base.arrays import Float
from recipe_core.base.errors import InputError
from recipe_core.traffic.forecast import KINDS, Kalman, predictor

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
def test_nothing_seen_is_nothing_expected(kind: str) -> None:
    assert predictor(kind, season=DAY).predict(3).tolist() == [0, 0, 0]


@pytest.mark.parametrize("kind", KINDS)
def test_a_level_stays(kind: str) -> None:
    made = predictor(kind, season=DAY, history=np.full(5 * DAY, 40.0))
    np.testing.assert_allclose(made.predict(6), 40, rtol=1e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_no_forecast_is_negative(kind: str) -> None:
    fall = np.maximum(200.0 - 2 * np.arange(101), 0)
    assert (predictor(kind, season=DAY, history=fall).predict(50) >= 0).all()


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_series_gives_the_same_bits(kind: str) -> None:
    series = days(4, noise=0.1)
    one, same = (predictor(kind, season=DAY, history=series) for _ in range(2))
    assert one.predict(5).tobytes() == same.predict(5).tobytes()


def test_a_kalman_filter_repeats_until_it_has_five_values() -> None:
    made = Kalman()
    for value in (10.0, 12.0, 14.0, 16.0):
        made.observe(value)
        assert made.predict(2).tolist() == [value, value]
    made.observe(18.0)
    assert made.predict(2)[1] > made.predict(2)[0] > 16


def test_a_kalman_filter_follows_a_line() -> None:
    made = predictor("kalman", history=10 + 3 * np.arange(200.0))
    np.testing.assert_allclose(made.predict(3), 10 + 3 * np.arange(200, 203), rtol=1e-3)


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


def test_a_season_is_learnt_and_the_last_value_is_not_enough() -> None:
    series = days(8, noise=0.03)
    seasonal = error_of("seasonal", series, 4, 4 * DAY)
    assert seasonal < 0.06
    assert error_of("constant", series, 4, 4 * DAY) > 4 * seasonal


def test_a_season_goes_on_between_fits() -> None:
    from recipe_core.traffic.seasonal import Seasonal

    series = days(9, noise=0.03)
    seldom, often = Seasonal(DAY, 10_000), Seasonal(DAY, DAY)
    for value in series[: 8 * DAY + 7]:
        seldom.observe(float(value))
        often.observe(float(value))
    expected = days(9)[8 * DAY + 7 : 8 * DAY + 13]
    np.testing.assert_allclose(seldom.predict(6), expected, rtol=0.1)
    np.testing.assert_allclose(often.predict(6), expected, rtol=0.1)


def test_arima_finds_an_autoregression() -> None:
    random = np.random.default_rng(2)
    series = np.empty(300)
    series[0] = 50
    for n in range(1, len(series)):
        series[n] = 50 + 0.8 * (series[n - 1] - 50) + random.normal()
    made = predictor("arima", history=series, refit=100)
    ahead = made.predict(3)
    last = series[-1] - 50
    np.testing.assert_allclose(ahead, 50 + last * 0.8 ** np.arange(1, 4), atol=0.7)


def test_an_unknown_forecast_is_named() -> None:
    with pytest.raises(InputError, match="unknown forecast 'prophet'"):
        predictor("prophet")
    with pytest.raises(InputError, match="season 0 is too short"):
        predictor("seasonal")
