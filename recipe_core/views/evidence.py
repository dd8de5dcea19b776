"""Sources of prices and of devices, as rows and columns of tables."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache

from pydantic import BaseModel

from recipe_core.base.provenance import Status
from recipe_core.hardware.cluster import device_names, device_profile
from recipe_core.hardware.offers import Offer
from recipe_core.hardware.prices import all_offers
from recipe_core.hardware.profile import Device
from recipe_core.views.columns import Column

# Statuses by the words of a page, the surest first.
STATUSES: dict[Status, str] = {
    "measured": "measured",
    "fitted": "fitted to measurements",
    "published": "published by others",
    "datasheet": "datasheet",
    "assumed": "assumed",
}
# Statuses of speeds that come from measurements of the device itself.
SEEN = ("measured", "fitted")
ON_IT = "measured or fitted on it"


@dataclass(frozen=True, slots=True)
class ProviderPrices:
    """Offers of one provider: how many, of how many devices, and how old.

    ``newest`` and ``oldest`` are dates as the offers state them, those with a day first;
    ``age_days`` is of the newest.
    ``doubtful``: offers that are unverified, second-hand or old.
    """

    provider: str
    offers: int
    devices: int
    newest: str
    oldest: str
    age_days: int
    doubtful: int


@dataclass(frozen=True, slots=True)
class DeviceFigures:
    """Figures of one device by where they come from.

    ``speeds``: what the rates of its operators rest on. ``counts``: figures by their status.
    ``sources``: titles of documents and data.
    """

    device: str
    vendor: str
    speeds: str
    counts: dict[Status, int]
    sources: tuple[str, ...]


def provider_prices(
    offers: Iterable[Offer] | None = None, today: datetime.date | None = None
) -> list[ProviderPrices]:
    """Providers of price offers, those with the newest first.

    Args:
        offers: by default all, an operator's own among them.
        today: the day by which ages count.

    Raises:
        InputError: for an operator's own table that cannot be read.
    """
    by_provider: dict[str, list[Offer]] = {}
    for offer in all_offers() if offers is None else offers:
        by_provider.setdefault(offer.provider, []).append(offer)
    rows = []
    for provider, their_offers in by_provider.items():
        # a month or a year says too little of how new an offer is
        aged = sorted(their_offers, key=lambda offer: (len(offer.date) < 10, offer.age_days(today)))
        rows.append(
            ProviderPrices(
                provider,
                len(their_offers),
                len({offer.device for offer in their_offers}),
                aged[0].date,
                aged[-1].date,
                aged[0].age_days(today),
                sum(bool(offer.marks(today)) for offer in their_offers),
            )
        )
    return sorted(rows, key=lambda row: (row.age_days, row.provider))


@cache
def device_figures() -> tuple[DeviceFigures, ...]:
    """Every shipped device with the origins of its figures, those first that were measured."""
    profiles = [device_profile(name) for name in device_names(announced=True)]
    rows = map(_figures_of, profiles)
    return tuple(sorted(rows, key=lambda row: (row.speeds != ON_IT, row.device)))


def _figures_of(profile: Device) -> DeviceFigures:
    counts = Counter(_statuses(profile))
    rooflines = {status for family in profile.roofline.values() for status in _statuses(family)}
    speeds = ON_IT if rooflines & set(SEEN) else "by devices of its kind"
    return DeviceFigures(
        profile.title,
        profile.vendor,
        "announced, not seen running" if profile.announced else speeds,
        {status: counts[status] for status in STATUSES if counts[status]},
        tuple(dict.fromkeys(source.title for source in profile.sources.values())),
    )


def _statuses(value: object) -> Iterator[Status]:
    """The statuses of all figures in a profile, or in a part of it."""
    if isinstance(value, BaseModel):
        status = getattr(value, "status", None)
        if status in STATUSES:
            yield status
        for name in type(value).model_fields:
            yield from _statuses(getattr(value, name))
    elif isinstance(value, dict):
        for part in value.values():
            yield from _statuses(part)


PROVIDERS: tuple[Column[ProviderPrices], ...] = (
    Column("Provider", "provider", align="left"),
    Column("Offers", "offers", "{:,.0f}".format),
    Column("Devices", "devices", "{:,.0f}".format),
    Column("Newest", "newest", align="left"),
    Column("Oldest", "oldest", align="left"),
    Column("Age of the newest", "age_days", "{:,.0f} days".format),
    Column(
        "Doubtful",
        "doubtful",
        "{:,.0f}".format,
        help="Unverified, second-hand, or too old to be taken without a mark",
    ),
)


def _status_column(status: Status, title: str) -> Column[DeviceFigures]:
    def count(row: DeviceFigures) -> int:
        return row.counts.get(status, 0)

    head, about = f"{title[0].upper()}{title[1:]}", f"Figures of the profile that are {title}"
    return Column(head, count, "{:,.0f}".format, help=about)


DEVICES: tuple[Column[DeviceFigures], ...] = (
    Column("Device", "device", align="left"),
    Column("Speeds", "speeds", align="left"),
    *(_status_column(status, title) for status, title in STATUSES.items()),
    Column("Sources", lambda row: "; ".join(row.sources), align="left"),
)
