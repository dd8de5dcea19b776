"""Distances of measured runs from estimates: factors by figure and by kind of device.

The shipped files come from scripts/fit_bands.py; scripts/interval_fit.py says how.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import AfterValidator, Field, model_validator

from recipe_core.base.arrays import Float
from recipe_core.base.data_files import DataRow
from recipe_core.base.intervals import BAND, LEVELS, Ends, Intervals, Level, quantile_score
from recipe_core.estimates.columns.columns import Columns

Factor = Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)]
Sigma = Annotated[float, Field(ge=0, le=20, allow_inf_nan=False)]
Name = Annotated[str, Field(pattern=r"^[a-z0-9_-]{1,32}$")]
# Standard deviation of the logarithm that times have besides on a slice of a device, of which no
# run is among the fitted ones: assumed; five published runs are off by 0.29 (root mean square).
SLICE_SPREAD = 0.35
# What groups of devices and engines are told apart by.
KEYS = ("mode", "basis", "engine", "architecture", "vendor")


def _check_factor_nesting(
    factors: dict[Level, tuple[Factor, Factor]],
) -> dict[Level, tuple[Factor, Factor]]:
    missing = [level for level in LEVELS if level not in factors]
    if missing:
        raise ValueError(f"level {missing[0]} is missing; give 50, 80 and 95")
    inner: Ends = (1.0, 1.0)
    for level in LEVELS:
        low, high = factors[level]
        if not low <= inner[0] <= inner[1] <= high:
            raise ValueError(
                f"level {level}: {low:g} to {high:g} does not hold {inner[0]:g} to {inner[1]:g}; "
                "an interval holds the one before it, and the first holds the estimate (1)"
            )
        inner = (low, high)
    return factors


class Band(DataRow):
    """Factors around the estimates of a figure, for one group of devices and engines.

    ``factors``: by level, the ends of measured / estimated. ``common`` and ``independent``:
    standard deviations of log(measured / estimated), of the part that runs of one device, engine
    and version share, and of the rest. ``runs`` and ``cells`` (source × device × model) are the
    group's own; where they are few, its factors are mostly those of the next wider group. A key
    that is None stands for all.
    """

    metric: Name
    mode: Name | None = None
    basis: Literal["fitted", "prior"] | None = None
    engine: Name | None = None
    architecture: Name | None = None
    vendor: Name | None = None
    runs: Annotated[int, Field(ge=1)]
    cells: Annotated[int, Field(ge=1)]
    factors: Annotated[dict[Level, tuple[Factor, Factor]], AfterValidator(_check_factor_nesting)]
    common: Sigma
    independent: Sigma

    @property
    def low(self) -> float:
        """Lower factor of the 80 % band."""
        return self.factors[BAND][0]

    @property
    def high(self) -> float:
        """Upper factor of the 80 % band."""
        return self.factors[BAND][1]

    @property
    def key(self) -> tuple[str | None, ...]:
        """Metric and group."""
        return (self.metric, *(getattr(self, name) for name in KEYS))

    def inverse(self) -> dict[Level, Ends]:
        """Factors of a figure that falls as this one rises, such as cost with throughput."""
        return invert_factors(self.factors)


def invert_factors(factors: Intervals) -> dict[Level, Ends]:
    """Factors of what falls as the figure of these rises."""
    return {level: (1 / high, 1 / low) for level, (low, high) in factors.items()}


def narrow_interval(ends: Ends, share: Any) -> tuple[Any, Any]:
    """The ends of an interval where runs of one's own leave so much of the standard deviation.

    On a log scale its half-width shrinks by ``share`` (a number, or one per case), and its middle,
    by which estimates are off on average, by the square of that: ``1 - share²`` is how far the runs
    are believed.
    """
    low, high = math.log(ends[0]), math.log(ends[1])
    middle, half = (low + high) / 2 * share**2, (high - low) / 2 * share
    return np.exp(np.maximum(middle - half, low)), np.exp(np.minimum(middle + half, high))


@dataclass(frozen=True, slots=True)
class Stretch(Columns):
    """By how much the intervals of cases differ from those of their group, one number per case.

    ``share``: of the standard deviation, what runs of one's own leave (``narrow_interval``).
    ``below`` and ``above``: factors on the logarithms of the ends, such as of a queue that carries
    an error on.
    """

    share: Float
    below: Float
    above: Float

    def ends(self, factors: Intervals) -> tuple[Float, Float]:
        """Lower and upper ends over the estimate (cases × levels)."""
        ends = np.array([narrow_interval(factors[level], self.share) for level in LEVELS])
        low, high = ends.transpose(1, 2, 0)
        return low ** self.below[:, None], high ** self.above[:, None]

    def narrowed(self, share: Float) -> Stretch:
        """The same where runs of one's own leave a ``share`` besides."""
        return replace(self, share=self.share * share)


@dataclass(frozen=True, slots=True)
class Uncertain:
    """The quantities that an error follows.

    ``metric``: the measured figure, ``sign``: -1 where the quantity falls as that rises.
    ``factors``: by level, the ends of measured / estimated, of the quantity itself.
    """

    metric: str
    sign: int
    factors: Intervals

    def ends(self, stretch: Stretch) -> tuple[Float, Float]:
        """Lower and upper ends over the estimate (cases × levels) where intervals are stretched."""
        if self.sign > 0:
            return stretch.ends(self.factors)
        low, high = stretch.ends(invert_factors(self.factors))  # the metric's
        return 1 / high, 1 / low


def widen_band(band: Band, spread: float) -> Band:
    """The band where what is measured varies by ``spread`` besides.

    ``spread``: standard deviation of the logarithm, independent of the error of the estimate: each
    end moves out so that squares of logarithms add, as for normal errors.
    """

    def end(factor: float, level: Level) -> float:
        return math.hypot(math.log(factor), quantile_score(level) * spread)

    factors = {
        level: (math.exp(-end(low, level)), math.exp(end(high, level)))
        for level, (low, high) in band.factors.items()
    }
    independent = math.hypot(band.independent, spread)
    return band.model_copy(update={"factors": factors, "independent": independent})


def enclosing_band(first: Band, second: Band) -> Band:
    """The band of a figure whose errors are those of either of two: it holds both."""

    def ends(level: Level) -> Ends:
        (low, high), (second_low, second_high) = first.factors[level], second.factors[level]
        return min(low, second_low), max(high, second_high)

    return first.model_copy(
        update={
            "factors": {level: ends(level) for level in LEVELS},
            "common": max(first.common, second.common),
            "independent": max(first.independent, second.independent),
        }
    )


class EngineGap(DataRow):
    """The difference between two engines that run the same, as estimates tell it.

    ``apart``: standard deviation of log(measured / estimated) of one over the other's.
    ``measured_share``: of an estimated difference (a logarithm) what is measured, on average.
    ``pairs`` of runs and ``cells`` (device × model) show it.
    """

    apart: Sigma
    measured_share: Annotated[float, Field(ge=0, le=1)]
    pairs: Annotated[int, Field(ge=1)]
    cells: Annotated[int, Field(ge=1)]


class BandFile(DataRow):
    """A ``bands.yaml``: bands by figure and group.

    ``correlation``: of the errors of two figures of one run, by both names. ``engines``: by figure,
    what estimates tell of two engines on one device, model, layout and load.
    """

    schema_version: Literal[2]
    source: str
    runs: Annotated[int, Field(ge=1)]
    cells: Annotated[int, Field(ge=1)]
    correlation: Mapping[Name, dict[Name, Annotated[float, Field(ge=-1, le=1)]]] = {}
    engines: Mapping[Name, EngineGap] = {}
    bands: tuple[Band, ...]

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if len(self._by_key) < len(self.bands):
            raise ValueError("two bands have the same metric and group; keep one")
        for metric in {band.metric for band in self.bands}:
            if (metric, *(None for _ in KEYS)) not in self._by_key:
                raise ValueError(f"{metric} has no band for all groups; add one without keys")
        return self

    @cached_property
    def _by_key(self) -> dict[tuple[str | None, ...], Band]:
        return {band.key: band for band in self.bands}

    def band(self, metric: str, groups: Iterable[Sequence[str]], values: Mapping[str, str]) -> Band:
        """The band of a figure in the first of ``groups`` (names of keys) that there is.

        Raises:
            KeyError: for a figure that has no band.
        """
        for names in groups:
            key = (metric, *(values[name] if name in names else None for name in KEYS))
            if key in self._by_key:
                return self._by_key[key]
        return self._by_key[(metric, *(None for _ in KEYS))]

    def errors(self, metrics: Sequence[str], bands: Sequence[Band]) -> tuple[Float, Float]:
        """Covariances of the common and of the independent part of the errors of some figures."""
        common = self._covariance(metrics, [band.common for band in bands])
        return common, self._covariance(metrics, [band.independent for band in bands])

    def engine_errors(self, metrics: Sequence[str], alone: Float) -> Float:
        """Covariances of the part of errors that is an engine's own, beside another on one device.

        ``alone``: those of the independent part, which such differences have, too. Half of the
        variance of a difference is either engine's.
        """
        gaps = [self.engines[name].apart if name in self.engines else 0.0 for name in metrics]
        variances = np.maximum(np.square(gaps) / 2 - np.diag(alone), 0.0)
        return self._covariance(metrics, np.sqrt(variances).tolist())

    def _covariance(self, metrics: Sequence[str], sigmas: Sequence[float]) -> Float:
        """Covariances of the errors of some figures with these standard deviations."""
        corr = np.array(
            [
                [
                    1.0
                    if a == b
                    else self.correlation.get(a, {}).get(b, self.correlation.get(b, {}).get(a, 0.0))
                    for b in metrics
                ]
                for a in metrics
            ]
        )
        return np.asarray(corr * np.outer(sigmas, sigmas))


def better_score(
    gain: Float,
    split_slopes: Float,
    rival_slopes: Float,
    errors: Sequence[tuple[Float, Float]],
    *,
    shared: bool,
) -> Float:
    """Normal scores of measured runs of some splits being better than one of another split.

    ``gain``: logarithm of how much better each is estimated to be (below 0: worse).
    ``split_slopes`` (splits × figures) and ``rival_slopes`` (figures): by how much the logarithm of
    what is compared moves with that of each figure, such as the share of the time to first token in
    the latency of a request.
    ``errors``: covariances of the common and of the independent part of the figures' errors, of the
    splits and of the other one. Where both run on the same device, engine and version (``shared``),
    the common part is the same, and counts only as far as they move differently with it.

    Errors count as normal with a median of 1, so that the split that is estimated to be better has
    at least ½. Without any uncertainty a score is infinite, or 0 for equal splits.
    """
    (common, alone), (rival_common, rival_alone) = errors
    apart = (
        np.einsum("ri,ij,rj->r", split_slopes, alone, split_slopes)
        + rival_slopes @ rival_alone @ rival_slopes
    )
    if shared:
        moved = split_slopes - rival_slopes
        apart = apart + np.einsum("ri,ij,rj->r", moved, common, moved)
    else:
        apart = apart + np.einsum("ri,ij,rj->r", split_slopes, common, split_slopes)
        apart = apart + rival_slopes @ rival_common @ rival_slopes
    sigma = np.sqrt(np.maximum(apart, 0.0))
    certain = np.where(gain > 0, np.inf, np.where(gain < 0, -np.inf, 0.0))
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.where(sigma > 0, gain / sigma, certain))


def normal_probability(scores: Float) -> Float:
    """The standard normal distribution at every score; each different one is computed once."""
    different, places = np.unique(scores, return_inverse=True)
    chances = [0.5 * math.erfc(-score / math.sqrt(2)) for score in different.tolist()]
    return np.array(chances)[places]
