"""What an hour of a device of one's own costs."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from recipe_core.base.errors import InputError

HOURS_PER_YEAR = 8760.0
Amount = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]


class OwnershipCost(BaseModel):
    """A device that is bought: ``capex_usd`` with its share of server, network and building, written off over ``years``.

    ``watts`` it draws on average, at ``usd_per_kwh``, times ``pue`` (power of the building by power of the machines). ``upkeep``: of capex
    a year, for repair, space and people. ``use``: share of the hours in which it works; the others are paid for all the same.
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
        """From plain values; raises InputError naming the one that makes no sense."""
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            said = f"{first['msg'][0].lower()}{first['msg'][1:]} (got {first.get('input')!r:.40})."
            raise InputError(
                said, field=".".join(map(str, first["loc"])), hint="The figure before is kept."
            ) from None

    @property
    def capital_usd_per_hour(self) -> float:
        """What is written off, by hour of use: ``capex / (years · 8760) / use``."""
        return self.capex_usd / (self.years * HOURS_PER_YEAR) / self.use

    @property
    def upkeep_usd_per_hour(self) -> float:
        """``capex · upkeep / 8760 / use``."""
        return self.capex_usd * self.upkeep / HOURS_PER_YEAR / self.use

    @property
    def power_usd_per_hour(self) -> float:
        """``watts / 1000 · pue · usd_per_kwh``: only hours of use draw it."""
        return self.watts / 1e3 * self.pue * self.usd_per_kwh

    @property
    def usd_per_device_hour(self) -> float:
        """All three, of an hour in which the device works."""
        return self.capital_usd_per_hour + self.upkeep_usd_per_hour + self.power_usd_per_hour
