"""Pools with their names looked up: device, price, what is paid when, slices, and the region."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from recipe_core.base.errors import HardwareError, InputError, unknown
from recipe_core.fleets.instance import Supply
from recipe_core.fleets.request import (
    PUE,
    WORLD_G_CO2_PER_KWH,
    FleetRequest,
    Pool,
    Reclaims,
    Region,
)
from recipe_core.hardware.cluster import device_profile
from recipe_core.hardware.failures import spot_market
from recipe_core.hardware.prices import OwnershipCost, price_of
from recipe_core.hardware.profile import Commitment, Device
from recipe_core.hardware.request import HardwareRequest
from recipe_core.hardware.slices import Slice, list_geometries, list_slices, sharing_note

# Slices that a pool names to allow all.
ANY = "any"


@dataclass(frozen=True, slots=True)
class ResolvedPool:
    """A pool with its device, its price and the ways in which its devices may be cut.

    ``basis``: where the price is from. ``up``: share of time that a machine serves. ``reclaims``:
    of a machine in an hour. ``keeps_whole``: whether devices may stay whole beside cut ones.
    """

    pool: Pool
    profile: Device
    per_node: int
    usd: float
    basis: str | None
    up: float
    reclaims: float
    region: Region | None
    slices: tuple[Slice, ...]
    cuts: tuple[Mapping[str, int], ...]
    by_device: bool
    keeps_whole: bool = True

    @property
    def devices(self) -> int:
        return self.pool.nodes * self.per_node

    @property
    def co2_per_watt_hour(self) -> float:
        """Grams of CO2 for a watt-hour of its devices, the building's share included."""
        grams = self.region.g_co2_per_kwh if self.region else WORLD_G_CO2_PER_KWH
        return grams * (self.region.pue if self.region else PUE) / 1000.0

    def supply(self) -> Supply:
        """Return the pool as a program counts it."""
        pool = self.pool
        paid = {"owned": "used", "reserved": "fixed"}.get(pool.term)
        return Supply(
            nodes=pool.nodes,
            per_node=self.per_node,
            usd=self.usd,
            paid=paid or ("devices" if self.by_device else "nodes"),  # type: ignore[arg-type]
            racks=min(pool.racks or 1, max(pool.nodes, 1)),
            reserve_usd=pool.reserve.usd_per_device_hour if pool.reserve else None,
            most_watts=pool.power_kw * 1e3 if pool.power_kw else None,
            cuts=self.cuts,
            co2=self.co2_per_watt_hour,
        )


def resolve_pools(request: FleetRequest) -> tuple[ResolvedPool, ...]:
    """Return the pools of a fleet, looked up.

    Raises:
        InputError: naming the field of a pool that is wrong, and the fix.
    """
    regions = {region.name: region for region in request.regions}
    out = []
    for k, pool in enumerate(request.pools):
        try:
            out.append(_resolve(pool, regions))
        except (HardwareError, InputError) as error:
            inside = (error.field or "").removeprefix("hardware").removeprefix(".")
            field = f"pools.{k}.{inside}" if inside else f"pools.{k}"
            raise InputError(error.message, field=field, hint=error.hint) from None
    return tuple(out)


def _resolve(pool: Pool, regions: Mapping[str, Region]) -> ResolvedPool:
    profile = device_profile(pool.device)
    per_node = pool.per_node or profile.node.devices
    usd, basis, unit = _price(pool, profile, per_node)
    reclaims, restart_s = 0.0, 0.0
    if pool.term == "spot":
        habits = pool.reclaims or Reclaims()
        traces = spot_market(profile.architecture).reclaims_per_hour
        reclaims = traces if habits.per_hour is None else habits.per_hour
        restart_s = habits.restart_s
    slices, cuts = _slices(pool, profile)
    return ResolvedPool(
        pool=pool,
        profile=profile,
        per_node=per_node,
        usd=usd,
        basis=basis,
        up=1.0 / (1.0 + reclaims * restart_s / 3600.0),
        reclaims=reclaims,
        region=regions.get(pool.region or ""),
        slices=slices,
        cuts=cuts,
        keeps_whole=_memory_mode(slices) in (None, "nps1"),
        by_device=pool.rented_by == "device"
        or (pool.rented_by is None and pool.reserve is None and unit == 1),
    )


def _price(pool: Pool, profile: Device, per_node: int) -> tuple[float, str | None, int]:
    """Price of a device-hour, where it is from, and the devices that are rented at once."""
    if pool.usd_per_device_hour is not None:
        return pool.usd_per_device_hour, "stated", per_node
    if not pool.is_rented:
        watts = profile.tdp_watts.value
        power = OwnershipCost(capex_usd=0.0, upkeep=0.0, watts=watts)
        return power.usd_per_device_hour, f"its power, {watts:,.0f} W at its limit", per_node
    terms: dict[str, Commitment] = {"on-demand": "on-demand", "spot": "spot"}
    hardware = HardwareRequest(
        device=pool.device,
        per_node=per_node,
        nodes=1,
        offer=pool.offer,
        commitment=None if pool.offer else terms[pool.term],
    )
    price = price_of(hardware, profile)
    if price.usd_per_device_hour is None:
        raise InputError(
            f"is missing, and no {pool.term} price of {profile.title} is known.",
            field="usd_per_device_hour",
            hint="State what a device-hour costs you.",
        )
    unit = price.offer.devices_per_node if price.offer else per_node
    return price.usd_per_device_hour, price.basis, unit


def _slices(pool: Pool, profile: Device) -> tuple[tuple[Slice, ...], tuple[Mapping[str, int], ...]]:
    """The slices that a pool allows, and the cuts of a device that have only these."""
    if not pool.slices:
        return (), ()
    available = {part.name: part for part in list_slices(profile.name)}
    if not available:
        raise InputError(
            f"{pool.slices[0]!r}: {profile.title} is not cut into slices.",
            field="slices",
            hint="Leave them out.",
        )
    names = pool.slices
    if ANY in names:  # with whole devices beside them
        names = tuple(n for n, part in available.items() if _memory_mode([part]) in (None, "nps1"))
    for name in names:
        if name not in available:
            message, hint = unknown("slice", name, list(available))
            raise InputError(message, field="slices", hint=hint)
    memory = {_memory_mode([available[name]]) for name in names}
    if len({*names}) > 1 and memory not in ({None}, {"nps1"}):
        raise InputError(
            f"{', '.join(names)} need modes that devices of one machine do not mix.",
            field="slices",
            hint="Name one slice, or only those of nps1; make a pool of each other mode.",
        )
    geometries = [
        Counter({name: count for name, count in geometry.counts.items() if name in names})
        for geometry in list_geometries(profile.name)
    ]
    cuts = [cut for k, cut in enumerate(geometries) if cut and cut not in geometries[:k]]
    cuts = [cut for cut in cuts if not any(cut < more for more in cuts)]
    return tuple(available[name] for name in names), tuple(cuts)


def _memory_mode(slices: Sequence[Slice]) -> str | None:
    """The memory mode of AMD's partitions, which all devices of a machine have; None for others."""
    modes = [part.name.rpartition("-")[2] for part in slices if "-nps" in part.name]
    return modes[0] if modes else None


def sharing_notes(pools: tuple[ResolvedPool, ...]) -> tuple[str, ...]:
    """Say of ways to share devices without cutting them why no replica is placed on them."""
    return tuple(
        f"{part.pool.name}: {sharing_note(kind, part.profile)}"
        for part in pools
        for kind in part.pool.sharing
    )


def round_trip_ms(pool: ResolvedPool, users: str, regions: Mapping[str, Region]) -> float:
    """Round-trip time from users of a region to a pool, in milliseconds; 0 where none is stated."""
    place = pool.pool.region or users
    for home, away in ((place, users), (users, place)):
        if home != away and home in regions and away in regions[home].round_trip_ms:
            return regions[home].round_trip_ms[away]
    return 0.0
