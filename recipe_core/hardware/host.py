"""``host_links.yaml``: how fast devices copy from and to the memory of their host."""

from __future__ import annotations

from functools import cache
from typing import Literal

import numpy as np

from recipe_core.base.arrays import Float
from recipe_core.base.data_files import DataFile, DataRow
from recipe_core.base.errors import HardwareError, look_up
from recipe_core.base.provenance import Quantity, Sourced
from recipe_core.base.resources import PACKAGE, shipped_path
from recipe_core.hardware.profile import (
    Device,
    Line,
    Name,
    files_by_name,
    profile_data_file,
    read_profile_file,
)

FIELD = "workload.storage"


class StorageTier(Sourced):
    """A kind of storage as a file of ``hw_profiles/storage/``; rates in bytes per second.

    ``kind``: drives in each node (``local``), a volume of each node over the network (``volume``),
    a file system over it (``network``), or an object store (``object``). ``read_bytes_per_s`` and
    ``write_bytes_per_s`` are of the whole tier; None where it grows with the nodes. ``latency_s``:
    until the first byte of a read arrives.
    """

    name: Name
    title: Line
    kind: Literal["local", "volume", "network", "object"]
    read_bytes_per_s_per_node: Quantity
    write_bytes_per_s_per_node: Quantity
    read_bytes_per_s: Quantity | None = None
    write_bytes_per_s: Quantity | None = None
    latency_s: Quantity

    def read_rate(self, nodes: Float | float) -> Float:
        """Bytes per second that so many nodes read together (one per number of nodes)."""
        return _storage_rate(self.read_bytes_per_s_per_node, self.read_bytes_per_s, nodes)

    def write_rate(self, nodes: Float | float) -> Float:
        """Bytes per second that so many nodes write together (one per number of nodes)."""
        return _storage_rate(self.write_bytes_per_s_per_node, self.write_bytes_per_s, nodes)


def _storage_rate(per_node: Quantity, limit: Quantity | None, nodes: Float | float) -> Float:
    bound = np.inf if limit is None else limit.value
    return np.minimum(np.asarray(nodes, dtype=float) * per_node.value, bound)


def measured_tier(profile: Device) -> StorageTier | None:
    """The storage of each node as `recipe profile --disk` measured it; None where it did not."""
    disk = profile.disk
    if disk is None:
        return None
    reads = disk.window_reads_per_s
    return StorageTier(
        schema_version=1,
        name="measured",
        title=f"storage of {profile.name}, as measured",
        kind="local",
        read_bytes_per_s_per_node=disk.read_bytes_per_s,
        write_bytes_per_s_per_node=disk.write_bytes_per_s,
        latency_s=reads.model_copy(update={"value": 1 / reads.value}),
        sources=profile.sources,
    )


def storage_names() -> list[str]:
    return list(files_by_name(shipped_path("hw_profiles") / "storage"))


@cache
def storage_tier(name: str) -> StorageTier:
    """A storage tier by its name.

    Raises:
        HardwareError: names close ones when there is none, or the wrong field of its file.
    """
    files = files_by_name(shipped_path("hw_profiles") / "storage")
    path = look_up("storage tier", name, files, FIELD, HardwareError)
    tier = read_profile_file(path, StorageTier)
    if tier.name != name:
        hint = f"Rename the file to {tier.name}.yaml, or set `name: {name}`."
        text = f"{tier.name!r} is not its file's name"
        raise profile_data_file(path).problem("name", text, hint)
    return tier


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
