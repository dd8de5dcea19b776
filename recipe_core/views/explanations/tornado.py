"""Dependencies of a split's metrics: each assumption moved alone and the split estimated again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from recipe_core.base.units import per_second, significant, usd
from recipe_core.estimates.columns.serving import Cases, Setting
from recipe_core.estimates.roofline import product_dtype
from recipe_core.estimates.serving.cost import change_quantity
from recipe_core.estimates.serving.estimates import Estimates, estimate_serving
from recipe_core.hardware.profile import Device, Fabric
from recipe_core.plans.plan import Plan

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

    ``says``: its value, with the unit.
    """

    name: str
    share: float
    says: Callable[[Setting, Cases], str]
    column: str = ""
    hardware: Callable[[Setting, float], Setting] | None = None

    def scaled(self, setting: Setting, cases: Cases, factor: float) -> tuple[Setting, Cases]:
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
        share, says = assumption.share, assumption.says
        ends = [assumption.scaled(block.setting, cases, 1 + sign * share) for sign in (-1, 1)]
        moved = [estimate_serving(*end) for end in ends]
        less, more = (read(case) if case.feasible[0] else float("nan") for case in moved)
        low, high = (says(*end) for end in ends)
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
    return f"{significant(load)} requests/s" if setting.mode == "open" else f"{load:,.0f} requests"


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
    Assumption("Prefix cache hits", 0.5, lambda _, c: f"{c.prefix_hit[0]:.0%}", "prefix_hit"),
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
