"""What was measured with a recipe: records that name everything the figures depend on, and that expire."""

from __future__ import annotations

import datetime
from typing import Any

from pydantic import BaseModel, ConfigDict


class Claim(BaseModel):
    """One measurement. It speaks for a recipe only while engine, version, device, count and split are the recipe's, until ``expires``."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    engine: str
    version: str
    image_digest: str | None = None
    device: str
    count: int
    candidate: dict[str, Any]
    max_context: int | None = None
    workload: dict[str, Any]
    date: datetime.date
    expires: datetime.date
    metrics: dict[str, float]
    bundle_digest: str | None = None
