"""How far estimates are off: factors around them, by what a device's figures rest on."""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from recipe_core.base.documents import read_shipped
from recipe_core.hardware.cluster import roofline
from recipe_core.space.serving import Setting


class Band(BaseModel):
    """Factors around an estimate that held 80 % of measured runs.

    P10 and p90 of measured / estimated.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)
    low: Annotated[float, Field(gt=0)]
    high: Annotated[float, Field(gt=0)]


class BandFile(BaseModel):
    """``bands.yaml``: bands by what the device's figures rest on, then by quantity."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)
    schema_version: int
    source: str
    bands: dict[str, dict[str, Band]]


@cache
def bands() -> BandFile:
    """The bands this version ships."""
    return BandFile.model_validate(read_shipped(Path(__file__).with_name("bands.yaml")))


def narrowed(band: Band, left: float) -> Band:
    """The band where runs of one's own leave so much of the standard deviation.

    On a log scale its half-width shrinks by ``left``, and its middle, by which estimates are off on
    average, by the square of that: ``1 - left²`` is how far the runs are believed.
    """
    low, high = math.log(band.low), math.log(band.high)
    middle, half = (low + high) / 2 * left**2, (high - low) / 2 * left
    return Band(low=math.exp(max(middle - half, low)), high=math.exp(min(middle + half, high)))


def grade(setting: Setting) -> str:
    """What a device's roofline rests on.

    "fitted" to measurements of it, or "prior" figures of its kind.
    """
    own = roofline(setting.cluster.device, "gemm", setting.model.dtype).status
    return "fitted" if own in ("fitted", "measured") else "prior"
