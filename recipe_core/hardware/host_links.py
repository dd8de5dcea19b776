"""``host_links.yaml``: how fast devices copy from and to the memory of their host."""

from __future__ import annotations

from functools import cache

from recipe_core.base.data_files import DataFile, DataRow
from recipe_core.base.provenance import Quantity, Sourced
from recipe_core.base.resources import PACKAGE
from recipe_core.hardware.profile import Device, Name

FILE = DataFile(PACKAGE / "hardware" / "host_links.yaml", "hardware")


class HostLink(DataRow):
    """The rate of the link of some devices, by name or by architecture."""

    devices: tuple[Name, ...] = ()
    architectures: tuple[str, ...] = ()
    bytes_per_s: Quantity


class HostLinks(Sourced):
    """Rates in order; ``other``: of devices that none names.

    ``host_memory``: at which a host reads its own memory. ``duplex``: both directions at once over
    one alone. ``pinned_share``: of a node's memory that may be pinned for blocks.
    """

    links: tuple[HostLink, ...]
    other: Quantity
    host_memory: Quantity
    duplex: Quantity
    pinned_share: Quantity


@cache
def host_links() -> HostLinks:
    """The whole file; raises InputError where it is malformed."""
    return FILE.read_as(HostLinks)


def link_rates(device: Device) -> tuple[float, float]:
    """Bytes per second to the device, and from it: as its profile measured, else by its kind."""
    usual = _usual_link_rate(device)
    measured = device.transfers
    if measured is None:
        return usual, usual
    to, back = measured.to_device_bytes_per_s, measured.from_device_bytes_per_s
    return to.value if to else usual, back.value if back else usual


def _usual_link_rate(device: Device) -> float:
    names = {device.name, device.known_as}
    for link in host_links().links:
        if names & set(link.devices) or device.architecture in link.architectures:
            return link.bytes_per_s.value
    return host_links().other.value
