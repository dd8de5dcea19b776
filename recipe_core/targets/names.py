"""Names that clusters and clouds have for vendors and devices: ``names.yaml``, typed."""

from __future__ import annotations

import math
import re
from functools import cache
from pathlib import Path
from typing import Any

from recipe_core.base.data_files import DataRow
from recipe_core.base.documents import read_shipped
from recipe_core.base.errors import HardwareError
from recipe_core.base.provenance import Sourced
from recipe_core.hardware.cluster import device_profile
from recipe_core.targets.objects import make_object

_LABEL_VALUE = re.compile(r"[A-Za-z0-9]([\w.-]{0,61}[A-Za-z0-9])?", re.ASCII)


class VendorNames(DataRow):
    """The ``resource`` that pods request, the node ``label`` with the device's name.

    ``space`` replaces a space in that label.
    """

    resource: str | None = None
    label: str | None = None
    space: str = "-"
    source: str | None = None


class DeviceNames(DataRow):
    """Names of devices, by profile."""

    source: str
    names: dict[str, str]


class NetworkNames(DataRow):
    """The ``resource`` that a pod requests to reach a network past the kernel.

    ``provider``: whose machines have it, of which a pod asks for each interface; without one, for a
    resource that stands for all.
    """

    resource: str
    provider: str | None = None
    source: str


class MachineNames(DataRow):
    """Network interfaces of a machine's ``type`` with all of its ``devices``.

    ``resource``: what they are called where a provider has a name of its own; ``attach``: the
    Multus network that each needs; ``huge_mib``: MiB of huge pages.
    """

    type: str
    provider: str
    device: str
    devices: int
    interfaces: int
    resource: str | None = None
    attach: str | None = None
    huge_mib: int = 0
    source: str

    def share(self, devices: int) -> int:
        return math.ceil(self.interfaces * devices / self.devices)


class SharedNames(DataRow):
    """The resource that stands for all interfaces past the kernel on a provider's machines."""

    resource: str
    source: str


class SpotNames(DataRow):
    """The ``label``, and its value, of a provider's spot nodes; a taint has the same names."""

    label: str
    value: str
    source: str


class Names(Sourced):
    """The content of ``names.yaml``."""

    vendors: dict[str, VendorNames]
    networks: dict[str, NetworkNames]
    machines: tuple[MachineNames, ...]
    shared: dict[str, SharedNames]
    spot: dict[str, SpotNames]
    slurm: DeviceNames
    sky: DeviceNames
    ray: DeviceNames

    def of(self, vendor: str, runtime: str) -> VendorNames:
        """Those of a device: by what programs it where its vendor has several kinds."""
        return self.vendors.get(runtime) or self.vendors[vendor]

    def machine(self, device: str, type_name: str | None, provider: str) -> MachineNames | None:
        """The rented type of machine; the provider's first with the device where that is open."""
        having = [m for m in self.machines if (m.device, m.provider) == (device, provider)]
        typed_machines = (m for m in having if m.type == type_name)
        return next(typed_machines, having[0] if having else None)


@cache
def cluster_names() -> Names:
    """The shipped ``names.yaml``, parsed once."""
    return Names.model_validate(read_shipped(Path(__file__).with_name("names.yaml")))


def node_affinity(profile: str, vendor: str, runtime: str) -> dict[str, Any] | None:
    """Nodes labelled with one of the driver's names for the device; None where nodes have none."""
    convention = cluster_names().of(vendor, runtime)
    # Drivers' names have spaces; aliases without one are this package's.
    labels = [
        alias.replace(" ", convention.space) for alias in _shipped_aliases(profile) if " " in alias
    ]
    values = [label for label in labels if _LABEL_VALUE.fullmatch(label)]
    if convention.label is None or not values:
        return None
    return dict(make_object("node-affinity", label=convention.label, labels=values))


def _shipped_aliases(profile: str) -> tuple[str, ...]:
    """Other names of the device; none for a profile that is not shipped."""
    try:
        return device_profile(profile).aliases
    except HardwareError:
        return ()
