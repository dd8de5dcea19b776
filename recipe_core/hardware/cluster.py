"""Finding devices and fabrics in ``hw_profiles/``, and putting them together with a price as a cluster."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from recipe_core.base.errors import HardwareError, unknown
from recipe_core.base.resources import root
from recipe_core.hardware import custom
from recipe_core.hardware.checks import check_device
from recipe_core.hardware.files import data_file, named, read
from recipe_core.hardware.prices import PRICE_NOTES, price_of
from recipe_core.hardware.profile import (
    Commitment,
    Device,
    DtypeFile,
    DtypeSupport,
    Fabric,
    Family,
    Priors,
    Roofline,
)
from recipe_core.hardware.request import HardwareRequest

SHARED = ("priors", "dtypes")  # files of hw_profiles/ that are about every device


@cache
def _files() -> dict[str, Path]:
    """Files of shipped devices by name, sorted."""
    return {name: path for name, path in named(root("hw_profiles")).items() if name not in SHARED}


def device_names() -> list[str]:
    """The devices there are profiles of, sorted."""
    return list(_files())


def device(wanted: str | Mapping[str, Any]) -> Device:
    """The profile of a device: a shipped one by its name or an alias, or a profile of the user's own as plain values.

    Raises:
        HardwareError: naming close names when there is none, or the field of a profile that is wrong.
    """
    return _shipped(wanted) if isinstance(wanted, str) else _own(custom.canonical(wanted))


@lru_cache(maxsize=256)
def _own(text: str) -> Device:
    """A profile that is not shipped, by its content."""
    given = json.loads(text)
    base = given.get(custom.BASE)
    if base is not None:
        given = custom.merged(_base(base, custom.BASE), given)
    profile = custom.validated(given)
    if not is_own(profile) or profile.name in _aliases():
        hint = f"Give it a name of its own, such as my-{profile.name}."
        raise HardwareError(
            f"{profile.name!r} is a device that is shipped.",
            field=f"{custom.FIELD}.name",
            hint=hint,
        )
    _check_links(profile)
    return (
        profile
        if profile.known_as is None
        else profile.model_copy(update={"known_as": _known_as(profile)})
    )


def _base(name: Any, field: str) -> Device:
    """The shipped device that a profile of one's own names."""
    try:
        return _shipped(str(name))
    except HardwareError as error:
        raise HardwareError(
            error.message, field=f"{custom.FIELD}.{field}", hint=error.hint
        ) from None


def _known_as(profile: Device) -> str:
    """The name of the shipped device as which a profile is known; raises where that is another kind of device."""
    shipped = _base(profile.known_as, "known_as")
    if shipped.runtime != profile.runtime:
        message = f"{shipped.name} runs {shipped.runtime}, this device {profile.runtime}."
        raise HardwareError(
            message,
            field=f"{custom.FIELD}.known_as",
            hint="Name a device of the same vendor, or leave it out.",
        )
    return shipped.name


def _check_links(profile: Device) -> None:
    """Raise where a profile of one's own names a link that is not known, or at the wrong place."""
    node = profile.node
    inside, between = (
        ("fabric", "scale-up", (node.fabric,)),
        ("network", "scale-out", (node.network,)),
    )
    for field, kind, names in (inside, ("alternatives", "scale-up", node.alternatives), between):
        where = f"{custom.FIELD}.node.{field}"
        for name in names:
            if fabric(name, where).kind != kind:
                known = ", ".join(each for each in fabric_names() if fabric(each).kind == kind)
                raise HardwareError(
                    f"{name!r} is no {kind} link.", field=where, hint=f"Known: {known}."
                )


def is_own(profile: Device) -> bool:
    """Whether a profile is the user's, not one that is shipped."""
    return profile.name not in _files()


def plain(profile: Device) -> dict[str, Any]:
    """A profile as plain values, complete: what a recipe keeps of a device that is not shipped."""
    return profile.model_dump(mode="json", exclude_none=True)


@cache
def _shipped(name: str) -> Device:
    if custom.is_path(name):
        hint = "The command line reads paths, a program by hardware.custom.with_profiles; elsewhere give the profile itself."
        raise HardwareError(
            f"{name[:200]!r} is a path, and none is read here.", field=custom.FIELD, hint=hint
        )
    files = _files()
    wanted = name.casefold()
    if wanted not in device_names():
        wanted = _aliases().get(wanted, wanted)
    if wanted not in device_names():
        message, hint = unknown("device", name, device_names())
        raise HardwareError(message, field=custom.FIELD, hint=hint)
    profile = read(files[wanted], Device)
    check_device(profile, data_file(files[wanted]), fabric, dtypes)
    return profile


@cache
def _aliases() -> dict[str, str]:
    """Names of devices by their aliases; raises where one is the alias of two."""
    names: dict[str, str] = {}
    for name in device_names():
        for alias in map(str.casefold, _shipped(name).aliases):
            if names.setdefault(alias, name) != name:
                file = data_file(_files()[name])
                hint = "Leave it to one of them."
                raise file.problem("aliases", f"{alias!r} is an alias of {names[alias]}", hint)
    return names


def fabric_names() -> list[str]:
    """The link technologies there are profiles of, sorted."""
    return list(named(root("hw_profiles") / "fabrics"))


@cache
def fabric(name: str, field: str = "hardware.fabric") -> Fabric:
    """The profile of a link technology; raises HardwareError when there is none."""
    files = named(root("hw_profiles") / "fabrics")
    if name not in files:
        message, hint = unknown("fabric", name, list(files))
        raise HardwareError(message, field=field, hint=hint)
    return read(files[name], Fabric)


@cache
def priors() -> Priors:
    """Roofline figures for devices without their own."""
    return read(root("hw_profiles") / "priors.yaml", Priors)


@cache
def dtypes() -> DtypeFile:
    """What silicon and engines make of each weight format, by architecture."""
    return read(root("hw_profiles") / "dtypes.yaml", DtypeFile)


@cache
def no_kernels(engine: str, architecture: str, dtype: str, writer: str) -> DtypeSupport | None:
    """The row that says an engine has no kernels for a weight format, as ``writer`` encodes it, on an architecture."""
    for row in dtypes().support:
        encoded = (
            row.encoding is None
            or row.dtype != "int4"
            or (writer == "bitsandbytes") == row.encoding.startswith("bitsandbytes")
        )
        if (
            row.dtype == dtype
            and architecture in row.architectures
            and encoded
            and row.engines.get(engine) == "none"
        ):
            return row
    return None


def roofline(profile: Device, family: Family, *dtypes: str) -> Roofline:
    """The four numbers of an operator family.

    The device's own for the first of ``dtypes`` it has, else its own for any, else its runtime's prior.
    """
    own: dict[str, Roofline] = {
        str(dtype): shape for dtype, shape in profile.roofline.get(family, {}).items()
    }
    known = [own[dtype] for dtype in (*dtypes, "any") if dtype in own]
    return known[0] if known else priors().roofline[profile.runtime][family]


@dataclass(frozen=True, slots=True)
class Cluster:
    """Devices in nodes, what joins them, and what an hour of one costs (None: unknown).

    ``beyond`` joins the fabric's domains inside a node; None where a domain holds the node. ``commitment``: what the price is for.
    """

    device: Device
    per_node: int
    nodes: int
    fabric: Fabric
    network: Fabric
    usd_per_device_hour: float | None
    price_basis: str | None
    commitment: Commitment | None = None
    beyond: Fabric | None = None
    asked: HardwareRequest | None = None

    @property
    def devices(self) -> int:
        """All devices."""
        return self.per_node * self.nodes

    @property
    def price_note(self) -> str | None:
        """What to know of the price beside the figure; None where there is nothing."""
        return PRICE_NOTES.get(self.commitment) if self.commitment else None

    @property
    def rack_scale(self) -> bool:
        """Whether the fabric joins devices of different nodes (NVL72), so that only its domain bounds a fast group."""
        return self.fabric.spans_nodes


def cluster(request: HardwareRequest) -> Cluster:
    """The cluster a request names.

    Raises:
        HardwareError: for an unknown device, fabric, network or offer, or more devices in a node than its fabric joins.
    """
    profile = device(request.device)
    inside = fabric(request.fabric or profile.node.fabric)
    if inside.kind != "scale-up":
        raise HardwareError(
            f"{inside.name!r} joins nodes, not devices in a node.",
            field="hardware.fabric",
            hint="Give it as network instead.",
        )
    _check_domain(request, inside)
    price, basis, commitment = price_of(request, profile)
    return Cluster(
        device=profile,
        per_node=request.per_node,
        nodes=request.nodes,
        fabric=inside,
        network=fabric(request.network or profile.node.network, "hardware.network"),
        usd_per_device_hour=price,
        price_basis=basis,
        commitment=commitment,
        asked=request,
        beyond=fabric(inside.beyond)
        if inside.beyond and inside.domain and request.per_node > inside.domain
        else None,
    )


def _check_domain(request: HardwareRequest, inside: Fabric) -> None:
    """Raise where a node holds more devices than one domain of its fabric and nothing is known to join the domains."""
    if inside.domain is None or inside.joins(request.per_node):
        return
    nodes = -(-request.per_node // inside.domain)
    raise HardwareError(
        f"{request.per_node} devices do not fit into one node: {inside.title} ({inside.name}) joins {inside.domain}.",
        field="hardware.per_node",
        hint=f"Say per_node: {-(-request.per_node // nodes)} with nodes: {nodes * request.nodes}, or name another fabric.",
    )
