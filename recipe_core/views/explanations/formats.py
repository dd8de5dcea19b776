"""One split in every number format that its device and engine take: accuracy beside cost and time.

The same degrees, engine, devices and load; only the formats of weights and cache differ.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from recipe_core.accuracy.retained import Retained
from recipe_core.estimates.columns.serving import WIDE, Setting
from recipe_core.estimates.serving.estimates import estimate
from recipe_core.models.dtypes import bytes_per_value
from recipe_core.plans.accuracy import accuracy_of, checkpoint_of, technique_of
from recipe_core.plans.rows import pareto_front
from recipe_core.plans.serving_candidates import setting
from recipe_core.plans.serving_plan import ServingPlan

WEIGHTS = ("fp8", "int8", "int4", "mxfp4", "nvfp4")
"""Weight formats that are compared beside 16 bit, where the device has kernels for them."""


@dataclass(frozen=True, slots=True)
class FormatPoint:
    """A split in one pair of formats.

    ``kept``: of the accuracy of the model's base. Figures are NaN where the split does not run in
    these formats, cost also without a price. ``checkpoint``: what is loaded, None where it has to
    be made first. ``own``: whether it is the split as it was planned; ``front``: whether no other
    pair is better in accuracy, cost or time per output token without being worse in another.
    """

    weight_dtype: str
    kv_dtype: str
    techniques: tuple[str, ...]
    kept: Retained
    usd_per_million_output_tokens: float
    output_tokens_per_s_per_gpu: float
    tpot_s: float
    joules_per_token: float
    checkpoint: str | None
    reasons: tuple[str, ...]
    own: bool
    front: bool = False

    @property
    def runs(self) -> bool:
        """Whether the split starts in these formats."""
        return not self.reasons

    @property
    def lost(self) -> float:
        """The expected share of accuracy that is lost; NaN where unknown."""
        return 1 - self.kept.value if self.kept.known else math.nan

    @property
    def title(self) -> str:
        """``fp8 weights, fp8 cache``."""
        return f"{self.weight_dtype} weights, {self.kv_dtype} cache"


def format_points(plan: ServingPlan, row: int) -> list[FormatPoint]:
    """A row's split in every pair of formats, from the widest weights to the narrowest.

    Limits of the objective do not count: the chart is there to see what they cost.
    """
    points = [_point(plan, row, one) for one in _settings(plan, row)]
    points.sort(
        key=lambda point: (-bytes_per_value(point.weight_dtype), point.kv_dtype not in WIDE)
    )
    return _with_front(points)


def _settings(plan: ServingPlan, row: int) -> Iterator[Setting]:
    """Settings of the row's engine and devices in every pair of formats, its own first."""
    own = plan.setting(row)
    place, spec, model = own.cluster, own.engine, own.model
    yield own
    known = {(own.weight_dtype, own.kv_dtype)}
    caches = ["auto", *(dtype for dtype in place.device.kv_dtypes if dtype not in WIDE)]
    for weights in (model.dtype, "auto", *WEIGHTS):
        for cache in caches:
            one = setting(plan.problem, spec, weights, cache, place)
            pair = one.weight_dtype, one.kv_dtype
            able = one.weight_dtype in place.device.weight_dtypes and one.kv_dtype in spec.kv_dtypes
            if able and pair not in known:
                known.add(pair)
                yield one


def _point(plan: ServingPlan, row: int, one: Setting) -> FormatPoint:
    block, i = plan.at(row)
    estimates = estimate(one, block.cases.take(np.array([i])))
    reasons = tuple(estimates.reasons(0))
    runs = not reasons

    def figure(value: float) -> float:
        return float(value) if runs else math.nan

    return FormatPoint(
        one.weight_dtype,
        one.kv_dtype,
        technique_of(one),
        accuracy_of(one),
        figure(estimates.cost.usd_per_million_output_tokens[0]),
        figure(estimates.serving.output_tokens_per_s[0] / estimates.cases.devices[0]),
        figure(estimates.serving.tpot_s[0]),
        figure(estimates.cost.joules_per_token[0]),
        checkpoint_of(one),
        reasons,
        own=one is plan.setting(row),
    )


def _with_front(points: list[FormatPoint]) -> list[FormatPoint]:
    """The points, those on the front of cost, time and accuracy marked."""
    from dataclasses import replace

    def column(name: str) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        return np.array([getattr(point, name) for point in points], dtype=np.float64)

    cost = column("usd_per_million_output_tokens")
    if not np.isfinite(cost).any():
        cost = -column("output_tokens_per_s_per_gpu")
    axes = (cost, column("tpot_s"), column("lost"))
    among = np.all(np.isfinite(axes), axis=0)
    on = pareto_front(*axes, among=among)
    return [replace(point, front=bool(mark)) for point, mark in zip(points, on, strict=True)]
