"""Machines that can be had: what is offered, what is owned, and what nobody is known to offer."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date
from functools import lru_cache
from typing import Any

from recipe_core.base.errors import HardwareError, unknown
from recipe_core.hardware.cluster import cluster, device_names, device_profile, fabric
from recipe_core.hardware.market_places import is_on_market_place
from recipe_core.hardware.offer_tables import own_offers
from recipe_core.hardware.offers import Offer, current_day
from recipe_core.hardware.prices import OwnershipCost, all_offers, offers_of, prefer_offers
from recipe_core.hardware.profile import Device, Vendor
from recipe_core.hardware.request import FIELD, HardwareRequest
from recipe_core.request.size import AnyHardware, Market, Owned, SizeRequest

# A device by its name, or its whole profile.
Named = str | dict[str, Any]


@dataclass(frozen=True, slots=True)
class Machine:
    """A kind of machine: as many as may be had, as one cluster.

    ``hardware``: the cluster, its price named or stated. ``most_devices``: that may be used.
    ``networked``: whether several of them share the network of their device's nodes; over others no
    server is spread. ``elastic``: rented in parts.
    """

    hardware: HardwareRequest
    most_devices: int
    networked: bool
    elastic: bool = False
    owned: bool = False


@dataclass(frozen=True, slots=True)
class Choice:
    """A device to choose from, with the kinds of machines it comes in.

    ``why``: why there is no machine, or no price. ``doubted``: whether its prices are old or
    unverified, as nothing better is known. ``by_name``: whether the request asks for it by name,
    or has it.
    """

    profile: Device
    machines: tuple[Machine, ...]
    priced: bool
    why: str = ""
    doubted: bool = False
    by_name: bool = False


def iter_device_choices(request: SizeRequest) -> Iterator[Choice]:
    """Every device that the request lets in, in the order of their names or as listed.

    Raises:
        HardwareError: for a device or a provider that there is not, naming the field.
    """
    if not isinstance(request.hardware, AnyHardware):
        yield _named_cluster_choice(request.hardware)
        return
    own_prices = tuple(offer.model_dump_json() for offer in own_offers())
    yield from _choices_of(request.market.model_dump_json(), own_prices, current_day())


@lru_cache(maxsize=32)
def _choices_of(market_text: str, _own_prices: tuple[str, ...], _today: date) -> tuple[Choice, ...]:
    """The devices that a market lets in; prices grow old, and an operator may have some."""
    return tuple(_iter_choices(Market.model_validate_json(market_text)))


def _iter_choices(market: Market) -> Iterator[Choice]:
    _check_providers(market)
    listed = market.devices or tuple(device_names())
    profiles: list[Device] = []
    for k, name in enumerate(listed):
        profile = _find_profile(name, f"hardware.any.devices.{k}")
        if profile in profiles:
            continue
        profiles.append(profile)
        if not market.devices and profile.vendor == "cpu" and "cpu" not in market.vendors:
            continue  # processors are chosen from when they are named
        if (market.vendors and profile.vendor not in market.vendors) or (
            market.memory_bytes_at_least
            and profile.memory_bytes.value < market.memory_bytes_at_least
        ):
            continue
        if _is_left_out(profile, market):
            continue
        choice = replace(_offered_choice(profile, name, market), by_name=bool(market.devices))
        if choice.priced or not _lacks_offers(choice, market):
            yield choice
    for k, owned in enumerate(market.owned):
        yield _owned_choice(
            owned, _find_profile(owned.device, f"hardware.any.owned.{k}.device"), market
        )


def _is_left_out(profile: Device, market: Market) -> bool:
    """Return whether only a switch would let a device in; named ones and vendors' only ones are."""
    if market.devices or market.consumer_cards or profile.segment == "data-centre":
        return False
    return profile.vendor not in market.vendors or any(
        other.segment == "data-centre" for other in _devices_of(profile.vendor)
    )


def _lacks_offers(choice: Choice, market: Market) -> bool:
    """Return whether a device without a price is left out; of a vendor that has none it is not."""
    if market.unpriced or choice.by_name:
        return False
    vendor = choice.profile.vendor
    return vendor not in market.vendors or any(map(offers_of, _devices_of(vendor)))


def _devices_of(vendor: Vendor) -> Iterator[Device]:
    profiles = (device_profile(name) for name in device_names())
    return (profile for profile in profiles if profile.vendor == vendor)


def left_out_devices(request: SizeRequest) -> list[tuple[Device, str]]:
    """Devices that only a switch of the market would let in, by name, each with that switch."""
    market = request.market
    if not isinstance(request.hardware, AnyHardware) or market.devices:
        return []
    switches = {"consumer_cards": True, "unpriced": True}
    wide = AnyHardware(any=market.model_copy(update=switches))
    out = []
    for choice in iter_device_choices(request.model_copy(update={"hardware": wide})):
        if _is_left_out(choice.profile, market):
            out.append((choice.profile, "consumer_cards"))
        elif not choice.priced and _lacks_offers(choice, market):
            out.append((choice.profile, "unpriced"))
    return out


def _check_providers(market: Market) -> None:
    """Refuse a provider that offers nothing at all: it would only bar every device."""
    for k, name in enumerate(market.providers):
        if not any(_sells(offer, name) for offer in all_offers()):
            providers = sorted({offer.provider for offer in all_offers()})
            message, hint = unknown("provider", name, providers)
            raise HardwareError(message, field=f"hardware.any.providers.{k}", hint=hint)


def _sells(offer: Offer, name: str) -> bool:
    word = name.casefold()
    return word in offer.provider.casefold() or offer.name.startswith(f"{word}-")


def _find_profile(name: Named, field: str) -> Device:
    try:
        return device_profile(name)
    except HardwareError as error:
        inside = (error.field or "").removeprefix(FIELD)
        raise HardwareError(error.message, field=f"{field}{inside}", hint=error.hint) from None


def _named_cluster_choice(hardware: HardwareRequest) -> Choice:
    place = cluster(hardware)
    is_full_node = hardware.per_node >= place.device.node.devices
    machine = Machine(hardware, hardware.devices, is_full_node or hardware.nodes > 1)
    priced = place.usd_per_device_hour is not None
    why = "" if priced else f"no price of {place.device.title} is known"
    return Choice(place.device, (machine,), priced, why, by_name=True)


def _owned_choice(owned: Owned, profile: Device, market: Market) -> Choice:
    """Machines that one has, priced as stated or by their power."""
    per_node = min(owned.per_node or profile.node.devices, owned.count)
    power = OwnershipCost(capex_usd=0.0, upkeep=0.0, watts=profile.tdp_watts.value)
    price = owned.usd_per_device_hour or power.usd_per_device_hour
    most_devices = min(owned.count, market.most_devices)
    hardware = HardwareRequest(
        device=owned.device,
        per_node=per_node,
        nodes=-(-most_devices // per_node),
        usd_per_device_hour=price,
    )
    return Choice(
        profile,
        (Machine(hardware, most_devices, networked=True, owned=True),),
        priced=True,
        by_name=True,
    )


def _offered_choice(profile: Device, name: Named, market: Market) -> Choice:
    device_offers = [offer for offer in offers_of(profile) if _has_allowed_term(offer, market)]
    if not device_offers:
        commitments = " or ".join(market.commitments)
        machine = _machine_of_offer(profile, name, None, market)
        why = f"no {commitments} price of {profile.title} is known"
        return Choice(profile, (machine,) if machine else (), priced=False, why=why)
    passing_offers = _preferred_offers(
        [offer for offer in device_offers if _passes_filters(offer, market)], market
    )
    best_offers = _drop_beaten_offers(passing_offers, profile, market)
    machines = [
        offered_machine
        for offer in best_offers
        if (offered_machine := _machine_of_offer(profile, name, offer, market))
    ]
    if machines:
        doubted = not any(offer.is_trusted(older=market.older_prices) for offer in best_offers)
        return Choice(profile, tuple(machines), priced=True, doubted=doubted)
    return Choice(profile, (), priced=True, why=_no_offer_text(profile, device_offers, market))


def _has_allowed_term(offer: Offer, market: Market) -> bool:
    if offer.commitment not in market.commitments:
        return False
    short = market.term_months is None or (offer.term_months or 0) <= market.term_months
    return offer.commitment != "reserved" or short


def _passes_filters(offer: Offer, market: Market) -> bool:
    """Return whether an offer passes the filters on providers, regions and how sure a price is."""
    if market.providers and not any(_sells(offer, name) for name in market.providers):
        return False
    region = (offer.region or "").casefold()
    anywhere = region in ("", "any", "global")
    if market.regions and not anywhere:
        words = set(re.split(r"[^a-z0-9]+", region))
        names = [name.casefold() for name in market.regions]
        return any(region.startswith(name) or name in words for name in names)
    return market.unverified or offer.status != "unverified"


def _preferred_offers(offers: Sequence[Offer], market: Market) -> list[Offer]:
    """The surest offers; a market place's where let in, named, or alone to have a named device."""
    let_in = [
        offer
        for offer in offers
        if market.market_places
        or not is_on_market_place(offer)
        or any(_sells(offer, name) for name in market.providers)
    ]
    left = let_in or (offers if market.devices else ())
    return prefer_offers(left, market_places=True, older=market.older_prices)


def _drop_beaten_offers(offers: Sequence[Offer], profile: Device, market: Market) -> list[Offer]:
    """Offers that no other one beats: as cheap, in units as small, of machines as large, networked.

    A network counts where a replica may span machines, or a rack's fabric joins these.
    """
    spans = market.several_machines or bool(market.devices)
    spans |= fabric(profile.node.fabric).spans_nodes
    ranked = sorted(
        offers,
        key=lambda offer: (
            offer.usd_per_device_hour,
            offer.devices_per_node,
            -offer.largest,
            offer.name,
        ),
    )
    out: list[Offer] = []
    for offer in ranked:
        if not any(
            better.devices_per_node <= offer.devices_per_node
            and better.largest >= offer.largest
            and (
                not spans
                or _is_networked(better, profile, market) >= _is_networked(offer, profile, market)
            )
            for better in out
        ):
            out.append(offer)
    return out


def _is_networked(offer: Offer, profile: Device, market: Market) -> bool:
    """Return whether full nodes are rented, which have the network of their device's profile.

    Offers say nothing of networks, and devices that are rented one by one may stand anywhere.
    """
    full = min(profile.node.devices, market.largest_node or profile.node.devices)
    return offer.devices_per_node >= max(full, 2)


def _machine_of_offer(
    profile: Device, name: Named, offer: Offer | None, market: Market
) -> Machine | None:
    """The machines of an offer, or nodes of the device where nobody offers it.

    None where a machine is larger than asked for, or takes more devices than may be rented.
    """
    usual = profile.node.devices
    per_node = offer.largest if offer else usual
    unit = offer.devices_per_node if offer else 1
    most_devices = min(market.largest_node or per_node, market.most_devices)
    if unit > market.most_devices or (market.largest_node and unit > market.largest_node):
        return None
    per_node = min(per_node, most_devices)
    if not _fabric_joins(profile, per_node):  # a rack, or a machine of several boards
        per_node = min(per_node, usual)
    return Machine(
        HardwareRequest(
            device=name,
            per_node=per_node,
            nodes=-(-market.most_devices // per_node),
            offer=offer.name if offer else None,
            commitment=None if offer else market.commitments[0],
        ),
        market.most_devices,
        networked=offer is None or _is_networked(offer, profile, market),
        elastic=unit < per_node,
    )


def _fabric_joins(profile: Device, per_node: int) -> bool:
    inside = fabric(profile.node.fabric)
    if inside.spans_nodes:
        return per_node <= profile.node.devices
    return inside.joins(per_node)


def _no_offer_text(profile: Device, device_offers: Sequence[Offer], market: Market) -> str:
    providers = ", ".join(
        sorted(
            {
                f"{offer.provider} (market place)" if is_on_market_place(offer) else offer.provider
                for offer in device_offers
            }
        )
    )
    smallest = min(offer.devices_per_node for offer in device_offers)
    most_devices = min(market.largest_node or market.most_devices, market.most_devices)
    if smallest > most_devices:
        return (
            f"{profile.title} is rented {smallest} at a time; at most {most_devices} are asked for"
        )
    return f"no offer of {profile.title} passes the filters; offered by {providers}"
