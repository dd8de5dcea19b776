"""Measured starts: the shipped ``published/cold_starts.csv``, or a table with its columns."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from recipe_core.base.types import Count, Positive, Text
from recipe_core.estimates.measured.runs import Label, read_table

PUBLISHED_STARTS = Path(__file__).with_name("published") / "cold_starts.csv"

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
