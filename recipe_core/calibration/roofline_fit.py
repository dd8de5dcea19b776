"""The four numbers of a roofline, fitted to the points of a machine's micro-benchmarks.

The form is the estimate's own (`recipe_core.estimates.roofline`); what is minimised is Huber's loss
of the logarithms of predicted over measured: squares up to ``OUTLIER``, straight beyond, so that a
point that something interrupted pulls no harder than others.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from recipe_core.base.arrays import Float
from recipe_core.base.solvers import minimise
from recipe_core.estimates.roofline import smooth_roofline_s
from recipe_core.hardware.microbench.points import Point

# Logarithm of predicted over measured from which a point counts less than its square.
OUTLIER = 0.2
# As many as there are numbers to fit.
FEWEST_POINTS = 4
_LEAST_SHARE, _LEAST_START_S, _MOST_SMOOTHING = 1e-4, 1e-6, 20.0


@dataclass(frozen=True, slots=True)
class RooflineFit:
    """The numbers of one family and dtype, and how far its points are from them.

    ``median_error`` and ``p90_error``: of |predicted / measured - 1|.
    """

    compute_efficiency: float
    memory_efficiency: float
    overhead_s: float
    smoothing: float
    points: int
    median_error: float
    p90_error: float


def fit_roofline(
    points: Sequence[Point], peak_flops_per_s: float, bandwidth_bytes_per_s: float
) -> RooflineFit | None:
    """The numbers that fit the points best, as shares of a peak and a bandwidth.

    None where there are fewer than ``FEWEST_POINTS``.
    """
    if len(points) < FEWEST_POINTS:
        return None
    seconds = np.array([point.timing.seconds for point in points])
    compute_s = np.array([point.flops for point in points]) / peak_flops_per_s
    memory_s = np.array([point.moved_bytes for point in points]) / bandwidth_bytes_per_s
    # points of a case that varied by more than the fit is good for say less
    weights = 1 / np.hypot(0.05, np.array([point.timing.spread for point in points]))
    weights /= weights.sum()

    def predict_seconds(x: Float) -> Float:
        shares = np.clip(1 / (1 + np.exp(-x[:2])), _LEAST_SHARE, 1.0)
        smoothing = min(1.0 + float(np.exp(x[3])), _MOST_SMOOTHING)
        busy_s = smooth_roofline_s(compute_s / shares[0], memory_s / shares[1], smoothing)
        return float(np.exp(x[2])) + busy_s

    def cost(x: Float) -> float:
        off = np.abs(np.log(predict_seconds(x) / seconds))
        loss = np.where(off <= OUTLIER, off**2 / 2, OUTLIER * (off - OUTLIER / 2))
        # a faint pull keeps in place what the points do not reach
        far = np.maximum(np.abs(x[:2]) - 3.0, 0.0) ** 2
        pull = float(far.sum()) + max(0.0, float(x[3]) - 1.8) ** 2
        pull += max(0.0, float(np.log(_LEAST_START_S) - x[2])) ** 2
        return float(np.sum(weights * loss)) + 1e-4 * pull

    least_s = float(seconds.min())
    starts = [
        np.array([logit, logit, np.log(max(share * least_s, _LEAST_START_S)), 0.0])
        for share in (0.1, 0.7)
        for logit in (0.0, 1.5)
    ]
    fits = (minimise(cost, minimise(cost, start)[0]) for start in starts)
    x = min(fits, key=operator.itemgetter(1))[0]
    shares = np.clip(1 / (1 + np.exp(-x[:2])), _LEAST_SHARE, 1.0)
    error = np.abs(predict_seconds(x) / seconds - 1)
    return RooflineFit(
        compute_efficiency=float(shares[0]),
        memory_efficiency=float(shares[1]),
        overhead_s=float(np.exp(x[2])),
        smoothing=min(1.0 + float(np.exp(x[3])), _MOST_SMOOTHING),
        points=len(points),
        median_error=float(np.median(error)),
        p90_error=float(np.quantile(error, 0.9)),
    )
