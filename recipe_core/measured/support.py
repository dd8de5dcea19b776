"""How well a device is known: what its estimates rest on, and which engines run on it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cache
from typing import Literal

from recipe_core.engines.spec import engine, engine_names
from recipe_core.hardware.cluster import is_own, roofline
from recipe_core.hardware.profile import Device
from recipe_core.measured.serving_runs import published_runs

Level = Literal["measured", "calibrated", "computed", "unsupported"]
SAID: dict[Level, str] = {
    "measured": "Operator timings taken on this device were fitted, and published runs on it are held against the estimates.",
    "calibrated": "Operator timings taken on this device were fitted; no published run of a whole engine is at hand.",
    "computed": "No operator timings of this device are known: its rates count with usual efficiencies, so the bands are wider.",
    "unsupported": "No engine here runs on this device: splits are listed and refused.",
}
OWN_SAID = SAID | {
    "calibrated": "Your profile has operator figures that were fitted or measured; no published run is on exactly this device.",
    "computed": "Your profile has no measured operator figures: its rates count with usual efficiencies, so the bands are wider.",
}


@dataclass(frozen=True, slots=True)
class Support:
    """``level`` with what it means; the engines that run on the device; how many published runs on it come with the package.

    A profile of one's own is calibrated at best: runs on the shipped device that it is based on say
    less of it.
    """

    level: Level
    said: str
    engines: tuple[str, ...]
    runs: int


@cache
def _runs() -> Counter[str]:
    return Counter(run.device for run in published_runs())


def support(profile: Device) -> Support:
    """What is known about a device."""
    engines = tuple(name for name in engine_names() if profile.runtime in engine(name).runtimes)
    fitted = roofline(profile, "gemm", "bf16").status in ("fitted", "measured")
    runs = _runs()[profile.name]
    level: Level = (
        "unsupported"
        if not engines
        else "computed"
        if not fitted
        else "measured"
        if runs
        else "calibrated"
    )
    return Support(level, (OWN_SAID if is_own(profile) else SAID)[level], engines, runs)
