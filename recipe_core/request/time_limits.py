"""Limits on time to start from (``time_limits.yaml``), as others publish them."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from recipe_core.base.data_files import DataFile
from recipe_core.base.provenance import Sourced
from recipe_core.base.types import Positive

FILE = Path(__file__).with_name("time_limits.yaml")


class TimeLimits(BaseModel):
    """Limits with a title; in milliseconds, as the objective states them."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)
    title: str
    help: str
    source: str
    status: Literal["published"]
    ttft_ms: Positive
    tpot_ms: Positive


class _File(Sourced):
    limits: dict[str, TimeLimits]


@cache
def published_time_limits() -> dict[str, TimeLimits]:
    """The published limits that this version ships, by name.

    Raises:
        InputError: where the file does not fit its schema.
    """
    return DataFile(FILE, "objective.limits").read_as(_File).limits
