"""Intervals around an estimate at three levels, and the probability that they give a limit."""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import NormalDist
from typing import Literal

Level = Literal["50", "80", "95"]
LEVELS: tuple[Level, ...] = ("50", "80", "95")
"""Shares of measured runs, in percent, that intervals are given for."""
BAND: Level = "80"
"""The interval that a figure's ``low`` and ``high`` are the ends of."""

Ends = tuple[float, float]
Intervals = Mapping[Level, Ends]
NORMAL = NormalDist()


def probability_below(intervals: Intervals, limit: float) -> float:
    """The probability that a measured run is at most ``limit``.

    Between the ends of the intervals the normal score is linear in the logarithm, and beyond the
    outermost it goes on as between the two last.

    Raises:
        ValueError: ``limit`` is not above 0.
    """
    if not limit > 0:
        raise ValueError(f"limit must be above 0 (got {limit:g})")
    points: dict[float, list[float]] = {}
    for level in LEVELS:
        score = NORMAL.inv_cdf((1 + int(level) / 100) / 2)
        for end, sign in zip(intervals[level], (-1, 1), strict=True):
            points.setdefault(math.log(end), []).append(sign * score)
    at = sorted((x, sum(scores) / len(scores)) for x, scores in points.items())
    x = math.log(limit)
    if len(at) == 1:  # no uncertainty at all
        return float(x >= at[0][0])
    right = next((k for k in range(1, len(at) - 1) if x < at[k][0]), len(at) - 1)
    (x0, z0), (x1, z1) = at[right - 1], at[right]
    return NORMAL.cdf(z0 + (z1 - z0) * (x - x0) / (x1 - x0))
