"""Price offers of ``hw_profiles/offers/``, and the one that a request means."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from recipe_core.base.errors import HardwareError, unknown
from recipe_core.base.resources import root
from recipe_core.hardware.files import named, read
from recipe_core.hardware.profile import Commitment, Device, Offer, OfferFile, terms
from recipe_core.hardware.request import HardwareRequest

PRICE_NOTES: dict[Commitment, str] = {
    "spot": "This is a spot price: the provider may reclaim the devices at any time, "
    "which the estimate does not include.",
    "reserved": "This is a reserved price: it is due for the whole term, used or not.",
}


@cache
def offers() -> tuple[Offer, ...]:
    """All price offers, cheapest first."""
    return _offers_in(tuple(named(root("hw_profiles") / "offers").values()))


@cache
def _offers_in(files: tuple[Path, ...]) -> tuple[Offer, ...]:
    all_offers = [offer for path in files for offer in read(path, OfferFile).offers]
    return tuple(sorted(all_offers, key=lambda offer: (offer.usd_per_device_hour, offer.name)))


@cache
def _naming(*devices: str) -> tuple[Path, ...]:
    """Files whose text has the name of one of the devices: looking for it is quicker than parsing the others."""
    files = named(root("hw_profiles") / "offers").values()
    return tuple(
        path for path in files if any(name in path.read_text(encoding="utf-8") for name in devices)
    )


def offers_of(profile: Device) -> list[Offer]:
    """Offers for a device, also those for the shipped one that it is known as, cheapest first."""
    names = {profile.name, profile.known_as or profile.name}
    return [offer for offer in _offers_in(_naming(*names)) if offer.device in names]


def price_of(
    request: HardwareRequest, profile: Device
) -> tuple[float | None, str | None, Commitment | None]:
    """Price of a device hour, its basis and its commitment.

    The stated price, the named offer, or the cheapest offer of the commitment (on demand).
    """
    if request.usd_per_device_hour is not None:
        if request.offer is not None:
            raise HardwareError(
                "set either an offer or usd_per_device_hour, not both.", field="hardware.offer"
            )
        basis = "stated in the request"
        if request.commitment:
            basis += f", {terms(request.commitment, request.term_months)}"
        return request.usd_per_device_hour, basis, request.commitment
    pick = _named_offer if request.offer is not None else _cheapest
    offer = pick(request, profile)
    if offer is None:
        return None, None, None
    basis = f"{offer.name}, {offer.terms}, {offer.date}"
    return offer.usd_per_device_hour, basis, offer.commitment


def _named_offer(request: HardwareRequest, profile: Device) -> Offer:
    matching = offers_of(profile)
    offer = next((offer for offer in matching if offer.name == request.offer), None)
    if offer is None:
        kind = f"offer for {profile.name}"
        message, hint = unknown(kind, request.offer, [offer.name for offer in matching])
        raise HardwareError(message, field="hardware.offer", hint=hint)
    same_commitment = request.commitment in (None, offer.commitment)
    if not same_commitment or request.term_months not in (None, offer.term_months):
        requested = terms(request.commitment or offer.commitment, request.term_months)
        raise HardwareError(
            f"{offer.name} is {offer.terms}, not {requested}.",
            field="hardware.commitment",
            hint="Leave out the commitment or the offer.",
        )
    return offer


def _cheapest(request: HardwareRequest, profile: Device) -> Offer | None:
    """The cheapest offer; None where no on-demand offer is known.

    Raises:
        HardwareError: where none is known for a commitment that was requested.
    """
    commitment = request.commitment or "on-demand"
    matching = offers_of(profile)
    for offer in matching:
        if offer.commitment == commitment and request.term_months in (None, offer.term_months):
            return offer
    if commitment == "on-demand":
        return None
    known = ", ".join(dict.fromkeys(offer.terms for offer in matching)) or "none"
    raise HardwareError(
        f"no offer for {profile.name} is {terms(commitment, request.term_months)}.",
        field="hardware.commitment",
        hint=f"Available: {known}. Or set your own price as usd_per_device_hour.",
    )
