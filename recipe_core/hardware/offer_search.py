"""Price offers by device, provider, region and commitment."""

from __future__ import annotations

from collections import Counter
from typing import get_args

from recipe_core.base.errors import HardwareError, InputError, unknown
from recipe_core.hardware.cluster import device as device_named
from recipe_core.hardware.offers import Offer
from recipe_core.hardware.prices import offers
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
    found = list(offers())
    if device is not None:
        name = _device(device, found)
        found = [offer for offer in found if offer.device == name]
    if provider is not None:
        found = _of_provider(found, provider)
    if commitment is not None:
        if commitment not in get_args(Commitment):
            message, hint = unknown("commitment", commitment, get_args(Commitment))
            raise InputError(message, field="commitment", hint=hint)
        found = [offer for offer in found if offer.commitment == commitment]
    return [offer for offer in found if region is None or _has(offer.region or "", region)]


def offered_devices() -> dict[str, int]:
    return dict(sorted(Counter(offer.device for offer in offers()).items()))


def _device(name: str, known: list[Offer]) -> str:
    if any(offer.device == name for offer in known):
        return name
    try:
        return device_named(name).name
    except HardwareError as error:
        raise HardwareError(error.message, field="device", hint=error.hint) from None


def _of_provider(found: list[Offer], provider: str) -> list[Offer]:
    every = sorted({offer.provider for offer in offers()})
    first = f"{provider.casefold()}-"
    names = {offer.provider for offer in offers() if offer.name.startswith(first)}
    names |= {name for name in every if _has(name, provider)}
    if not names:
        message, hint = unknown("provider", provider, every)
        raise InputError(message, field="provider", hint=hint)
    return [offer for offer in found if offer.provider in names]


def _has(text: str, word: str) -> bool:
    return word.casefold() in text.casefold()
