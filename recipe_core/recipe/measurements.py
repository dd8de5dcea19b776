"""What was measured with a recipe: records that name everything the figures depend on, and that expire."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict

if TYPE_CHECKING:
    from recipe_core.recipe.schema import Recipe

VALID_DAYS = 180
"""Days after which a measurement speaks for nothing: drivers, images and clocks have moved on."""


class Claim(BaseModel):
    """One measurement. It speaks for a recipe while engine, version, device, count and split are the recipe's, until ``expires``."""

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

    def doubts(self, recipe: Recipe, today: datetime.date) -> list[str]:
        """Why it does not speak for a recipe today; none where it does."""
        said = [] if today <= self.expires else [f"expired on {self.expires}"]
        pairs = {
            "engine": (
                f"{self.engine} {self.version}",
                f"{recipe.engine.name} {recipe.engine.version}",
            ),
            "device": (
                f"{self.count} × {self.device}",
                f"{recipe.device.count} × {recipe.device.name}",
            ),
            "split": (self.candidate, recipe.candidate),
        }
        return said + [
            f"of another {what}" for what, (mine, wanted) in pairs.items() if mine != wanted
        ]
