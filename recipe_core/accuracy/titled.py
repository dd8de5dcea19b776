"""What people call a technique, a runner or a family of hardware."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from recipe_core.base.types import Text


class Titled(BaseModel):
    """One entry of a file; short: what it is called where room is scarce."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    title: Text
    short: Text | None = None

    @property
    def label(self) -> str:
        return self.short or self.title
