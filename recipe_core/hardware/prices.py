"""Price offers, shipped and an operator's own, and the one that a request means."""

from __future__ import annotations

from dataclasses import dataclass

from recipe_core.base.errors import HardwareError, unknown
from recipe_core.base.units import usd
from recipe_core.hardware.offer_tables import own_offers, shipped_offers, shipped_offers_of
from recipe_core.hardware.offers import Offer, offer_terms
from recipe_core.hardware.profile import Commitment, Device
from recipe_core.hardware.request import HardwareRequest

PRICE_NOTES: dict[Commitment, str] = {
    "spot": "This is a spot price: the provider may reclaim the devices at any time, "
    "which the estimate does not include.",
    "reserved": "This is a reserved price: it is due for the whole term, used or not.",
}


@dataclass(frozen=True, slots=True)
class Price:
    """What an hour of a device costs, in dollars (None: unknown).

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
    """Offers for a device, also those for the shipped one that it is known as, cheapest first."""
    names = {profile.name, profile.known_as or profile.name}
    shipped = [offer for name in names for offer in shipped_offers_of(name)]
    device_offers = [offer for offer in (*shipped, *own_offers()) if offer.device in names]
    return sorted(device_offers, key=_offer_order)


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


def default_offer(request: HardwareRequest, matching: list[Offer]) -> Offer | None:
    """The cheapest for the cluster, of the commitment and term; None where there is none.

    First of those that are not unverified, then of machines that hold a node. Whole machines count,
    with devices that the cluster leaves idle.
    """
    commitment = request.commitment or "on-demand"
    fits = [
        offer
        for offer in matching
        if offer.commitment == commitment and request.term_months in (None, offer.term_months)
    ]
    return min(
        fits,
        key=lambda offer: (
            offer.status == "unverified",
            offer.largest < request.per_node,
            offer.usd_per_device_hour
            * -(-request.devices // offer.devices_per_node)
            * offer.devices_per_node,
            offer.name,
        ),
        default=None,
    )


def _named_offer(request: HardwareRequest, profile: Device) -> Offer:
    matching = offers_of(profile)
    offer = next((offer for offer in matching if offer.name == request.offer), None)
    if offer is None:
        kind = f"offer for {profile.name}"
        message, hint = unknown(kind, request.offer, [offer.name for offer in matching])
        raise HardwareError(message, field="hardware.offer", hint=hint)
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
    """What to know of an offer for nodes of ``per_node`` devices; None for nothing."""
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
