"""The cost of an hour of a device that one owns."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from recipe_core.base.errors import InputError

HOURS_PER_YEAR = 8760.0
# 730.
HOURS_PER_MONTH = HOURS_PER_YEAR / 12
Amount = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]


class OwnershipCost(BaseModel):
    """The cost of ownership of a device.

    ``capex_usd`` includes its share of server, network and building, written off over ``years`` to
    ``residual``, the share of it that the device is then sold for.

    It draws ``watts`` on average at ``usd_per_kwh``, times ``pue`` (power of the building by power
    of the machines). ``upkeep``: share of capex per year for repair and space, and for staff where
    neither of these says it: ``staff``, another share of capex per year, or
    ``devices_per_engineer`` and ``engineer_usd_per_year``. ``use``: share of the hours in which the
    device works; idle hours cost the same but for power.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    capex_usd: Amount = 30_000.0
    years: Annotated[float, Field(gt=0, le=30)] = 4.0
    residual: Annotated[float, Field(ge=0, lt=1)] = 0.0
    watts: Amount = 700.0
    usd_per_kwh: Annotated[float, Field(ge=0, le=10)] = 0.12
    pue: Annotated[float, Field(ge=1, le=5)] = 1.3
    upkeep: Annotated[float, Field(ge=0, le=1)] = 0.05
    staff: Annotated[float, Field(ge=0, le=1)] = 0.0
    devices_per_engineer: Annotated[float, Field(gt=0, le=1e9)] | None = None
    engineer_usd_per_year: Amount = 0.0
    use: Annotated[float, Field(gt=0, le=1)] = 1.0

    @model_validator(mode="after")
    def _one_staff(self) -> Self:
        if self.staff and self.devices_per_engineer is not None:
            raise ValueError("give staff as a share or devices_per_engineer, not both")
        if (self.devices_per_engineer is None) != (self.engineer_usd_per_year == 0):
            raise ValueError("give devices_per_engineer and engineer_usd_per_year together")
        return self

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
            text = first["msg"].removeprefix("Value error, ")
            got = f" (got {first['input']!r:.40})" if first["loc"] else ""
            raise InputError(
                f"{text[0].lower()}{text[1:]}{got}.",
                field=".".join(map(str, first["loc"])) or "staff",
                hint="The previous value stays in effect.",
            ) from None

    @property
    def standing_capital_usd_per_hour(self) -> float:
        """Depreciation by hour, used or idle: ``capex · (1 - residual) / (years · 8760)``."""
        return self.capex_usd * (1 - self.residual) / (self.years * HOURS_PER_YEAR)

    @property
    def standing_upkeep_usd_per_hour(self) -> float:
        """Upkeep by hour, used or idle: ``capex · upkeep / 8760``."""
        return self.capex_usd * self.upkeep / HOURS_PER_YEAR

    @property
    def standing_staff_usd_per_hour(self) -> float:
        """Staff by hour, used or idle: a share of capex, or a share of an engineer."""
        yearly = self.capex_usd * self.staff
        if self.devices_per_engineer is not None:
            yearly = self.engineer_usd_per_year / self.devices_per_engineer
        return yearly / HOURS_PER_YEAR

    @property
    def idle_usd_per_hour(self) -> float:
        """What an hour costs in which the device does nothing: all but power."""
        return (
            self.standing_capital_usd_per_hour
            + self.standing_upkeep_usd_per_hour
            + self.standing_staff_usd_per_hour
        )

    @property
    def capital_usd_per_hour(self) -> float:
        """Depreciation by hour of use: ``capex · (1 - residual) / (years · 8760) / use``."""
        return self.standing_capital_usd_per_hour / self.use

    @property
    def upkeep_usd_per_hour(self) -> float:
        """Upkeep by hour of use: ``capex · upkeep / 8760 / use``."""
        return self.standing_upkeep_usd_per_hour / self.use

    @property
    def staff_usd_per_hour(self) -> float:
        return self.standing_staff_usd_per_hour / self.use

    @property
    def power_usd_per_hour(self) -> float:
        """``watts / 1000 · pue · usd_per_kwh``: only hours of use draw it."""
        return self.watts / 1e3 * self.pue * self.usd_per_kwh

    @property
    def usd_per_device_hour(self) -> float:
        return self.idle_usd_per_hour / self.use + self.power_usd_per_hour
