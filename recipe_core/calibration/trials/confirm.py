"""Whether the best point beats the recommended one: both again, in alternation, before believing.

The trials of a search cannot say it: the best of many noisy figures is too good on average.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

# One-sided 95 % quantiles of Student's t at 1, 2 … degrees of freedom (any statistical table).
T_95 = (6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833)
MOST_REPEATS = len(T_95) + 1


@dataclass(frozen=True, slots=True)
class Gain:
    """Pairs of scores (logarithms, lower is better) of the recommended point and the best one.

    ``mean``, ``low`` and ``high`` are ratios: 1.10 is 10 % better. Between ``low`` and ``high`` the
    mean gain lies with 90 % confidence, by Student's t over the pairs, which share what the machine
    did meanwhile. ``noise``: the standard deviation of the recommended point's own scores, as a
    share.
    """

    pairs: int
    mean: float
    low: float
    high: float
    noise: float

    @property
    def proven(self) -> bool:
        """Whether the best point is better with 95 % confidence."""
        return self.low > 1

    def to_json(self) -> dict[str, Any]:
        return {
            "pairs": self.pairs,
            "mean_ratio": round(self.mean, 4),
            "low_ratio": round(self.low, 4),
            "high_ratio": round(self.high, 4),
            "noise_share": round(self.noise, 4),
            "proven": self.proven,
        }


def gain_of(base: Sequence[float], best: Sequence[float]) -> Gain:
    """The gain over at least two pairs of scores."""
    gaps = [a - b for a, b in zip(base, best, strict=True)]
    mean = fmean(gaps)
    half = T_95[len(gaps) - 2] * stdev(gaps) / math.sqrt(len(gaps))
    return Gain(
        pairs=len(gaps),
        mean=math.exp(mean),
        low=math.exp(mean - half),
        high=math.exp(mean + half),
        noise=math.expm1(stdev(base)),
    )


def alternating_order(repeats: int) -> list[str]:
    """Who is measured when: base, best, best, base …, so that a slow drift favours neither."""
    pairs = [("base", "best"), ("best", "base")]
    return [name for n in range(repeats) for name in pairs[n % 2]]


def median_measurement(
    measurements: Sequence[Mapping[str, Any]], scores: Sequence[float]
) -> Mapping[str, Any]:
    """The measurement of the median score: the one that a claim repeats."""
    ranked = sorted(range(len(scores)), key=scores.__getitem__)
    return measurements[ranked[(len(ranked) - 1) // 2]]
