"""Price offers by device, provider, region and commitment."""

from __future__ import annotations

from collections import Counter
from typing import get_args

from recipe_core.base.errors import HardwareError, InputError, unknown
from recipe_core.hardware.cluster import device_profile
from recipe_core.hardware.offers import Offer
from recipe_core.hardware.prices import all_offers
from recipe_core.hardware.profile import Commitment


def select_offers(
    device: str | None = None,
    provider: str | None = None,
    region: str | None = None,
    commitment: str | None = None,
) -> list[Offer]:
    """The offers that match all of these, cheapest first; all of them without any.

    Args:
        device: the name or an alias of a profile, or a device of an operator's own table.
        provider: a part of its name, or the word that names of its offers begin with.
        region: a part of its name.
        commitment: ``on-demand``, ``spot`` or ``reserved``.

    Raises:
        InputError: for an unknown device, provider or commitment.
    """
    matches = list(all_offers())
    if device is not None:
        name = _offered_device(device, matches)
        matches = [offer for offer in matches if offer.device == name]
    if provider is not None:
        matches = _offers_of_provider(matches, provider)
    if commitment is not None:
        if commitment not in get_args(Commitment):
            message, hint = unknown("commitment", commitment, get_args(Commitment))
            raise InputError(message, field="commitment", hint=hint)
        matches = [offer for offer in matches if offer.commitment == commitment]
    return [
        offer for offer in matches if region is None or _contains_word(offer.region or "", region)
    ]


def offered_devices() -> dict[str, int]:
    return dict(sorted(Counter(offer.device for offer in all_offers()).items()))


def _offered_device(name: str, listed_offers: list[Offer]) -> str:
    if any(offer.device == name for offer in listed_offers):
        return name
    try:
        return device_profile(name).name
    except HardwareError as error:
        raise HardwareError(error.message, field="device", hint=error.hint) from None


def _offers_of_provider(listed_offers: list[Offer], provider: str) -> list[Offer]:
    providers = sorted({offer.provider for offer in all_offers()})
    first = f"{provider.casefold()}-"
    names = {offer.provider for offer in all_offers() if offer.name.startswith(first)}
    names |= {name for name in providers if _contains_word(name, provider)}
    if not names:
        message, hint = unknown("provider", provider, providers)
        raise InputError(message, field="provider", hint=hint)
    return [offer for offer in listed_offers if offer.provider in names]


def _contains_word(text: str, word: str) -> bool:
    return word.casefold() in text.casefold()
