"""What a price table of others does not say of itself: provider, currency, date, status."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from recipe_core.base.errors import HardwareError, InputError
from recipe_core.hardware.cluster import device
from recipe_core.hardware.offers import OfferStatus, current_day


@dataclass(frozen=True, slots=True)
class Terms:
    """What a table does not say of itself.

    ``usd_per_unit``: dollars for one unit of ``currency``. ``accelerators``: devices by the names
    that the table has for them, before all others.
    """

    provider: str | None = None
    currency: str = "USD"
    usd_per_unit: float | None = None
    date: str | None = None
    status: OfferStatus = "quoted"
    accelerators: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raise InputError for a currency without its rate, or a rate that is none."""
        foreign = self.currency.upper() != "USD"
        if foreign != (self.usd_per_unit is not None):
            raise InputError(
                f"prices in {self.currency} need a rate; those in USD have none.",
                field="usd_per_unit",
                hint="For example --currency EUR --usd-per-unit 1.08.",
            )
        if not re.fullmatch(r"[A-Za-z]{3}", self.currency):
            raise InputError(
                f"{self.currency!r:.40} is not a currency.", field="currency", hint="Such as EUR."
            )
        rate = self.usd_per_unit
        if rate is not None and not (math.isfinite(rate) and rate > 0):
            raise InputError(
                f"{rate} is not a rate.", field="usd_per_unit", hint="Give dollars for one unit."
            )
        for chosen in self.accelerators.values():
            try:
                device(chosen)
            except HardwareError as error:
                raise HardwareError(error.message, field="accelerator", hint=error.hint) from None

    @property
    def day(self) -> str:
        """The date of the prices, by default today."""
        return self.date or current_day().isoformat()

    def usd(self, price: float) -> float:
        """A price of the table in dollars."""
        return round(price * (self.usd_per_unit or 1.0), 6)

    def note(self, *said: str) -> str | None:
        """What an offer says, with the exchange if there was one."""
        rate = f"{self.currency.upper()} at {self.usd_per_unit:g} USD" if self.usd_per_unit else ""
        return "; ".join(filter(None, (*said, rate))) or None
