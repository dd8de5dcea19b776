"""What was measured with a recipe.

Records name everything that the figures depend on, and expire.
"""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from recipe_core.base.documented import DESCRIBED

if TYPE_CHECKING:
    from recipe_core.recipe.schema import Recipe


class Claim(BaseModel):
    """One measurement.

    It speaks for a recipe while engine, version, device, count and split are the recipe's, until
    it expires.
    """

    model_config = DESCRIBED

    engine: str
    """Name of the engine that was measured."""

    version: str
    """Version of that engine."""

    image_digest: str | None = None
    """Digest of the container image, where one was known."""

    device: str
    """Name of the device's profile."""

    count: int
    """Devices that were used."""

    candidate: dict[str, Any]
    """Split that was measured, as the recipe's ``candidate``."""

    max_context: int | None = None
    """Longest request that the engine accepted, in tokens; null for training."""

    workload: dict[str, Any]
    """Load under which it was measured, as a request's ``workload``."""

    date: datetime.date
    """Day of the measurement."""

    expires: datetime.date
    """Last day on which the claim counts."""

    metrics: dict[str, float]
    """Measured figures by name; each name ends in its unit."""

    bundle_digest: str | None = None
    """Digest of the recipe whose bundle measured it."""

    def doubts(self, recipe: Recipe, today: datetime.date) -> list[str]:
        """Why it does not speak for a recipe today; none where it does."""
        engine, device = recipe.engine, recipe.device
        same = {
            "engine": (self.engine, self.version) == (engine.name, engine.version),
            "device": (self.count, self.device) == (device.count, device.name),
            "split": self.candidate == recipe.candidate,
        }
        doubts = [f"of another {part}" for part, holds in same.items() if not holds]
        return doubts if today <= self.expires else [f"expired on {self.expires}", *doubts]
