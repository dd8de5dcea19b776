"""One split in every number format that its device and engine take: accuracy beside cost and time.

The same degrees, engine, devices and load; only the formats of weights and cache differ.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from recipe_core.accuracy.published import Retained
from recipe_core.estimates.columns.serving import WIDE, Setting
from recipe_core.estimates.serving.accuracy import accuracy_of
from recipe_core.estimates.serving.estimates import estimate_serving
from recipe_core.models.tensors import bytes_per_value
from recipe_core.plans.plan import Plan
from recipe_core.plans.plan_json import checkpoint_of
from recipe_core.plans.rank import pareto_front
from recipe_core.plans.serving_settings import serving_setting

# Weight formats that are compared beside 16 bit, where the device has kernels for them.
WEIGHTS = ("fp8", "int8", "int4", "mxfp4", "nvfp4")


@dataclass(frozen=True, slots=True)
class FormatPoint:
    """A split in one pair of formats.

    ``retained``: of the accuracy of the model's base. Figures are NaN where the split does not run
    in these formats, cost also without a price. ``checkpoint``: the one to load, None where it has
    to be made first. ``planned``: it is the split as it was planned; ``front``: no other pair is
    better in accuracy, cost or time per output token without being worse in another.
    """

    weight_dtype: str
    kv_dtype: str
    retained: Retained
    usd_per_million_output_tokens: float
    output_tokens_per_s_per_gpu: float
    tpot_s: float
    checkpoint: str | None
    reasons: tuple[str, ...]
    planned: bool
    front: bool = False

    @property
    def runs(self) -> bool:
        return not self.reasons

    @property
    def lost(self) -> float:
        """The expected share of accuracy that is lost; NaN where unknown."""
        return 1 - self.retained.value if self.retained.known else math.nan

    @property
    def title(self) -> str:
        """``fp8 weights, fp8 cache``."""
        return f"{self.weight_dtype} weights, {self.kv_dtype} cache"


def format_points(plan: Plan, row: int) -> list[FormatPoint]:
    """A row's split in every pair of formats, from the widest weights to the narrowest.

    Limits of the objective do not count: the chart is there to see what they cost.
    """
    points = [_point(plan, row, candidate) for candidate in _format_settings(plan, row)]
    points.sort(
        key=lambda point: (-bytes_per_value(point.weight_dtype), point.kv_dtype not in WIDE)
    )
    return _with_front(points)


def _format_settings(plan: Plan, row: int) -> Iterator[Setting]:
    """Settings of the row's engine and devices in every pair of formats, the row's first."""
    planned = plan.setting(row)
    device, engine, model = planned.cluster.device, planned.engine, planned.model
    yield planned
    pairs = {(planned.weight_dtype, planned.kv_dtype)}
    caches = ["auto", *(dtype for dtype in device.kv_dtypes if dtype not in WIDE)]
    for weights, cache in product((model.dtype, "auto", *WEIGHTS), caches):
        candidate = serving_setting(plan.problem, engine, weights, cache, planned.cluster)
        weights, cache = candidate.weight_dtype, candidate.kv_dtype
        able = weights in device.weight_dtypes and cache in engine.kv_dtypes
        if able and (weights, cache) not in pairs:
            pairs.add((weights, cache))
            yield candidate


def _point(plan: Plan, row: int, candidate: Setting) -> FormatPoint:
    block, i = plan.at(row)
    estimates = estimate_serving(candidate, block.cases.take(np.array([i])))
    reasons = tuple(estimates.reasons(0))

    def figure(value: float) -> float:
        return math.nan if reasons else float(value)

    return FormatPoint(
        candidate.weight_dtype,
        candidate.kv_dtype,
        accuracy_of(candidate),
        figure(estimates.cost.usd_per_million_output_tokens[0]),
        figure(estimates.serving.output_tokens_per_s[0] / estimates.cases.devices[0]),
        figure(estimates.serving.tpot_s[0]),
        checkpoint_of(candidate),
        reasons,
        planned=candidate is plan.setting(row),
    )


def _with_front(points: list[FormatPoint]) -> list[FormatPoint]:
    """The points, those on the front of cost, time and accuracy marked."""

    def column(name: str) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        return np.array([getattr(point, name) for point in points], dtype=np.float64)

    cost = column("usd_per_million_output_tokens")
    if not np.isfinite(cost).any():
        cost = -column("output_tokens_per_s_per_gpu")
    axes = (cost, column("tpot_s"), column("lost"))
    among = np.all(np.isfinite(axes), axis=0)
    on = pareto_front(*axes, among=among)
    return [replace(point, front=bool(mark)) for point, mark in zip(points, on, strict=True)]
