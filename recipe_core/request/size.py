"""The request of a buyer, whose hardware is open: SizeRequest.

Model, workload, objective and options are those of a PlanRequest; ``hardware: any`` stands for
every device that can be had, ``hardware: {any: {…}}`` narrows it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import Discriminator, Field, Tag, model_validator

from recipe_core.base.documented import DescribedModel
from recipe_core.base.errors import InputError
from recipe_core.base.types import Count, Positive, Text
from recipe_core.hardware.profile import Commitment, Vendor
from recipe_core.hardware.request import HardwareRequest
from recipe_core.request.candidate import CandidateRequest
from recipe_core.request.first_error import validate_plain
from recipe_core.request.objective import Objective
from recipe_core.request.schema import Options, PlanRequest, Workload, needs_load

# Devices that a choice may have unless more are asked for.
MOST_DEVICES = 64
Names = Annotated[tuple[Text, ...], Field(max_length=64)]


class Owned(DescribedModel):
    """Machines that one has already."""

    device: Text | dict[str, Any]
    """Device: the name of a profile, or a whole profile of your own."""

    count: Count
    """Devices there are."""

    per_node: Count | None = None
    """Devices in a machine; left out, as in the device's profile, at most ``count``."""

    usd_per_device_hour: Annotated[float, Field(gt=0, le=1e6)] | None = None
    """What an hour of a device costs you, in US dollars; left out, its power at its limit."""


class Market(DescribedModel):
    """The hardware to choose from: what a company can rent, unless a switch lets more in.

    A device, a vendor or a provider that is named is never left out by a switch.
    """

    devices: Annotated[tuple[Text | dict[str, Any], ...], Field(max_length=64)] = ()
    """Devices to choose from, by name or as whole profiles; none named: every shipped one."""

    vendors: tuple[Vendor, ...] = ()
    """Vendors to choose from: ``nvidia``, ``amd``, ``intel``, ``google``, ``aws``, ``cpu``; none
    named: the makers of accelerators, without processors."""

    providers: Names = ()
    """Providers whose offers count, by a part of their name."""

    regions: Names = ()
    """Regions whose offers count, by how their names begin or a word in them (``us``,
    ``eu-west``); offers without a region count too."""

    commitments: Annotated[tuple[Commitment, ...], Field(min_length=1)] = ("on-demand",)
    """What a price may commit to: ``on-demand``, ``spot``, ``reserved``; the cheapest counts."""

    term_months: Annotated[int, Field(ge=1, le=120)] | None = None
    """Longest term of a reservation, in months; left out, any."""

    unverified: bool = True
    """Whether a device may be priced by an offer that nothing verifies, where it has no other."""

    consumer_cards: bool = False
    """Whether cards for consumers and workstations and devices for the edge count; left out, those
    made for data centres do."""

    market_places: bool = False
    """Whether offers of market places count, which rent out machines of others."""

    several_machines: bool = False
    """Whether a replica may span several machines; left out, only where no device holds the load
    with each replica on one."""

    older_prices: bool = False
    """Whether prices more than 90 days old count as newer ones do; left out, only of a device that
    has no newer verified one, and behind devices that have one."""

    unpriced: bool = False
    """Whether devices count that nobody is known to offer: each with the price below which it would
    be the best."""

    most_devices: Annotated[int, Field(ge=1, le=65_536)] = MOST_DEVICES
    """Most devices that a choice may rent or use."""

    largest_node: Count | None = None
    """Most devices in one machine."""

    memory_bytes_at_least: Positive | None = None
    """Least memory of a device, in bytes."""

    usd_per_month: Positive | None = None
    """Budget: the highest price of a month (730 hours), in US dollars."""

    owned: Annotated[tuple[Owned, ...], Field(max_length=16)] = ()
    """Machines that you have; they are chosen from as well."""


class AnyHardware(DescribedModel):
    """Hardware that is not decided yet."""

    any: Market = Market()
    """What to choose from."""


class GrowthRequest(DescribedModel):
    """The growth of the load."""

    per_month: Annotated[float, Field(gt=-1, le=10)]
    """Growth of the load in a month, as a share: 0.05 is 5 %; negative where it falls."""

    months: Annotated[int, Field(ge=1, le=120)] = 36
    """Months to look ahead."""


class AvailabilityRequest(DescribedModel):
    """The availability: how often enough replicas have to be up."""

    target: Annotated[float, Field(gt=0, lt=1)] = 0.999
    """Share of time in which at least as many replicas are up as carry the load within limits."""

    node_mtbf_hours: Positive | None = None
    """Mean time between failures of a machine, in hours; left out, that of published fleets."""

    repair_hours: Annotated[float, Field(ge=0, le=1e6)] | None = None
    """Mean time from a failure until its replicas serve again, in hours; left out, that of a
    rented machine which is replaced."""


class PurchaseRequest(DescribedModel):
    """The cost of buying, against renting."""

    usd_per_device: Positive | None = None
    """Price of a device with its share of server and network, in US dollars; left out, the answer
    says up to which price buying pays."""

    years: Annotated[float, Field(gt=0, le=30)] = 4.0
    """Years over which it is written off."""

    residual: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of the price that it is sold for at the end."""

    usd_per_kwh: Annotated[float, Field(ge=0, le=10)] = 0.12
    """Price of electricity, in US dollars per kilowatt-hour."""

    pue: Annotated[float, Field(ge=1, le=5)] = 1.3
    """Power of the building over power of the machines."""

    upkeep: Annotated[float, Field(ge=0, le=1)] = 0.05
    """Share of the price per year for repair and space."""

    staff: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Share of the price per year for the people who run it."""

    use: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Share of all hours in which the machines work; rented ones are paid for in these only."""

    months: Annotated[int, Field(ge=1, le=600)] = 36
    """Months within which buying should pay."""

    load_by_hour: Annotated[
        tuple[Annotated[float, Field(ge=0, le=1e9)], ...], Field(max_length=24)
    ] = ()
    """Load in each of the 24 hours of a day, relative to each other, the busiest being the
    workload's: for a mixture of owned base and rented peak. Left out, ``busy_hours`` say it."""

    busy_hours: Annotated[int, Field(ge=1, le=24)] = 24
    """Hours of a day with the workload's load; 24: the load is even."""

    quiet_share: Annotated[float, Field(ge=0, le=1)] = 0.3
    """Load of the other hours, as a share of the workload's."""

    @model_validator(mode="after")
    def _a_day(self) -> Self:
        if self.load_by_hour and (len(self.load_by_hour) != 24 or not any(self.load_by_hour)):
            raise ValueError("load_by_hour needs 24 values, one of them above 0")
        if self.load_by_hour and self.busy_hours < 24:
            raise ValueError("load_by_hour says what busy_hours would; leave one of them out")
        return self

    @property
    def day(self) -> tuple[float, ...]:
        """Load by hour, relative to each other; empty where it is even."""
        if self.load_by_hour or self.busy_hours == 24:
            return self.load_by_hour
        return (1.0,) * self.busy_hours + (self.quiet_share,) * (24 - self.busy_hours)


def _is_open(hardware: Any) -> str:
    values = hardware if isinstance(hardware, Mapping) else getattr(hardware, "__dict__", {})
    return "open hardware" if "any" in values else "one cluster"


Hardware = Annotated[
    Annotated[AnyHardware, Tag("open hardware")] | Annotated[HardwareRequest, Tag("one cluster")],
    Discriminator(_is_open),
]


class SizeRequest(DescribedModel):
    """Model, workload and objective: which hardware, how many of it, at what cost."""

    model: Text | dict[str, Any]
    """Model, as in a plan's request."""

    hardware: Hardware
    """``any``, or ``{any: {…}}`` with what to choose from; or one cluster, as in a plan's request,
    for what it carries."""

    workload: Workload
    """Requests to be served, or a run to be trained."""

    objective: Objective = Objective(optimize="cost")
    """What counts most (left out: cost), the limits that come before it, and with which
    ``confidence`` they must hold."""

    options: Options = Options()
    """What the search may vary beyond the layout. No engine named: every engine whose estimates are
    fitted to measurements on the device."""

    candidate: CandidateRequest | None = None
    """What all layouts must agree with; left out, every layout is judged."""

    growth: GrowthRequest | None = None
    """Growth of the load; left out, it stays as it is."""

    availability: AvailabilityRequest | None = None
    """How often enough replicas have to be up; left out, failures are not looked at."""

    purchase: PurchaseRequest | None = None
    """Buying against renting; left out, machines are rented."""

    @model_validator(mode="before")
    @classmethod
    def _spelled_out(cls, value: Any) -> Any:
        """``hardware: any`` in full, a workload without ``kind``, and cost as what counts."""
        if not isinstance(value, Mapping):
            return value
        out = dict(value)
        if out.get("hardware") == "any":
            out["hardware"] = {"any": {}}
        hardware = out.get("hardware")
        if isinstance(hardware, Mapping) and "any" in hardware and hardware["any"] is None:
            out["hardware"] = {"any": {}}
        workload, objective = out.get("workload"), out.get("objective")
        if isinstance(workload, Mapping) and "kind" not in workload:
            out["workload"] = {"kind": "serving", **workload}
        if isinstance(objective, Mapping) and not {"optimize", "weights", "orientation"} & set(
            objective
        ):
            out["objective"] = {"optimize": "cost", **objective}
        return out

    @model_validator(mode="after")
    def _one_load(self) -> Self:
        if self.options.hardware:
            raise ValueError("options.hardware does not go with sizing; name devices in hardware")
        if self.options.loads:
            raise ValueError("options.loads does not go with sizing; the largest load is searched")
        if needs_load(self.workload):
            raise InputError(
                "is missing.",
                field="workload.concurrency",
                hint="State how many users there are at once: sizing finds what holds them.",
            )
        return self

    @classmethod
    def parse(cls, value: Any) -> SizeRequest:
        """The request in ``value``, plain values read from YAML or JSON.

        Raises:
            InputError: naming the first wrong field and what it takes.
        """
        return validate_plain(value, cls, "docs/guide/size.md")

    @property
    def market(self) -> Market:
        """Return what to choose from; nothing but its device where the hardware is one cluster."""
        if isinstance(self.hardware, AnyHardware):
            return self.hardware.any
        return Market(devices=(self.hardware.device,), most_devices=self.hardware.devices)

    def letting_in(self, **switches: bool) -> SizeRequest:
        """Return the request with switches of its market on, by their fields; none turns one off.

        Raises:
            InputError: where the hardware is one cluster, of which a switch lets nothing in.
        """
        on = {name: True for name, value in switches.items() if value}
        if not on:
            return self
        if not isinstance(self.hardware, AnyHardware):
            raise InputError(
                f"is one cluster, which {' and '.join(on)} would not change.",
                field="hardware",
                hint="Set hardware: any.",
            )
        market = self.market.model_copy(update=on)
        return self.model_copy(update={"hardware": AnyHardware(any=market)})

    @property
    def is_training(self) -> bool:
        return self.workload.kind == "training"

    def on(self, hardware: HardwareRequest) -> PlanRequest:
        return PlanRequest(
            model=self.model,
            hardware=hardware,
            workload=self.workload,
            objective=self.objective,
            options=self.options,
            candidate=self.candidate,
        )
