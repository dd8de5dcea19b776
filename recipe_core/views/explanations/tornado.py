"""What a split's metrics depend on: each assumption moved alone and the split estimated again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from recipe_core.base.units import per_second, significant, usd
from recipe_core.estimates.columns.serving import Cases, Setting
from recipe_core.estimates.roofline import product_dtype
from recipe_core.estimates.serving.cost import changed
from recipe_core.estimates.serving.estimates import Estimates, estimate
from recipe_core.hardware.profile import Fabric
from recipe_core.plans.serving_plan import ServingPlan

FIGURES: dict[str, Callable[[Estimates], float]] = {
    "tpot": lambda e: float(e.serving.tpot_s[0]),
    "ttft": lambda e: float(e.serving.ttft_s[0]),
    "output": lambda e: float(e.serving.output_tokens_per_s[0]),
    "usd": lambda e: float(e.cost.usd_per_million_output_tokens[0]),
    "joules": lambda e: float(e.cost.joules_per_token[0]),
}
"""Measures that can be followed, by their names on the board."""


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
        counts = np.maximum(np.round(values), 1.0)
        return setting, _long_enough(replace(cases, **{self.column: counts}))


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
        """Largest distance from ``base``; infinite where the split cannot run."""
        return max(
            abs(value - base) if np.isfinite(value) else np.inf for value in (self.less, self.more)
        )


def tornado(board: ServingPlan, row: int, measure: str) -> tuple[float, list[Swing]]:
    """The measure of a row, and with each assumption moved alone, the widest swing first."""
    block, i = board.at(row)
    cases, read = block.cases.take([i]), FIGURES[measure]
    known = estimate(block.setting, cases)
    base, cases = read(known), replace(cases, prefix_hit=known.cases.prefix_hit)
    swings = []
    for assumption in ASSUMPTIONS:
        ends = [
            assumption.scaled(block.setting, cases, factor)
            for factor in (1 - assumption.share, 1 + assumption.share)
        ]
        less, more = (_measured(estimate(*end), read) for end in ends)
        low, high = (assumption.says(*end) for end in ends)
        swings.append(Swing(assumption.name, assumption.share, less, more, low, high))
    swings = [swing for swing in swings if swing.width(base) > 1e-4 * abs(base)]
    return base, sorted(swings, key=lambda swing: -swing.width(base))


def _measured(estimates: Estimates, read: Callable[[Estimates], float]) -> float:
    return read(estimates) if estimates.feasible[0] else float("nan")


def _long_enough(cases: Cases) -> Cases:
    """The cases with a longest context that still holds their lengths."""
    lengths = cases.input_tokens + cases.output_tokens
    return replace(cases, max_context=np.maximum(cases.max_context, lengths))


def _memory_bandwidth(setting: Setting, factor: float) -> Setting:
    device = setting.cluster.device
    rate = changed(device.memory_bandwidth_bytes_per_s, lambda value: value * factor)
    faster = device.model_copy(update={"memory_bandwidth_bytes_per_s": rate})
    return replace(setting, cluster=replace(setting.cluster, device=faster))


def _compute(setting: Setting, factor: float) -> Setting:
    device = setting.cluster.device
    peaks = {
        dtype: changed(peak, lambda value: value * factor)
        for dtype, peak in device.peak_flops_per_s.items()
    }
    faster = device.model_copy(update={"peak_flops_per_s": peaks})
    return replace(setting, cluster=replace(setting.cluster, device=faster))


def _links(setting: Setting, factor: float) -> Setting:
    def faster(fabric: Fabric) -> Fabric:
        rate = changed(fabric.bandwidth_bytes_per_s, lambda value: value * factor)
        return fabric.model_copy(update={"bandwidth_bytes_per_s": rate})

    cluster = setting.cluster
    joined = replace(
        cluster,
        fabric=faster(cluster.fabric),
        network=faster(cluster.network),
        beyond=faster(cluster.beyond) if cluster.beyond else None,
    )
    return replace(setting, cluster=joined)


def _price(setting: Setting, factor: float) -> Setting:
    price = setting.cluster.price
    if price.usd_per_device_hour is None:
        return setting
    scaled = replace(price, usd_per_device_hour=price.usd_per_device_hour * factor)
    return replace(setting, cluster=replace(setting.cluster, price=scaled))


def _count(name: str) -> Callable[[Setting, Cases], str]:
    """A column of counts, of the one case."""
    return lambda _setting, cases: f"{getattr(cases, name)[0]:,.0f}"


def _load(setting: Setting, cases: Cases) -> str:
    load = float(cases.load[0])
    if setting.mode == "open":
        return f"{significant(load)} requests/s"
    return f"{load:,.0f} requests"


def _hits(_setting: Setting, cases: Cases) -> str:
    return f"{cases.prefix_hit[0]:.0%}"


def _bandwidth(setting: Setting, _cases: Cases) -> str:
    return per_second(setting.cluster.device.memory_bandwidth_bytes_per_s.value, "B")


def _peak(setting: Setting, _cases: Cases) -> str:
    device = setting.cluster.device
    dtype = product_dtype(device, setting.stored_dtype("linear"), widens=setting.widens)
    return per_second(device.peak_flops_per_s[dtype].value, "FLOP")


def _link(setting: Setting, _cases: Cases) -> str:
    return per_second(setting.cluster.fabric.bandwidth_bytes_per_s.value, "B")


def _device_hour(setting: Setting, _cases: Cases) -> str:
    price = setting.cluster.price.usd_per_device_hour
    return "unknown" if price is None else f"{usd(price)}/h"


ASSUMPTIONS = (
    Assumption("Input tokens", 0.5, _count("input_tokens"), "input_tokens"),
    Assumption("Output tokens", 0.5, _count("output_tokens"), "output_tokens"),
    Assumption("Load", 0.5, _load, "load"),
    Assumption("Prefix cache hits", 0.5, _hits, "prefix_hit"),
    Assumption("Memory bandwidth", 0.2, _bandwidth, hardware=_memory_bandwidth),
    Assumption("Compute rate", 0.2, _peak, hardware=_compute),
    Assumption("Link bandwidth", 0.2, _link, hardware=_links),
    Assumption("Price of a device", 0.2, _device_hour, hardware=_price),
)
"""Traffic is known to a factor of two at best; datasheets and price lists within a fifth."""
