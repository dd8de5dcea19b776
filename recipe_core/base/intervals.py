"""Intervals around an estimate at three levels, and the probability that they give a limit."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from statistics import NormalDist
from typing import Literal

import numpy as np

from recipe_core.base.arrays import Float

Level = Literal["50", "80", "95"]
# Shares of measured runs, in percent, that intervals are given for.
LEVELS: tuple[Level, ...] = ("50", "80", "95")
# The interval that a figure's ``low`` and ``high`` are the ends of.
BAND: Level = "80"

Ends = tuple[float, float]
Intervals = Mapping[Level, Ends]
NORMAL = NormalDist()


@cache
def quantile_score(level: Level) -> float:
    """Normal score of the upper end of a level's interval."""
    return NORMAL.inv_cdf((1 + int(level) / 100) / 2)


def _score_points(intervals: Intervals) -> tuple[Float, Float]:
    """The ends of the intervals as logarithms, rising, and the normal score of each."""
    points: dict[float, list[float]] = {}
    for level in LEVELS:
        score = quantile_score(level)
        for end, sign in zip(intervals[level], (-1, 1), strict=True):
            points.setdefault(math.log(end), []).append(sign * score)
    at = sorted((x, sum(scores) / len(scores)) for x, scores in points.items())
    ends, scores = np.array(at).T
    return ends, scores


def scores_below(intervals: Intervals, limits: Float) -> Float:
    """Normal scores of a measured run being at most each of ``limits``, all above 0.

    Between the ends of the intervals the score is linear in the logarithm, and beyond the outermost
    it goes on as between the two last. Without any uncertainty it is infinite.
    """
    ends, scores = _score_points(intervals)
    x = np.log(limits)
    if len(ends) == 1:
        return np.where(x >= ends[0], np.inf, -np.inf)
    right = np.clip(np.searchsorted(ends, x, side="right"), 1, len(ends) - 1)
    slope = (scores[right] - scores[right - 1]) / (ends[right] - ends[right - 1])
    return np.asarray(scores[right - 1] + slope * (x - ends[right - 1]))


def scores_between(low: Float, high: Float, limits: Float) -> Float:
    """Normal scores as ``scores_below``, where every case has intervals of its own.

    ``low`` and ``high``: ends by level (cases × levels); ``limits``: cases × …, all above 0.
    """
    sides = [quantile_score(level) for level in LEVELS]
    scores = np.array([*(-score for score in reversed(sides)), *sides])
    # ends that coincide are kept apart by less than anybody can measure
    ends = np.log(np.concatenate([low[:, ::-1], high], axis=1)) + 1e-9 * np.arange(len(scores))
    x = np.log(limits)
    place = (slice(None), *(None,) * (x.ndim - 1))
    right = sum((x >= ends[:, k][place]).astype(np.int64) for k in range(len(scores)))
    right = np.clip(right, 1, len(scores) - 1)
    rows = np.arange(len(ends))[place]
    start, end = ends[rows, right - 1], ends[rows, right]
    slope = (scores[right] - scores[right - 1]) / (end - start)
    return np.asarray(scores[right - 1] + slope * (x - start))


def factor_at(intervals: Intervals, score: float) -> float:
    """The limit of which a measured run is below with a normal score: ``scores_below`` inverted."""
    ends, scores = _score_points(intervals)
    if len(ends) == 1:
        return math.exp(float(ends[0]))
    right = min(max(int(np.searchsorted(scores, score, side="right")), 1), len(ends) - 1)
    slope = (ends[right] - ends[right - 1]) / (scores[right] - scores[right - 1])
    return math.exp(float(ends[right - 1] + slope * (score - scores[right - 1])))


def probability_below(intervals: Intervals, limit: float) -> float:
    """The probability that a measured run is at most ``limit``, by its normal score.

    Raises:
        ValueError: ``limit`` is not above 0.
    """
    if not limit > 0:
        raise ValueError(f"limit must be above 0 (got {limit:g})")
    return NORMAL.cdf(float(scores_below(intervals, np.array([limit]))[0]))
