"""One split estimated again: in every number format, and with each assumption moved alone.

Degrees, engine, devices and load stay.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np

from recipe_core.accuracy.published import Retained
from recipe_core.base.units import per_second, share_text, significant, usd
from recipe_core.estimates.columns.serving import WIDE, Cases, Setting
from recipe_core.estimates.roofline import product_dtype
from recipe_core.estimates.serving.accuracy import accuracy_of
from recipe_core.estimates.serving.cost import change_quantity
from recipe_core.estimates.serving.estimates import Estimates, estimate_serving
from recipe_core.hardware.profile import Device, Fabric
from recipe_core.models.tensors import bytes_per_value
from recipe_core.plans.plan import Plan
from recipe_core.plans.plan_json import checkpoint_of
from recipe_core.plans.rank import pareto_front
from recipe_core.plans.serving_settings import serving_setting

# Measures that can be followed, by their names in a plan.
FIGURES: dict[str, Callable[[Estimates], float]] = {
    "tpot": lambda e: float(e.serving.tpot_s[0]),
    "ttft": lambda e: float(e.serving.ttft_s[0]),
    "output": lambda e: float(e.serving.output_tokens_per_s[0]),
    "usd": lambda e: float(e.cost.usd_per_million_output_tokens[0]),
    "joules": lambda e: float(e.cost.joules_per_token[0]),
}


@dataclass(frozen=True, slots=True)
class Assumption:
    """An assumption moved down and up by ``share``: a ``column`` of the cases, or hardware.

    ``value_text``: its value, with the unit.
    """

    name: str
    share: float
    value_text: Callable[[Setting, Cases], str]
    column: str = ""
    hardware: Callable[[Setting, float], Setting] | None = None

    def scale(self, setting: Setting, cases: Cases, factor: float) -> tuple[Setting, Cases]:
        """Setting and cases with the assumption ``factor`` times as large."""
        if self.hardware is not None:
            return self.hardware(setting, factor), cases
        values = getattr(cases, self.column) * factor
        if self.column == "prefix_hit":
            hits = np.minimum(values, 0.99)
            return replace(setting, reuse=None), replace(cases, prefix_hit=hits)
        if self.column == "load" and setting.mode == "open":
            return setting, replace(cases, load=values)
        cases = replace(cases, **{self.column: np.maximum(np.round(values), 1.0)})
        # the longest context still holds the lengths
        lengths = cases.input_tokens + cases.output_tokens
        return setting, replace(cases, max_context=np.maximum(cases.max_context, lengths))


@dataclass(frozen=True, slots=True)
class Swing:
    """A measure with one assumption moved by ``share``; NaN where the split cannot run then.

    ``low`` and ``high`` are the assumption's two values, with units.
    """

    name: str
    share: float
    less: float
    more: float
    low: str
    high: str

    def width(self, base: float) -> float:
        """The larger of the distances from ``base``; infinite where the split cannot run."""
        return max(
            abs(value - base) if np.isfinite(value) else np.inf for value in (self.less, self.more)
        )


def tornado(plan: Plan, row: int, measure: str) -> tuple[float, list[Swing]]:
    """The measure of a row, and with each assumption moved alone, the widest swing first."""
    block, i = plan.at(row)
    cases, read = block.cases.take([i]), FIGURES[measure]
    planned = estimate_serving(block.setting, cases)
    base, cases = read(planned), replace(cases, prefix_hit=planned.cases.prefix_hit)
    swings = []
    for assumption in ASSUMPTIONS:
        share = assumption.share
        ends = [assumption.scale(block.setting, cases, 1 + sign * share) for sign in (-1, 1)]
        moved = [estimate_serving(*end) for end in ends]
        less, more = (read(case) if case.feasible[0] else float("nan") for case in moved)
        low, high = (assumption.value_text(*end) for end in ends)
        swings.append(Swing(assumption.name, share, less, more, low, high))
    swings = [swing for swing in swings if swing.width(base) > 1e-4 * abs(base)]
    return base, sorted(swings, key=lambda swing: -swing.width(base))


# Hardware, scaled


def _replace_cluster(setting: Setting, **update: Any) -> Setting:
    return replace(setting, cluster=replace(setting.cluster, **update))


def _memory_bandwidth(setting: Setting, factor: float) -> Setting:
    device = setting.cluster.device
    rate = change_quantity(device.memory_bandwidth_bytes_per_s, lambda value: value * factor)
    faster = device.model_copy(update={"memory_bandwidth_bytes_per_s": rate})
    return _replace_cluster(setting, device=faster)


def _compute(setting: Setting, factor: float) -> Setting:
    device = setting.cluster.device
    peaks = {
        dtype: change_quantity(peak, lambda value: value * factor)
        for dtype, peak in device.peak_flops_per_s.items()
    }
    return _replace_cluster(setting, device=device.model_copy(update={"peak_flops_per_s": peaks}))


def _scale_links(setting: Setting, factor: float) -> Setting:
    def faster(fabric: Fabric) -> Fabric:
        rate = change_quantity(fabric.bandwidth_bytes_per_s, lambda value: value * factor)
        return fabric.model_copy(update={"bandwidth_bytes_per_s": rate})

    cluster = setting.cluster
    beyond = faster(cluster.beyond) if cluster.beyond else None
    fabric, network = faster(cluster.fabric), faster(cluster.network)
    return _replace_cluster(setting, fabric=fabric, network=network, beyond=beyond)


def _scale_price(setting: Setting, factor: float) -> Setting:
    price = setting.cluster.price
    if price.usd_per_device_hour is None:
        return setting
    scaled = replace(price, usd_per_device_hour=price.usd_per_device_hour * factor)
    return _replace_cluster(setting, price=scaled)


# Values, in words


def _load_text(setting: Setting, cases: Cases) -> str:
    load = float(cases.load[0])
    return (
        f"{significant(load)} requests a second"
        if setting.mode == "open"
        else f"{load:,.0f} requests"
    )


def _peak_text(setting: Setting, device: Device) -> str:
    dtype = product_dtype(device, setting.stored_dtype("linear"), widens=setting.widens)
    return per_second(device.peak_flops_per_s[dtype].value, "FLOP")


def _hourly_price_text(usd_per_hour: float | None) -> str:
    return "unknown" if usd_per_hour is None else f"{usd(usd_per_hour)}/h"


# Traffic is known to a factor of two at best; datasheets and price lists within a fifth.
ASSUMPTIONS = (
    Assumption("Input tokens", 0.5, lambda _, c: f"{c.input_tokens[0]:,.0f}", "input_tokens"),
    Assumption("Output tokens", 0.5, lambda _, c: f"{c.output_tokens[0]:,.0f}", "output_tokens"),
    Assumption("Load", 0.5, _load_text, "load"),
    Assumption("Prefix cache hits", 0.5, lambda _, c: share_text(c.prefix_hit[0]), "prefix_hit"),
    Assumption(
        "Memory bandwidth",
        0.2,
        lambda s, _: per_second(s.cluster.device.memory_bandwidth_bytes_per_s.value, "B"),
        hardware=_memory_bandwidth,
    ),
    Assumption(
        "Compute rate", 0.2, lambda s, _: _peak_text(s, s.cluster.device), hardware=_compute
    ),
    Assumption(
        "Link bandwidth",
        0.2,
        lambda s, _: per_second(s.cluster.fabric.bandwidth_bytes_per_s.value, "B"),
        hardware=_scale_links,
    ),
    Assumption(
        "Price of a device",
        0.2,
        lambda s, _: _hourly_price_text(s.cluster.price.usd_per_device_hour),
        hardware=_scale_price,
    ),
)


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
        return 1 - self.retained.value if self.retained.is_known else math.nan

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

    def column(name: str) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        return np.array([getattr(point, name) for point in points], dtype=np.float64)

    cost = column("usd_per_million_output_tokens")
    if not np.isfinite(cost).any():
        cost = -column("output_tokens_per_s_per_gpu")
    axes = (cost, column("tpot_s"), column("lost"))
    among = np.all(np.isfinite(axes), axis=0)
    on = pareto_front(*axes, among=among)
    return [replace(point, front=bool(mark)) for point, mark in zip(points, on, strict=True)]
