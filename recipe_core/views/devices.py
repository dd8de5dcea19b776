"""Devices to choose from, as a table: what each is, costs and rests on, and usual numbers of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date

from recipe_core.base.units import GIB, significant
from recipe_core.estimates.measured.support import device_support
from recipe_core.hardware.cluster import device_profile, short_title
from recipe_core.hardware.prices import price_of
from recipe_core.hardware.profile import Device, Dtype, Segment
from recipe_core.hardware.request import HardwareRequest
from recipe_core.views.columns import UNKNOWN, Column
from recipe_core.views.size_view import DOUBT

GROUPS: dict[Segment, str] = {
    "data-centre": "Data centre",
    "workstation": "Workstation",
    "consumer": "Consumer",
    "edge": "Edge",
}
# Numbers of devices that people ask for.
COUNTS = (1, 2, 4, 8, 16)
# Formats by whose dense rate devices are told apart: the first that one multiplies natively.
_RATED: tuple[Dtype, ...] = ("bf16", "fp16", "fp32")


@dataclass(frozen=True, slots=True)
class DeviceRow:
    """A device: GiB of memory, TB/s, dense TFLOP/s in ``rated`` and dollars per device-hour.

    ``priced``: the date of the price, with a mark where that is to be doubted; ``basis``: what its
    times rest on. None where unknown.
    """

    name: str
    title: str
    group: str
    memory_gib: float
    tb_per_s: float
    tflop_per_s: float | None
    rated: str
    usd_per_hour: float | None
    priced: str | None
    basis: str


def device_rows(names: Iterable[str], today: date | None = None) -> list[DeviceRow]:
    """Return devices by their names, by group and title; the price is that of a usual node.

    ``today``: the day against which the age of prices is counted; by default the current one.
    """
    chips = [device_profile(name) for name in names]
    titles = Counter(map(short_title, chips))
    rows = [_device_row(chip, titles[short_title(chip)] == 1, today) for chip in chips]
    groups = list(GROUPS.values())
    return sorted(rows, key=lambda row: (groups.index(row.group), row.title))


def _device_row(chip: Device, is_short: bool, today: date | None) -> DeviceRow:
    rated = next((dtype for dtype in _RATED if dtype in chip.peak_flops_per_s), None)
    price = price_of(HardwareRequest(device=chip.name, per_node=chip.node.devices), chip)
    offer = price.offer
    return DeviceRow(
        chip.name,
        short_title(chip) if is_short else chip.title,
        GROUPS[chip.segment],
        chip.memory_bytes.value / GIB,
        chip.memory_bandwidth_bytes_per_s.value / 1e12,
        chip.peak_flops_per_s[rated].value / 1e12 if rated else None,
        rated or "",
        price.usd_per_device_hour,
        f"{offer.date}{f' {DOUBT}' if offer.marks(today) else ''}" if offer else None,
        "announced" if chip.announcement else device_support(chip).level,
    )


def profile_columns() -> list[Column[DeviceRow]]:
    """Return the columns of that table, with units."""
    rate_help = "Dense, in bf16; of devices without it in the format named"
    return [
        Column("Device", "title", align="left"),
        Column("Group", "group", align="left"),
        Column("Memory (GiB)", "memory_gib", "{:,.0f}".format),
        Column("TB/s", "tb_per_s", "{:.3g}".format, help="Memory bandwidth"),
        Column(
            "TFLOP/s",
            "tflop_per_s",
            significant,
            help=rate_help,
            mark=lambda row: "" if row.rated == "bf16" else f" {row.rated}",
        ),
        Column("$/h", "usd_per_hour", "{:.4g}".format, help="Of one device, on demand"),
        Column(
            "Price of",
            lambda row: row.priced or UNKNOWN,
            align="left",
            help=f"{DOUBT}: unverified or old",
        ),
        Column("Times are", "basis", align="left", help="What estimates of its times rest on"),
    ]


def usual_counts(chip: Device) -> dict[int, dict[str, int]]:
    """Return usual numbers of a device, each with the changes of a request that ask for it.

    Full nodes are filled first; a number that leaves one half empty is left out.
    """
    usual = chip.node.devices
    return {
        count: {"hardware.per_node": min(count, usual), "hardware.nodes": max(count // usual, 1)}
        for count in COUNTS
        if count <= usual or count % usual == 0
    }
