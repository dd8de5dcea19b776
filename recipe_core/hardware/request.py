"""The hardware that a request names."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from recipe_core.base.types import Count, Positive, Text
from recipe_core.hardware.profile import Commitment


class HardwareRequest(BaseModel):
    """``per_node`` devices of one kind in each of ``nodes``. Links default to the profile's.

    ``device``: a shipped one by name, or a complete custom profile. The price of an hour is that
    of ``offer``, your own (``usd_per_device_hour``), or the cheapest offer of a ``commitment`` (on
    demand). ``reserved`` may have a term; with your own price, it means that idle hours are paid.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    device: Text | dict[str, Any]
    per_node: Count = 8
    nodes: Count = 1
    fabric: Text | None = None
    network: Text | None = None
    offer: Text | None = None
    usd_per_device_hour: Positive | None = None
    commitment: Commitment | None = None
    term_months: Annotated[int, Field(ge=1, le=120)] | None = None

    @model_validator(mode="after")
    def _term(self) -> Self:
        if self.term_months is not None and self.commitment != "reserved":
            raise ValueError("term_months needs commitment: reserved")
        return self

    @property
    def devices(self) -> int:
        """All devices of the cluster."""
        return self.per_node * self.nodes

    @property
    def device_name(self) -> str:
        """The name of the device, shipped or custom."""
        if isinstance(self.device, str):
            return self.device
        return str(self.device.get("name", "own device"))
