"""What an hour of a device costs: offers of ``hw_profiles/offers/``, and the one that a request means."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from recipe_core.base.errors import HardwareError, unknown
from recipe_core.base.resources import root
from recipe_core.hardware.files import named, read
from recipe_core.hardware.profile import Commitment, Device, Offer, OfferFile, terms
from recipe_core.hardware.request import HardwareRequest

PRICE_NOTES: dict[Commitment, str] = {
    "spot": "The price is a spot price: the provider takes the devices back when it wants them, which is not in these figures.",
    "reserved": "The price is a reserved one: it is paid for the whole term, whether the devices are used or not.",
}


@cache
def offers() -> tuple[Offer, ...]:
    """All price offers, cheapest first."""
    return _offers_in(tuple(named(root("hw_profiles") / "offers").values()))


@cache
def _offers_in(files: tuple[Path, ...]) -> tuple[Offer, ...]:
    found = [offer for path in files for offer in read(path, OfferFile).offers]
    return tuple(sorted(found, key=lambda offer: (offer.usd_per_device_hour, offer.name)))


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
    """The stated price, the named offer, or the cheapest offer of the commitment (on demand), with its basis and what it is for."""
    if request.usd_per_device_hour is not None:
        if request.offer is not None:
            raise HardwareError(
                "give either an offer or a price per device hour, not both.", field="hardware.offer"
            )
        said = f", {terms(request.commitment, request.term_months)}" if request.commitment else ""
        return request.usd_per_device_hour, f"stated in the request{said}", request.commitment
    chosen = (
        _named_offer(request, profile) if request.offer is not None else _cheapest(request, profile)
    )
    if chosen is None:
        return None, None, None
    return (
        chosen.usd_per_device_hour,
        f"{chosen.name}, {chosen.terms}, {chosen.date}",
        chosen.commitment,
    )


def _named_offer(request: HardwareRequest, profile: Device) -> Offer:
    matching = offers_of(profile)
    chosen = next((offer for offer in matching if offer.name == request.offer), None)
    if chosen is None:
        message, hint = unknown(
            f"offer for {profile.name}", request.offer, [offer.name for offer in matching]
        )
        raise HardwareError(message, field="hardware.offer", hint=hint)
    if request.commitment not in (None, chosen.commitment) or request.term_months not in (
        None,
        chosen.term_months,
    ):
        message = f"{terms(request.commitment or chosen.commitment, request.term_months)} is not what {chosen.name} is: {chosen.terms}."
        raise HardwareError(
            message, field="hardware.commitment", hint="Leave it out, or the offer."
        )
    return chosen


def _cheapest(request: HardwareRequest, profile: Device) -> Offer | None:
    """None where nobody is known to rent the device out on demand; another commitment is an error then, because it was asked for."""
    wanted = request.commitment or "on-demand"
    matching = offers_of(profile)
    found = (
        each
        for each in matching
        if each.commitment == wanted and request.term_months in (None, each.term_months)
    )
    chosen = next(found, None)
    if chosen is None and wanted != "on-demand":
        known = ", ".join(dict.fromkeys(each.terms for each in matching)) or "no offer at all"
        message = (
            f"no offer of {profile.name} is known that is {terms(wanted, request.term_months)}."
        )
        raise HardwareError(
            message,
            field="hardware.commitment",
            hint=f"Known: {known}. Or state your own price as usd_per_device_hour.",
        )
    return chosen
