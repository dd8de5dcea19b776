"""Knowledge of a device: what its estimates rest on, and which engines run on it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cache
from typing import Literal

from recipe_core.engines.spec import default_engine, engine, engine_names
from recipe_core.estimates.measured.runs import published_runs
from recipe_core.hardware.cluster import is_own, roofline
from recipe_core.hardware.profile import Device

Level = Literal["measured", "calibrated", "computed", "unsupported"]
_SHIPPED: dict[Level, str] = {
    "measured": "Fitted to operator timings on this device and compared with published runs on it.",
    "calibrated": "Fitted to operator timings on this device; no published run of an engine on it.",
    "computed": "No operator timings of this device: usual efficiencies apply, with wider bands.",
    "unsupported": "No supported engine runs on this device: layouts are listed and refused.",
}
_CUSTOM: dict[Level, str] = {
    **_SHIPPED,
    "calibrated": "Your profile has fitted or measured operator efficiencies; "
    "no published run is on exactly this device.",
    "computed": "Your profile has no measured operator efficiencies: usual ones apply, "
    "with wider bands.",
}


@dataclass(frozen=True, slots=True)
class Support:
    """The support of a device: ``level`` in words, its engines, the number of published runs.

    A custom profile is calibrated at best: runs on its shipped base say less of it.
    """

    level: Level
    basis_text: str
    engines: tuple[str, ...]
    runs: int


@cache
def _runs_by_device() -> Counter[str]:
    return Counter(run.device for run in published_runs())


def is_timed(profile: Device) -> bool:
    """Return whether operators were timed on a device: usual efficiencies apply to the others."""
    return roofline(profile, "gemm", "bf16").status in ("fitted", "measured")


def device_support(profile: Device) -> Support:
    """Return what is known of a device."""
    engines = tuple(name for name in engine_names() if profile.runtime in engine(name).runtimes)
    runs = _runs_by_device()[profile.name]
    level: Level = "calibrated"
    if not engines:
        level = "unsupported"
    elif not is_timed(profile):
        level = "computed"
    elif runs:
        level = "measured"
    texts = _CUSTOM if is_own(profile) else _SHIPPED
    return Support(level, texts[level], engines, runs)


def fitted_engines_for(profile: Device) -> tuple[str, ...]:
    """Engines whose times are fitted on the device's runtime and that split tensors.

    The usual engine alone where there is none.
    """
    fitted_engines = []
    for name in engine_names():
        spec = engine(name)
        overhead = spec.overheads.get(profile.runtime)
        fitted = overhead is not None and overhead.status == "fitted"
        if fitted and spec.split.tensor and spec.wraps is None:
            fitted_engines.append(name)
    return tuple(fitted_engines) or (default_engine(profile.runtime).name,)
