"""Measured starts beside their predictions, and how far they are off."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from recipe_core.base.errors import InputError
from recipe_core.estimates.measured.starts import MeasuredStart
from recipe_core.estimates.serving.cold_start import (
    ColdStart,
    Setup,
    engine_phases,
    link_bytes_per_s,
    phases,
    total_of,
)
from recipe_core.estimates.serving.start_numbers import (
    StartNumbers,
    engine_start,
    place_by_name,
    start_numbers,
)
from recipe_core.hardware.cluster import device_profile
from recipe_core.request.over_time import Start

# Phases that are no part of a total, by where it begins.
BEFORE = {
    "node": set[str](),
    "container": {"node", "device plugin", "image"},
    "process": {"node", "device plugin", "image", "container"},
}
# Releases before had no process of their own for the engine, nor the imports of its compiler.
CHILD_FROM, BEFORE_CHILD = "2025-02", 0.5
SCORED = ("total", "weights", "engine init")


def source_half(source: str) -> int:
    """Which half of the sources one belongs to, 0 or 1, by its name's hash."""
    return hashlib.sha256(source.encode()).digest()[0] % 2


def predict_start(run: MeasuredStart, numbers: StartNumbers | None = None) -> ColdStart | None:
    """The same figure as estimated; None where what it depends on is not stated."""
    start_figures = numbers or start_numbers()
    if run.weights_bytes is None and run.phase in ("total", "weights", "download", "restore"):
        return None
    start_figures = _with_streams(run, start_figures)
    start, setup = _start_request(run), _start_setup(run)
    if run.phase == "memory profile" and run.kernels != "none":
        run = run.model_copy(update={"phase": "engine init", "compiles": False, "captures": False})
        start, setup = _start_request(run), _start_setup(run)
    if run.phase == "engine init":
        return total_of(tuple(engine_phases(start, setup, start_figures)), start_figures)
    parts = tuple(phases(start, setup, start_figures))
    if run.phase == "total":
        left_out = BEFORE[run.begins] | (set() if run.ends == "answer" else {"warm-up"})
        return total_of(tuple(part for part in parts if part.name not in left_out), start_figures)
    phase_names = {run.phase, "weights"} if run.phase == "wake" else {run.phase}
    return total_of(tuple(part for part in parts if part.name in phase_names), start_figures)


def _with_streams(run: MeasuredStart, numbers: StartNumbers) -> StartNumbers:
    if run.streams is None:
        return numbers
    streamer = numbers.streams["streamer"].model_copy(update={"value": float(run.streams)})
    return numbers.model_copy(update={"streams": dict(numbers.streams) | {"streamer": streamer}})


def _start_request(run: MeasuredStart) -> Start:
    return Start.model_validate(
        {
            "node": "new" if run.phase in ("node", "device plugin") else _node_state(run),
            "image": run.image,
            "weights": run.place,
            "loader": run.loader,
            "compile_cache": run.compile_cache,
            "wake": run.wake,
        }
    )


def _node_state(run: MeasuredStart) -> str:
    return "new" if run.begins == "node" else "ready"


def _start_setup(run: MeasuredStart) -> Setup:
    engine = engine_start(run.engine)
    if run.image_bytes:
        engine = engine.model_copy(update={"image_bytes": run.image_bytes})
    source = place_by_name(run.place)
    if run.place_bytes_per_s:
        source = replace(source, bytes_per_s=run.place_bytes_per_s)
    if not run.compiles and run.date < CHILD_FROM:
        engine = engine.model_copy(update={"process": engine.process * BEFORE_CHILD})
    return Setup(
        engine=engine.model_copy(update={"builds": run.phase == "engine build"}),
        weights_bytes=run.weights_bytes or 0.0,
        devices=run.devices,
        nodes=1,
        link_bytes_per_s=_link_rate(run.device),
        place=source,
        kernels=run.kernels,
        compiles=run.compiles,
        captures=run.captures,
    )


def _link_rate(name: str) -> float:
    try:
        return link_bytes_per_s(device_profile(name) if name else None)
    except InputError:  # tables name devices that no profile has
        return link_bytes_per_s(None)


@dataclass(frozen=True, slots=True)
class Errors:
    """How far estimates are off: shares of what was measured, and how many bands hold it."""

    runs: int
    median: float
    p90: float
    covered: float


def cold_start_errors(
    runs: Sequence[MeasuredStart], phase: str, numbers: StartNumbers | None = None
) -> Errors:
    """Errors over the runs of a phase that count; NaN where there are none."""
    shares, inside = [], []
    for run in runs:
        estimate = predict_start(run, numbers) if run.phase == phase and not run.exclude else None
        if estimate is not None:
            shares.append(abs(estimate.seconds / run.seconds - 1))
            inside.append(estimate.low_s <= run.seconds <= estimate.high_s)
    if not shares:
        return Errors(0, np.nan, np.nan, np.nan)
    median, high = np.quantile(shares, (0.5, 0.9))
    return Errors(len(shares), float(median), float(high), float(np.mean(inside)))
