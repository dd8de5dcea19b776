"""The price of a device's hour: offers, shipped and an operator's own, or owning it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Self

from pydantic import Field, ValidationError, model_validator

from recipe_core.base.data_files import DataRow
from recipe_core.base.errors import HardwareError, InputError, look_up
from recipe_core.base.problems import first_problem
from recipe_core.base.units import usd
from recipe_core.hardware.market_places import is_on_market_place
from recipe_core.hardware.offer_tables import own_offers, shipped_offers, shipped_offers_of
from recipe_core.hardware.offers import Offer, offer_terms
from recipe_core.hardware.profile import Commitment, Device
from recipe_core.hardware.request import HardwareRequest

HOURS_PER_YEAR = 8760.0
# 730.
HOURS_PER_MONTH = HOURS_PER_YEAR / 12


def price_month(usd_per_hour: float) -> float:
    """Return the US dollars of a month of 730 hours."""
    return usd_per_hour * HOURS_PER_MONTH


Amount = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]


class OwnershipCost(DataRow):
    """The cost of ownership of a device.

    ``capex_usd`` includes its share of server, network and building, written off over ``years`` to
    ``residual``, the share of it that the device is then sold for.

    It draws ``watts`` on average at ``usd_per_kwh``, times ``pue`` (power of the building by power
    of the machines). ``upkeep``: share of capex per year for repair and space, and for staff where
    neither of these says it: ``staff``, another share of capex per year, or
    ``devices_per_engineer`` and ``engineer_usd_per_year``. ``use``: share of the hours in which the
    device works; idle hours cost the same but for power.
    """

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
            problem = first_problem(error)
            hint = "The previous value stays in effect."
            field = problem.field or "staff"
            raise InputError(f"{problem.text}.", field=field, hint=hint) from None

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
        """Return what an hour costs in which the device does nothing: all but power."""
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
    def power_usd_per_hour(self) -> float:
        """``watts / 1000 · pue · usd_per_kwh``: only hours of use draw it."""
        return self.watts / 1e3 * self.pue * self.usd_per_kwh

    @property
    def usd_per_device_hour(self) -> float:
        return self.idle_usd_per_hour / self.use + self.power_usd_per_hour


PRICE_NOTES: dict[Commitment, str] = {
    "spot": "This is a spot price: the provider may reclaim the devices at any time, "
    "which the estimate does not include.",
    "reserved": "This is a reserved price: it is due for the whole term, used or not.",
}


@dataclass(frozen=True, slots=True)
class Price:
    """The price of a device's hour, in dollars (None: unknown).

    ``basis``: where it is from, with its date, status and note. ``commitment``: what it is for;
    ``term_months``: of a reservation. ``remark``: what to know of it beside the commitment; the
    same on every day. ``offer``: None for a price of one's own.
    """

    usd_per_device_hour: float | None = None
    basis: str | None = None
    commitment: Commitment | None = None
    term_months: int | None = None
    remark: str | None = None
    offer: Offer | None = None


# No price and nothing to say of it.
UNKNOWN = Price()


def all_offers() -> tuple[Offer, ...]:
    """All price offers, cheapest first.

    Raises:
        InputError: for an operator's own table that cannot be read.
    """
    return tuple(sorted((*shipped_offers(), *own_offers()), key=_offer_order))


def _offer_order(offer: Offer) -> tuple[float, str]:
    return offer.usd_per_device_hour, offer.name


def offers_of(profile: Device) -> list[Offer]:
    """Offers for a device, also those for the shipped one that it is known as, cheapest first.

    Of a slice that nobody offers those of the whole device, times its share of it.
    """
    if profile.slice_of is not None:
        device_offers = _offers_named({profile.slice_of.device})
        shares = [_slice_offer(offer, profile) for offer in device_offers]
        return sorted(_offers_named({profile.name}) or shares, key=_offer_order)
    names = {profile.name, profile.known_as or profile.name}
    return sorted(_offers_named(names), key=_offer_order)


def _offers_named(names: set[str]) -> list[Offer]:
    shipped = [offer for name in names for offer in shipped_offers_of(name)]
    return [offer for offer in (*shipped, *own_offers()) if offer.device in names]


def _slice_offer(offer: Offer, profile: Device) -> Offer:
    """The share of a device's price that a slice of it has; devices are then slices."""
    share = profile.slice_of.share if profile.slice_of else 1.0
    words = f"{share:.3g} of the price of {offer.device}, which is rented whole"
    update = {
        "device": profile.name,
        "usd_per_device_hour": offer.usd_per_device_hour * share,
        "devices_per_node": 1,
        "most_per_node": profile.node.devices,
        "note": f"{words}; {offer.note}"[:300] if offer.note else words,
    }
    return offer.model_copy(update=update)


def price_of(request: HardwareRequest, profile: Device) -> Price:
    """The stated price, that of the named offer, or of the cheapest of the commitment.

    Without a commitment that is on demand. Unknown where nobody is known to offer it; then the
    remark says so of a commitment that was asked for.

    Raises:
        HardwareError: for an offer that is unknown or contradicts the rest of the request.
    """
    if request.usd_per_device_hour is not None:
        if request.offer is not None:
            raise HardwareError(
                "set either an offer or usd_per_device_hour, not both.", field="hardware.offer"
            )
        basis = "stated in the request"
        if request.commitment:
            basis += f", {offer_terms(request.commitment, request.term_months)}"
        return Price(request.usd_per_device_hour, basis, request.commitment, request.term_months)
    if request.offer is not None:
        offer: Offer | None = _named_offer(request, profile)
    else:
        offer = default_offer(request, offers_of(profile))
    if offer is None:
        return Price(
            commitment=request.commitment,
            term_months=request.term_months,
            remark=_no_offer_note(request, profile),
        )
    return Price(
        offer.usd_per_device_hour,
        offer.basis,
        offer.commitment,
        offer.term_months,
        _offer_remark(offer, request.per_node),
        offer,
    )


def prefer_offers(
    offers: Iterable[Offer], *, market_places: bool = False, older: bool = False
) -> list[Offer]:
    """Return the offers to count with: the surest of those that are there.

    Those of market places only where nobody else offers, or with ``market_places``; of these the
    verified ones of the last 90 days (with ``older``: of any), else verified ones, else all.
    """
    left = list(offers)
    if not market_places:
        left = [offer for offer in left if not is_on_market_place(offer)] or left
    for any_age in (older, True):
        if trusted := [offer for offer in left if offer.is_trusted(older=any_age)]:
            return trusted
    return left


def default_offer(request: HardwareRequest, matching: Iterable[Offer]) -> Offer | None:
    """The cheapest for the cluster, of the commitment and term; None where there is none.

    Of those that ``prefer_offers`` takes, as a search for hardware does, so that hardware that was
    found costs the same when it is chosen; first of machines that hold a node. Whole machines
    count, with devices that the cluster leaves idle.
    """
    commitment = request.commitment or "on-demand"
    fits = [
        offer
        for offer in matching
        if offer.commitment == commitment and request.term_months in (None, offer.term_months)
    ]
    return min(
        prefer_offers(fits),
        key=lambda offer: (
            offer.largest < request.per_node,
            offer.usd_per_device_hour
            * -(-request.devices // offer.devices_per_node)
            * offer.devices_per_node,
            offer.name,
        ),
        default=None,
    )


def _named_offer(request: HardwareRequest, profile: Device) -> Offer:
    offers = {offer.name: offer for offer in offers_of(profile)}
    kind = f"offer for {profile.name}"
    offer = look_up(kind, request.offer, offers, "hardware.offer", HardwareError)
    same_commitment = request.commitment in (None, offer.commitment)
    if not same_commitment or request.term_months not in (None, offer.term_months):
        requested = offer_terms(request.commitment or offer.commitment, request.term_months)
        raise HardwareError(
            f"{offer.name} is {offer.terms}, not {requested}.",
            field="hardware.commitment",
            hint="Leave out the commitment or the offer.",
        )
    return offer


def _offer_remark(offer: Offer, per_node: int) -> str | None:
    """Say what to know of an offer for nodes of ``per_node`` devices; None for nothing."""
    out = []
    if offer.status == "unverified":
        out.append(f"The price of {offer.name} ({offer.date}) is unverified: check it before use.")
    if offer.largest < per_node:
        devices = f"{offer.largest} {'device' if offer.largest == 1 else 'devices'}"
        out.append(
            f"{offer.name} is a machine with {devices}, not {per_node}: a larger one may cost more "
            "per device."
        )
    elif offer.devices_per_node > per_node:
        machine_price = usd(offer.usd_per_machine_hour)
        out.append(
            f"{offer.name} is rented as a machine with {offer.devices_per_node} devices, "
            f"{machine_price} per hour: idle ones are paid for."
        )
    return " ".join(out) or None


def _no_offer_note(request: HardwareRequest, profile: Device) -> str | None:
    """That no offer of the commitment is known; None where none was asked for."""
    if request.commitment in (None, "on-demand"):
        return None
    wanted_terms = offer_terms(request.commitment or "on-demand", request.term_months)
    offered_terms = ", ".join(dict.fromkeys(offer.terms for offer in offers_of(profile))) or "none"
    return (
        f"No offer for {profile.name} is {wanted_terms} (known: {offered_terms}), so its price is "
        "unknown: state your own as usd_per_device_hour."
    )
