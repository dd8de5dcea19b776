"""Price offers by device, provider, region and commitment."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
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
    listed = all_offers()
    name = None if device is None else _offered_device(device, listed)
    providers = None if provider is None else _providers_named(provider, listed)
    if commitment not in (None, *get_args(Commitment)):
        message, hint = unknown("commitment", commitment, get_args(Commitment))
        raise InputError(message, field="commitment", hint=hint)
    return [
        offer
        for offer in listed
        if name in (None, offer.device)
        and (providers is None or offer.provider in providers)
        and commitment in (None, offer.commitment)
        and (region is None or _contains_word(offer.region or "", region))
    ]


def offered_devices() -> dict[str, int]:
    return dict(sorted(Counter(offer.device for offer in all_offers()).items()))


def _offered_device(name: str, listed: Sequence[Offer]) -> str:
    if any(offer.device == name for offer in listed):
        return name
    try:
        return device_profile(name).name
    except HardwareError as error:
        raise HardwareError(error.message, field="device", hint=error.hint) from None


def _providers_named(word: str, listed: Sequence[Offer]) -> set[str]:
    first = f"{word.casefold()}-"
    names = {
        offer.provider
        for offer in listed
        if offer.name.startswith(first) or _contains_word(offer.provider, word)
    }
    if not names:
        message, hint = unknown("provider", word, sorted({offer.provider for offer in listed}))
        raise InputError(message, field="provider", hint=hint)
    return names


def _contains_word(text: str, word: str) -> bool:
    return word.casefold() in text.casefold()
