"""The form that is fitted, and the search for its numbers."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from recipe_core.base.solvers import minimise
from recipe_core.estimates.roofline import SORT_TOKENS
from recipe_core.hardware.profile import Device

Array = NDArray[np.float64]
NONE: Array = np.zeros(0)


@dataclass(frozen=True)
class Points:
    """Measured points of one device, family and dtype.

    Experts also have tokens, the bytes of rows moved beside the products, and what a point counts.
    """

    device: str
    family: str
    dtype: str
    flops: Array
    bytes: Array
    seconds: Array
    row_bytes: Array = field(default_factory=lambda: NONE)
    tokens: Array = field(default_factory=lambda: NONE)
    weights: Array = field(default_factory=lambda: NONE)


@dataclass(frozen=True)
class Fit:
    """The numbers, with how far they are off; the moe family has two more."""

    compute_efficiency: float
    memory_efficiency: float
    overhead_s: float
    smoothing: float
    row_efficiency: float | None
    sort_s: float | None
    points: int
    median_error: float
    p90_error: float


def predict(x: Array, compute_s: Array, memory_s: Array, rows_s: Array, sorting: Array) -> Array:
    """The form as `recipe_core.estimates.roofline` has it.

    ``x`` holds logit e_c, logit e_m, log overhead, log(smoothing - 1); for experts also logit e_r
    and log sort time, of which ``sorting`` is the share that is reached.
    """
    compute, memory = compute_s * (1.0 + np.exp(-x[0])), memory_s * (1.0 + np.exp(-x[1]))
    r = min(1.0 + float(np.exp(x[3])), 20.0)
    larger, smaller = np.maximum(compute, memory), np.minimum(compute, memory)
    rounded = larger * (1.0 + (smaller / larger) ** r) ** (1.0 / r)
    beside = rows_s * (1.0 + np.exp(-x[4])) + np.exp(x[5]) * sorting if len(rows_s) else 0.0
    return np.asarray(np.exp(x[2]) + rounded + beside, dtype=float)


def peak_of(device: Device, family: str, dtype: str) -> float:
    """The rate a product runs at: attention over any cache in 16 bit, else by the weights' format
    where the device has it.
    """
    peaks = {name: figure.value for name, figure in device.peak_flops_per_s.items()}
    if family.endswith("_decode"):
        return peaks["bf16"]
    return peaks.get({"fp8-block": "fp8"}.get(dtype, dtype), peaks["bf16"])  # type: ignore[call-overload, no-any-return]


def fit_roofline(points: Points, device: Device) -> Fit:
    """The numbers that minimise the mean |log(predicted / measured)|."""
    bandwidth = device.memory_bandwidth_bytes_per_s.value
    sorting = points.tokens / (points.tokens + SORT_TOKENS)
    work = (
        points.flops / peak_of(device, points.family, points.dtype),
        points.bytes / bandwidth,
        points.row_bytes / bandwidth,
        sorting,
    )
    measured, beside = np.log(points.seconds), len(points.row_bytes) > 0
    weights = points.weights if len(points.weights) else np.ones(len(measured))
    weights = weights / weights.sum()
    shares = [0, 1, 4] if beside else [0, 1]

    # a share close to 1 or a start in no time is not believed of a kernel: a faint pull keeps in
    # place what the data do not reach
    def cost(x: Array) -> float:
        pull = 1e-3 * float(
            np.sum(np.maximum(np.abs(x[shares]) - 3.0, 0.0) ** 2) + max(0.0, float(x[3]) - 1.8) ** 2
        )
        pull += 1e-2 * max(0.0, float(np.log(1.5e-6) - x[2])) ** 2
        return float(np.sum(weights * np.abs(np.log(predict(x, *work)) - measured))) + pull

    starts = [
        np.array([1.0, 1.0, np.log(overhead), 0.3, *([0.0, np.log(3e-6)] if beside else [])])
        for overhead in (3e-6, 2e-5)
    ]
    x, _ = min(
        (minimise(cost, minimise(cost, start)[0]) for start in starts), key=lambda result: result[1]
    )
    error = np.abs(predict(x, *work) / points.seconds - 1.0)
    share = {i: float(1.0 / (1.0 + np.exp(-x[i]))) for i in shares}
    return Fit(
        share[0], share[1], float(np.exp(x[2])), min(1.0 + float(np.exp(x[3])), 20.0), share.get(4),
        float(np.exp(x[5])) if beside else None,
        len(measured), float(np.median(error)), float(np.quantile(error, 0.9)),
    )  # fmt: skip
