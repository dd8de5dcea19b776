"""What a split's figures depend on: each assumption moved alone, and the same split estimated again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from recipe_core.physics.serving.cost import changed
from recipe_core.physics.serving.estimates import Estimates, estimate
from recipe_core.search.serving_plan import ServingPlan
from recipe_core.space.serving import Cases, Setting

HARDWARE, PRICE, LENGTHS, LOAD = 0.2, 0.2, 0.5, 0.5
"""By how much rates of the hardware, its price, mean lengths and the load are moved, down and up, as a share."""

FIGURES: dict[str, Callable[[Estimates], float]] = {
    "tpot": lambda e: float(e.serving.tpot_s[0]),
    "ttft": lambda e: float(e.serving.ttft_s[0]),
    "output": lambda e: float(e.serving.output_tokens_per_s[0]),
    "usd": lambda e: float(e.cost.usd_per_million_output_tokens[0]),
    "joules": lambda e: float(e.cost.joules_per_token[0]),
}
"""Measures that can be followed, by their names on the board."""


@dataclass(frozen=True, slots=True)
class Swing:
    """One assumption: by what share it was moved, and the figure with less and with more of it (NaN: the split cannot run then)."""

    what: str
    moved: float
    less: float
    more: float

    def width(self, base: float) -> float:
        """How far the figure goes from ``base``; without end where the split cannot run."""
        return max(
            abs(value - base) if np.isfinite(value) else np.inf for value in (self.less, self.more)
        )


def tornado(board: ServingPlan, row: int, measure: str) -> tuple[float, list[Swing]]:
    """The figure of a row as it is, and with each assumption moved alone, the widest swing first."""
    block, i = board.at(row)
    cases, read = block.cases.take([i]), FIGURES[measure]
    base = read(estimate(block.setting, cases))
    swings = []
    for what, moved, change in _assumptions():
        less, more = (
            _read(estimate(*change(block.setting, cases, 1 + sign * moved)), read)
            for sign in (-1, 1)
        )
        swings.append(Swing(what, moved, less, more))
    swings = [swing for swing in swings if swing.width(base) > 1e-4 * abs(base)]
    return base, sorted(swings, key=lambda swing: -swing.width(base))


def _read(found: Estimates, read: Callable[[Estimates], float]) -> float:
    return read(found) if found.feasible[0] else float("nan")


Change = Callable[[Setting, Cases, float], tuple[Setting, Cases]]


def _assumptions() -> Iterator[tuple[str, float, Change]]:
    for what, name in (("Input tokens", "input_tokens"), ("Output tokens", "output_tokens")):
        yield (
            what,
            LENGTHS,
            lambda s, c, f, name=name: (  # type: ignore[misc]
                s,
                _longer(replace(c, **{name: np.maximum(np.round(getattr(c, name) * f), 1.0)})),
            ),
        )
    yield (
        "Load",
        LOAD,
        lambda s, c, f: (
            s,
            replace(
                c, load=c.load * f if s.mode == "open" else np.maximum(np.round(c.load * f), 1.0)
            ),
        ),
    )
    yield (
        "Prefix cache hits",
        LENGTHS,
        lambda s, c, f: (s, replace(c, prefix_hit=np.minimum(c.prefix_hit * f, 0.99))),
    )
    yield (
        "Memory bandwidth",
        HARDWARE,
        lambda s, c, f: (_device(s, "memory_bandwidth_bytes_per_s", f), c),
    )
    yield "Compute rate", HARDWARE, lambda s, c, f: (_peaks(s, f), c)
    yield "Link bandwidth", HARDWARE, lambda s, c, f: (_links(s, f), c)
    yield "Price", PRICE, lambda s, c, f: (_price(s, f), c)


def _longer(cases: Cases) -> Cases:
    """With a longest context that still holds the lengths."""
    return replace(
        cases, max_context=np.maximum(cases.max_context, cases.input_tokens + cases.output_tokens)
    )


def _device(setting: Setting, figure: str, factor: float) -> Setting:
    device = setting.cluster.device
    faster = device.model_copy(
        update={figure: changed(getattr(device, figure), lambda value: value * factor)}
    )
    return replace(setting, cluster=replace(setting.cluster, device=faster))


def _peaks(setting: Setting, factor: float) -> Setting:
    device = setting.cluster.device
    peaks = {
        dtype: changed(peak, lambda value: value * factor)
        for dtype, peak in device.peak_flops_per_s.items()
    }
    return replace(
        setting,
        cluster=replace(
            setting.cluster, device=device.model_copy(update={"peak_flops_per_s": peaks})
        ),
    )


def _links(setting: Setting, factor: float) -> Setting:
    def faster(name: str) -> object:
        fabric = getattr(setting.cluster, name)
        rate = "bandwidth_bytes_per_s"
        return fabric and fabric.model_copy(
            update={rate: changed(getattr(fabric, rate), lambda value: value * factor)}
        )

    joined = {name: faster(name) for name in ("fabric", "network", "beyond")}
    return replace(setting, cluster=replace(setting.cluster, **joined))  # type: ignore[arg-type]


def _price(setting: Setting, factor: float) -> Setting:
    price = setting.cluster.usd_per_device_hour
    return replace(
        setting,
        cluster=replace(
            setting.cluster, usd_per_device_hour=None if price is None else price * factor
        ),
    )
