"""Errors of forecast rates: the table of docs/guide/scale.md.

    python scripts/forecast_table.py RATES.csv

``RATES.csv`` has the columns model, t_s and rate_rps, one row for ten minutes (ServeGen's weeks).
The published weeks of the package are taken too: each three times in a row, in steps of three
minutes with 10 % of noise. Each predictor sees all but the last week and is then asked before
every value.
"""

from __future__ import annotations

import sys

import numpy as np
import pandas as pd

from recipe_core.base.arrays import Float
from recipe_core.scaling.traces.forecast import Kalman, Predictor, Seasonal
from recipe_core.scaling.traces.loads import shape_rates

DAY_S, WEEK_S = 86_400, 604_800
TEN_MINUTES_S, THREE_MINUTES_S = 600, 180
SHAPES = ("azure-code", "azure-conversation")
NOISE, SEED = 0.1, 20
WEEKS = 3


class LastValue:
    """The last value, forever."""

    def observe(self, value: float) -> None:
        self._last = value

    def predict(self, steps: int = 1) -> Float:
        """The last value, ``steps`` times."""
        return np.full(steps, self._last)


def forecast_errors(
    series: Float, forecast: Predictor, tested: int, ahead: tuple[int, ...]
) -> Float:
    """Mean absolute errors over the mean, by how many intervals ahead, over the last values."""
    begin = len(series) - tested
    for value in series[:begin]:
        forecast.observe(float(value))
    missed: list[list[float]] = [[] for _ in ahead]
    for now in range(begin, len(series)):
        values = forecast.predict(max(ahead))
        for misses, steps in zip(missed, ahead, strict=True):
            if now + steps <= len(series):
                misses.append(abs(values[steps - 1] - series[now + steps - 1]))
        forecast.observe(float(series[now]))
    return np.array([np.mean(misses) for misses in missed]) / series[begin:].mean()


def print_forecast_row(
    name: str, series: Float, step_s: int, ahead: tuple[int, ...], *, weekly: bool
) -> None:
    """Print a line of the table."""
    day, week = DAY_S // step_s, WEEK_S // step_s
    forecasts: list[Predictor] = [LastValue(), Kalman(), Seasonal(day)]
    forecasts += [Seasonal(week)] * weekly
    cells = []
    for forecast in forecasts:
        shares = forecast_errors(series, forecast, week, ahead)
        cells.append(" / ".join(f"{share:.0%}" for share in shares))
    minutes = " / ".join(f"{steps * step_s // 60} min" for steps in ahead)
    print("|", " | ".join((name, minutes, *cells)), "|", flush=True)


def main(path: str) -> None:
    """Print the table."""
    table = pd.read_csv(path)
    for name in ("m-large", "m-small"):
        rates = table.loc[table["model"] == name].sort_values("t_s")["rate_rps"].to_numpy(float)
        print_forecast_row(f"ServeGen {name}", rates, TEN_MINUTES_S, (1, 6, 36), weekly=False)
    noise = np.random.default_rng(SEED)
    for name in SHAPES:
        steps = 3600 // THREE_MINUTES_S
        smooth = np.tile(np.repeat(shape_rates(name), steps), WEEKS)
        rates = 100 * smooth * np.maximum(noise.normal(1, NOISE, len(smooth)), 0)
        print_forecast_row(name, rates, THREE_MINUTES_S, (1, 20), weekly=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
