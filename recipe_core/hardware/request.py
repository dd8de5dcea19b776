"""The hardware that a request names."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import BaseModel, Field, model_validator

from recipe_core.base.documented import DESCRIBED
from recipe_core.base.types import Count, Positive, Text
from recipe_core.hardware.profile import Commitment


class HardwareRequest(BaseModel):
    """The devices on offer: one kind, in nodes of equal size."""

    model_config = DESCRIBED

    device: Text | dict[str, Any]
    """Device: the name of a profile, or a whole profile of your own; on the command line also the
    path of one."""

    per_node: Count = 8
    """Devices in a node; of a rack (GB200, GB300 NVL72) at most those of one tray, 4."""

    nodes: Count = 1
    """Nodes in the cluster."""

    fabric: Text | None = None
    """Link between the devices of a node, by name (``nvlink4``); left out, the one in the device's
    profile."""

    network: Text | None = None
    """Link between nodes, by name (``ib-ndr-400``); left out, the one in the device's profile."""

    offer: Text | None = None
    """Price offer to count with, by name; left out, the cheapest that fits ``commitment``, is not
    unverified and of a machine that holds a node. Give either an offer or
    ``usd_per_device_hour``."""

    usd_per_device_hour: Positive | None = None
    """Your own price of one device, in US dollars per hour; left out, an offer's."""

    commitment: Commitment | None = None
    """What the price commits you to: ``on-demand`` by the hour, ``spot`` until the provider takes
    the device back, ``reserved`` for a term, used or not. Selects the cheapest such offer (left
    out: on-demand), or says what your own price is for. A cluster of ``options.hardware`` that
    states no price has that of ``hardware``."""

    term_months: Annotated[int, Field(ge=1, le=120)] | None = None
    """Length of a reservation in months, only with ``commitment: reserved``; left out, any."""

    @model_validator(mode="after")
    def _term(self) -> Self:
        if self.term_months is not None and self.commitment != "reserved":
            raise ValueError("term_months needs commitment: reserved")
        return self

    @property
    def states_price(self) -> bool:
        """Whether it says anything of its price."""
        price_fields = (self.offer, self.usd_per_device_hour, self.commitment)
        return any(value is not None for value in price_fields)

    @property
    def devices(self) -> int:
        return self.per_node * self.nodes

    @property
    def device_name(self) -> str:
        """The name of the device, shipped or custom."""
        if isinstance(self.device, str):
            return self.device
        return str(self.device.get("name", "own device"))
