"""Measured starts beside their predictions, and how far they are off."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from recipe_core.base.errors import InputError
from recipe_core.base.types import Count, Positive, Text
from recipe_core.estimates.measured.runs import PUBLISHED, Label, read_table
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

PUBLISHED_STARTS = PUBLISHED.with_name("cold_starts.csv")

Measured = Literal[
    "node",
    "device plugin",
    "image",
    "container",
    "process",
    "download",
    "weights",
    "compilation",
    "memory profile",
    "graphs",
    "warm-up",
    "wake",
    "restore",
    "engine init",
    "engine build",
    "total",
]


class MeasuredStart(BaseModel):
    """One published figure of a start; an empty cell is a field left out.

    ``phase``: as a cold start has them; ``engine init`` is all between weights and warm-up,
    ``total`` begins with the node, the container or the process (``begins``) and ends when the
    server is ready, or with its first answer (``ends``). ``place``: as
    ``options.start.weights``; ``place_bytes_per_s``: what is stated of it. ``streams``: reads in
    flight, where the loader was told. ``compiles``, ``captures``: whether that release and mode do.
    ``kernels``: built at first use, for a format that the device multiplies (``native``) or not.
    ``exclude``: a reason not to count it.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", defer_build=True, str_strip_whitespace=True
    )

    id: Text
    engine: Text
    version: Label = ""
    model: Label = ""
    weights_bytes: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    device: Label = ""
    devices: Count = 1
    place: Text
    place_bytes_per_s: Positive | None = None
    loader: Text = "default"
    streams: Count | None = None
    image: Literal["pull", "streamed", "cached"] = "cached"
    image_bytes: Positive | None = None
    compiles: bool = False
    captures: bool = True
    compile_cache: bool = False
    kernels: Literal["none", "native", "other"] = "none"
    wake: Literal["cold", "sleep-1", "sleep-2", "snapshot"] = "cold"
    begins: Literal["node", "container", "process"] = "process"
    ends: Literal["ready", "answer"] = "ready"
    phase: Measured
    seconds: Positive
    source: Text
    date: Label = ""
    exclude: Label = ""


def read_starts(path: Path) -> list[MeasuredStart]:
    """The starts of a CSV table; raises InputError as `read_table` does."""
    return read_table(path, MeasuredStart)


@cache
def published_starts() -> tuple[MeasuredStart, ...]:
    """The starts that this version ships, each with its source."""
    return tuple(read_starts(PUBLISHED_STARTS))


# Phases that are no part of a total, by where it begins.
BEFORE = {
    "node": set[str](),
    "container": {"node", "device plugin", "image"},
    "process": {"node", "device plugin", "image", "container"},
}
# Releases before had no process of their own for the engine, nor the imports of its compiler.
CHILD_FROM, BEFORE_CHILD = "2025-02", 0.5
SCORED = ("total", "weights", "engine init")


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
    """Errors of estimates: shares of what was measured, and how many bands hold it."""

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
