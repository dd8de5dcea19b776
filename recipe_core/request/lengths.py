"""Shapes of lengths around their means: by name, by quantiles, or as a trace shows them."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate, pairwise
from statistics import NormalDist
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from recipe_core.base.documented import DescribedModel
from recipe_core.base.types import Tokens

# Lengths of a shape, evenly spaced in the share of requests that are shorter.
POINTS = 4096
# Share of requests that are no longer than what counts as the longest.
LONGEST = 0.999
# How far a stated mean may be from that of quantiles, as a factor.
APART = 1.25

NORMAL = NormalDist()
Relative = tuple[float, ...]
# Lengths of a trace, in tokens, and how many requests each stands for.
Traced = tuple[tuple[int, float], ...]


class Quantiles(DescribedModel):
    """Lengths, in tokens, that so many percent of requests do not exceed; two or more."""

    p10: Tokens | None = None
    """10 % are no longer."""

    p25: Tokens | None = None
    """25 % are no longer."""

    p50: Tokens | None = None
    """Half are no longer."""

    p75: Tokens | None = None
    """75 % are no longer."""

    p90: Tokens | None = None
    """90 % are no longer."""

    p95: Tokens | None = None
    """95 % are no longer."""

    p99: Tokens | None = None
    """99 % are no longer."""

    @property
    def points(self) -> tuple[tuple[float, int], ...]:
        """Share of requests and length, ascending."""
        return tuple((int(name[1:]) / 100, value) for name, value in self if value is not None)

    @model_validator(mode="after")
    def _rise(self) -> Self:
        if len(self.points) < 2:
            raise ValueError("quantiles need two lengths or more, as p50 and p99")
        for (low, less), (high, more) in pairwise(self.points):
            if more < less:
                text = f"p{low * 100:g} {less} to p{high * 100:g} {more}"
                raise ValueError(f"quantiles fall from {text}; state them ascending")
        return self


class LengthShape(DescribedModel):
    """Say how lengths vary around their mean, instead of a spread.

    Prompts and answers are drawn independently of each other.
    """

    shape: Literal["fixed", "lognormal", "exponential", "trace"] | None = None
    """``fixed`` lengths are all the mean; ``lognormal`` ones have the coefficient of variation
    ``cv``, ``exponential`` ones 1; ``trace`` takes those of ``over_time.lengths``. Instead of
    ``quantiles``."""

    cv: Annotated[float, Field(gt=0, le=10)] | None = None
    """Standard deviation over the mean; needed by ``lognormal``, and only there."""

    quantiles: Quantiles | None = None
    """Lengths by percent of requests. Where the mean is left out it is theirs. Instead of
    ``shape``."""

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if (self.shape is None) == (self.quantiles is None):
            raise ValueError("needs either shape or quantiles")
        if (self.shape == "lognormal") != (self.cv is not None):
            raise ValueError("cv goes with shape lognormal, which needs it")
        return self


@lru_cache(64)
def relative_lengths(shape: LengthShape, traced: Traced = ()) -> Relative:
    """Lengths over their mean, at the middles of even shares of requests, ascending.

    ``traced``: lengths of a trace and their weights, for the shape that takes them.
    """
    lengths, mean = _lengths_of(shape, traced)
    return tuple(length / mean for length in lengths)


def mean_length(shape: LengthShape, traced: Traced = ()) -> float | None:
    """Mean in tokens of quantiles or of a trace; None of a shape that has no own one."""
    if shape.quantiles is None and shape.shape != "trace":
        return None
    return _lengths_of(shape, traced)[1]


@lru_cache(64)
def _lengths_of(shape: LengthShape, traced: Traced) -> tuple[Relative, float]:
    shares = [(n + 0.5) / POINTS for n in range(POINTS)]
    if shape.quantiles is not None:
        lengths = _between(shape.quantiles.points, shares)
    elif shape.shape == "lognormal":
        sigma = math.sqrt(math.log1p((shape.cv or 0.0) ** 2))
        lengths = [math.exp(sigma * NORMAL.inv_cdf(share)) for share in shares]
    elif shape.shape == "exponential":
        lengths = [-math.log1p(-share) for share in shares]
    elif shape.shape == "trace":
        points = sorted(traced)
        sums = list(accumulate(weight for _, weight in points))
        last = len(points) - 1
        places = (bisect_right(sums, share * sums[-1]) for share in shares)
        lengths = [float(points[min(place, last)][0]) for place in places]
    else:
        lengths = [1.0] * POINTS
    return tuple(lengths), math.fsum(lengths) / POINTS


def _between(points: Sequence[tuple[float, int]], shares: Sequence[float]) -> list[float]:
    """Lengths between quantiles, and beyond them as the nearest two go on.

    Logarithms of lengths over normal scores are straight lines, as those of a lognormal shape are.
    """
    scores = [NORMAL.inv_cdf(share) for share, _ in points]
    logs = [math.log(tokens) for _, tokens in points]
    out = []
    for share in shares:
        score = NORMAL.inv_cdf(share)
        k = min(max(bisect_right(scores, score) - 1, 0), len(points) - 2)
        slope = (logs[k + 1] - logs[k]) / (scores[k + 1] - scores[k])
        out.append(math.exp(max(logs[k] + slope * (score - scores[k]), 0.0)))
    return out
