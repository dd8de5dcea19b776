"""NVIDIA Dynamo's planner: latencies of the engines, above a floor from forecast requests.

Source of the rules: ai-dynamo/dynamo, planner configuration reference and planner design.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from recipe_core.base.arrays import Float
from recipe_core.request.scaling import Scaling
from recipe_core.scaling.fleet import Signals
from recipe_core.scaling.policies.columns import (
    SLACK_S,
    Paced,
    default_of,
    next_look,
    parameters,
    same_number,
    whole_up,
)
from recipe_core.scaling.policies.predictive import Arrivals
from recipe_core.scaling.traces.forecast import build_predictor

# The forecast that is simulated, by the planner's name of it (``load_predictor``).
PREDICTOR = "kalman"


def change_by_time(times: Float, limit: Float, sensitivity: Float) -> Float:
    """+1 where all engines are above the limit, -1 where all are below limit × sensitivity.

    times: of the engines, along the last axis. The rule of a prefill pool (TTFT) and of a decode
    pool (time between tokens).
    """
    up = (times > limit).all(axis=-1)
    down = (times < limit * sensitivity).all(axis=-1)
    change: Float = up.astype(float) - down
    return change


def change_of_aggregated(
    ttft: Float,
    itl: Float,
    ttft_limit: Float,
    itl_limit: Float,
    sensitivity: Float,
) -> Float:
    """+1 where one of both asks for more, -1 where both ask for fewer."""
    first = change_by_time(ttft, ttft_limit, sensitivity)
    between = change_by_time(itl, itl_limit, sensitivity)
    change: Float = np.where(np.maximum(first, between) > 0, 1.0, np.maximum(first, between))
    return change


def replicas_by_forecast(rate_per_s: Float, capacity_per_s: float, headroom: Float) -> Float:
    """ceil(requests per second of the next interval × (1 + headroom) / those of a replica)."""
    return whole_up(rate_per_s * (1 + headroom) / capacity_per_s)


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
        load_s = default_of("dynamo", "load_interval_s")
        super().__init__(
            scalings, same_number(scalings, lambda scaling: scaling.interval_s, load_s)
        )
        interval_s = default_of("dynamo", "throughput_interval_s")
        self._forecast_s = same_number(scalings, lambda scaling: scaling.window_s, interval_s)
        self._forecast_due_s = -np.inf
        self._capacity_per_s = capacity_per_s
        self._ttft_s = np.asarray(limits_s.get("ttft_s", default_of("dynamo", "ttft_s")))
        self._itl_s = np.asarray(limits_s.get("tpot_s", default_of("dynamo", "itl_s")))
        default_tolerance = 1 - default_of("dynamo", "down_sensitivity")
        sensitivity = 1 - parameters(scalings, lambda scaling: scaling.tolerance, default_tolerance)
        self._sensitivity = sensitivity[:, np.newaxis]  # the last axis is of the engines
        self._headroom = parameters(scalings, lambda scaling: scaling.headroom, 0.0)
        self._arrivals = Arrivals(build_predictor(PREDICTOR), self._forecast_s)
        self._floor = self._low

    def _begin(self, signals: Signals, /) -> None:
        self._arrivals.begin(signals)
        self._floor = self._low
        self._forecast_due_s = next_look(signals.at_s, self._forecast_s)

    def _look(self, signals: Signals, /) -> Float:
        if signals.at_s >= self._forecast_due_s - SLACK_S:
            self._forecast_due_s = next_look(signals.at_s, self._forecast_s)
            rate = self._arrivals.rates(signals, 1)
            floor = replicas_by_forecast(np.asarray(rate[0]), self._capacity_per_s, self._headroom)
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
