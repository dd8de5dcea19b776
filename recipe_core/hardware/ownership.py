"""The cost of an hour of a device that one owns."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from recipe_core.base.errors import InputError

HOURS_PER_YEAR = 8760.0
Amount = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]


class OwnershipCost(BaseModel):
    """The cost of ownership of a device.

    ``capex_usd`` includes its share of server, network and building, written off over ``years``.

    It draws ``watts`` on average at ``usd_per_kwh``, times ``pue`` (power of the building by power
    of the machines). ``upkeep``: share of capex per year for repair, space and staff. ``use``:
    share of the hours in which the device works; idle hours cost the same but for power.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    capex_usd: Amount = 30_000.0
    years: Annotated[float, Field(gt=0, le=30)] = 4.0
    watts: Amount = 700.0
    usd_per_kwh: Annotated[float, Field(ge=0, le=10)] = 0.12
    pue: Annotated[float, Field(ge=1, le=5)] = 1.3
    upkeep: Annotated[float, Field(ge=0, le=1)] = 0.05
    use: Annotated[float, Field(gt=0, le=1)] = 1.0

    @classmethod
    def of(cls, **values: float) -> OwnershipCost:
        """From plain values.

        Raises:
            InputError: names the value that makes no sense.
        """
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            reason = f"{first['msg'][0].lower()}{first['msg'][1:]}"
            raise InputError(
                f"{reason} (got {first.get('input')!r:.40}).",
                field=".".join(map(str, first["loc"])),
                hint="The previous value stays in effect.",
            ) from None

    @property
    def capital_usd_per_hour(self) -> float:
        """Depreciation by hour of use: ``capex / (years · 8760) / use``."""
        return self.capex_usd / (self.years * HOURS_PER_YEAR) / self.use

    @property
    def upkeep_usd_per_hour(self) -> float:
        """Upkeep by hour of use: ``capex · upkeep / 8760 / use``."""
        return self.capex_usd * self.upkeep / HOURS_PER_YEAR / self.use

    @property
    def power_usd_per_hour(self) -> float:
        """``watts / 1000 · pue · usd_per_kwh``: only hours of use draw it."""
        return self.watts / 1e3 * self.pue * self.usd_per_kwh

    @property
    def usd_per_device_hour(self) -> float:
        """All three, by hour of use."""
        return self.capital_usd_per_hour + self.upkeep_usd_per_hour + self.power_usd_per_hour
