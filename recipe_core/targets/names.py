"""What clusters and clouds call vendors and devices: ``names.yaml`` as typed objects."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from recipe_core.base.documents import read_shipped
from recipe_core.base.errors import HardwareError
from recipe_core.base.provenance import Sourced
from recipe_core.hardware.cluster import device

_LABEL_VALUE = re.compile(r"[A-Za-z0-9]([\w.-]{0,61}[A-Za-z0-9])?", re.ASCII)


class _Data(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)


class VendorNames(_Data):
    """``resource`` a device is asked for by, ``label`` a node tells its devices by, ``space``: what stands for a space there."""

    resource: str | None = None
    label: str | None = None
    space: str = "-"
    source: str | None = None


class DeviceNames(_Data):
    """Names of devices, by profile."""

    source: str
    names: dict[str, str]


class Names(Sourced):
    """The whole file."""

    vendors: dict[str, VendorNames]
    sky: DeviceNames
    ray: DeviceNames


@cache
def names() -> Names:
    """The names that are shipped."""
    return Names.model_validate(read_shipped(Path(__file__).with_name("names.yaml")))


def node_affinity(profile: str, vendor: str) -> dict[str, Any] | None:
    """Nodes whose label says one of the driver's names of the device; None where nodes do not tell."""
    known = names().vendors[vendor]
    told = [alias.replace(" ", known.space) for alias in _aliases(profile) if " " in alias]
    values = [value for value in told if _LABEL_VALUE.fullmatch(value)]
    if known.label is None or not values:
        return None
    rule = {"key": known.label, "operator": "In", "values": values}
    return {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{"matchExpressions": [rule]}]
            }
        }
    }


def _aliases(profile: str) -> tuple[str, ...]:
    """What drivers call the device; nothing where the profile is the user's own and not shipped."""
    try:
        return device(profile).aliases
    except HardwareError:
        return ()
