"""The hardware that a request names."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from recipe_core.base.types import Count, Positive, Text
from recipe_core.hardware.profile import Commitment


class HardwareRequest(BaseModel):
    """Devices on offer: ``per_node`` of one kind in each of ``nodes``. Links come from the profile unless named.

    ``device``: a shipped one by its name, or a whole profile of one's own. The price of an hour is that of ``offer``, or one's own
    (``usd_per_device_hour``), or the cheapest offer of a ``commitment`` (on demand): ``reserved`` may have a term, and says of one's own
    price that it is paid whether the devices are used or not.
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
            raise ValueError("term_months goes with commitment: reserved")
        return self

    @property
    def devices(self) -> int:
        """All devices of the cluster."""
        return self.per_node * self.nodes

    @property
    def device_name(self) -> str:
        """What the device is called."""
        return (
            self.device
            if isinstance(self.device, str)
            else str(self.device.get("name", "own device"))
        )
