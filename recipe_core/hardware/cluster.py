"""Devices and fabrics of ``hw_profiles/``, put together with a price as a cluster."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from recipe_core.base.errors import HardwareError, look_up, unknown
from recipe_core.base.resources import shipped_path
from recipe_core.hardware.checks import check_device, link_flaws
from recipe_core.hardware.nodes import Cluster as Cluster
from recipe_core.hardware.prices import price_of
from recipe_core.hardware.profile import (
    Collectives,
    Device,
    DtypeFile,
    DtypeSupport,
    Fabric,
    Family,
    HostSpeed,
    Priors,
    Roofline,
    files_by_name,
    profile_data_file,
    read_profile_file,
)
from recipe_core.hardware.request import (
    BASE,
    FIELD,
    HardwareRequest,
    canonical_text,
    is_profile_path,
    merge_profile,
    validate_profile,
)
from recipe_core.hardware.slices import derive_slice, list_slices, split_slice

SHARED = ("priors", "dtypes", "slices")  # files of hw_profiles/ that are about every device


@cache
def _profile_files() -> dict[str, Path]:
    return {
        name: path
        for name, path in files_by_name(shipped_path("hw_profiles")).items()
        if name not in SHARED
    }


def device_names(*, announced: bool = False) -> list[str]:
    """Names of the shipped devices, sorted; with those that are no more than ``announced``."""
    return [name for name in _profile_files() if announced or name not in _announced_devices()]


@cache
def _announced_devices() -> frozenset[str]:
    """Devices that are announced, off a line of their files: parsing all takes a second."""
    line = re.compile(r"^announced:", re.MULTILINE)
    files = _profile_files().items()
    return frozenset(name for name, path in files if line.search(path.read_text("utf-8")))


def device_profile(name: str | Mapping[str, Any]) -> Device:
    """The profile of a device: a shipped one by name or alias, or a custom one as plain values.

    Raises:
        HardwareError: names close ones when there is none, or the wrong field of a profile.
    """
    return _shipped_device(name) if isinstance(name, str) else _custom_device(canonical_text(name))


@lru_cache(maxsize=256)
def _custom_device(text: str) -> Device:
    """A profile that is not shipped, by its content."""
    values = json.loads(text)
    base = values.get(BASE)
    if base is not None:
        values = merge_profile(_base_device(base, BASE), values)
    profile = validate_profile(values)
    if not is_own(profile) or profile.name in _device_aliases():
        message = f"{profile.name!r} is the name of a shipped device."
        hint = f"Choose another, such as my-{profile.name}."
        raise HardwareError(message, field=f"{FIELD}.name", hint=hint)
    for where, text, hint in link_flaws(profile, fabric, fabric_names, "{hint}"):
        raise HardwareError(f"{text}.", field=f"{FIELD}.{where}", hint=hint)
    if profile.known_as is None:
        return profile
    return profile.model_copy(update={"known_as": _known_as(profile)})


def _base_device(name: Any, field: str) -> Device:
    try:
        return _shipped_device(str(name))
    except HardwareError as error:
        raise HardwareError(error.message, field=f"{FIELD}.{field}", hint=error.hint) from None


def _known_as(profile: Device) -> str:
    """The shipped device that a custom profile is known as.

    Raises:
        HardwareError: when that is another kind of device.
    """
    shipped = _base_device(profile.known_as, "known_as")
    if shipped.runtime != profile.runtime:
        message = f"{shipped.name} runs {shipped.runtime}, this device {profile.runtime}."
        raise HardwareError(
            message,
            field=f"{FIELD}.known_as",
            hint="Set it to a device of the same vendor, or leave it out.",
        )
    return shipped.name


def is_own(profile: Device) -> bool:
    """Return whether a profile is neither shipped nor derived from one that is."""
    return profile.name not in _profile_files() and profile.slice_of is None


def short_title(profile: Device) -> str:
    """A device's title without vendor and variant; a custom device's name."""
    if is_own(profile):
        return profile.name
    title = profile.title.split(",")[0].split("(")[0]
    for prefix in ("NVIDIA ", "AMD ", "Intel ", "GeForce "):
        title = title.removeprefix(prefix)
    return title.strip()


def chip_title(profile: Device) -> str:
    """A device's title in the fewest words: without its memory where no other differs in that.

    Devices of one chip with several sizes of memory have the size in their names.
    """
    title = short_title(profile).removeprefix("Instinct ")
    if is_own(profile) or re.search(r"\d+gb$", profile.name):
        return title
    return re.sub(r" \d+ GB( unified)?$", "", title)


def device_values(profile: Device) -> dict[str, Any]:
    return profile.model_dump(mode="json", exclude_none=True)


@cache
def _shipped_device(name: str) -> Device:
    if is_profile_path(name):
        message = f"{name[:200]!r} is a path; paths are not read here."
        hint = "Use the command line, call hardware.request.with_profiles, or pass the profile."
        raise HardwareError(message, field=FIELD, hint=hint)
    files = _profile_files()
    key = name.casefold()
    if key not in files:
        key = _device_aliases().get(key, key)
    if key not in files and (parts := split_slice(key)):
        return _derived_slice(name, *parts)
    path = files.get(key) or look_up("device", name, files, FIELD, HardwareError)
    profile = read_profile_file(path, Device)
    check_device(profile, profile_data_file(path), fabric, fabric_names, dtypes)
    return profile


def _derived_slice(name: str, device: str, part: str) -> Device:
    """A slice by the name of its device, or of what a driver calls that.

    Raises:
        HardwareError: names close slices where the device, or the slice, is unknown.
    """
    if device not in _profile_files():
        spaced = device.replace("-", " ")
        aliases = _device_aliases()
        spoken = {alias.replace("-", " "): shipped for alias, shipped in aliases.items()}
        device = aliases.get(device) or spoken.get(spaced) or device
    if device not in _profile_files():
        slices = [row.device for shipped in _profile_files() for row in list_slices(shipped)]
        message, hint = unknown("device", name, slices)
        raise HardwareError(message, field=FIELD, hint=hint)
    return derive_slice(_shipped_device(device), part)


@cache
def _device_aliases() -> dict[str, str]:
    """Names of devices by their aliases; raises where one is the alias of two."""
    names: dict[str, str] = {}
    for name in device_names(announced=True):
        for alias in map(str.casefold, _shipped_device(name).aliases):
            if names.setdefault(alias, name) != name:
                file = profile_data_file(_profile_files()[name])
                hint = "Leave it to one of them."
                raise file.problem("aliases", f"{alias!r} is an alias of {names[alias]}", hint)
    return names


def fabric_names() -> list[str]:
    return list(files_by_name(shipped_path("hw_profiles") / "fabrics"))


@cache
def fabric(name: str, field: str = "hardware.fabric") -> Fabric:
    """The profile of a link technology.

    Raises:
        HardwareError: names close ones when there is none.
    """
    files = files_by_name(shipped_path("hw_profiles") / "fabrics")
    return _read_fabric(look_up("fabric", name, files, field, HardwareError))


@cache
def _read_fabric(path: Path) -> Fabric:
    return read_profile_file(path, Fabric)


@cache
def priors() -> Priors:
    """Roofline numbers for devices without their own."""
    return read_profile_file(shipped_path("hw_profiles") / "priors.yaml", Priors)


@cache
def dtypes() -> DtypeFile:
    return read_profile_file(shipped_path("hw_profiles") / "dtypes.yaml", DtypeFile)


@cache
def no_kernels(engine: str, architecture: str, dtype: str, writer: str) -> DtypeSupport | None:
    """Say why an engine has no kernels for a format as ``writer`` encodes it; None if it has."""
    for row in dtypes().support:
        if row.dtype != dtype or architecture not in row.architectures:
            continue
        # Only int4 comes in encodings that different kernels read.
        encoded = (
            row.encoding is None
            or row.dtype != "int4"
            or (writer == "bitsandbytes") == row.encoding.startswith("bitsandbytes")
        )
        if encoded and row.engines.get(engine) == "none":
            return row
    return None


def roofline(profile: Device, family: Family, *dtypes: str) -> Roofline:
    """The four numbers of an operator family.

    The device's own for the first of ``dtypes`` it has, else its own for any, else its runtime's
    prior.
    """
    shapes = {str(dtype): shape for dtype, shape in profile.roofline.get(family, {}).items()}
    for name in (*dtypes, "any"):
        if name in shapes:
            return shapes[name]
    return priors().roofline[profile.runtime][family]


_REFERENCE = HostSpeed(source="reference", status="assumed")


def host_speed(profile: Device) -> HostSpeed:
    """Return how slow the host of a device is; the reference's where its profile does not say."""
    return profile.host or _REFERENCE


def measured_over(profile: Device, inside: Fabric) -> Fabric:
    """The fabric of a node with what the profile measured over it; as is where it did not."""
    reached = profile.node.collectives
    if reached is None or inside.name != profile.node.fabric:
        return inside
    figures = {name: getattr(reached, name) for name in Collectives.model_fields}
    sources = {**inside.sources, **profile.sources}
    return inside.model_copy(update={**figures, "sources": sources})


def cluster(request: HardwareRequest) -> Cluster:
    """The cluster a request names.

    Raises:
        HardwareError: for an unknown device, fabric, network or offer, or more devices in a node
            than its fabric joins, or than a node of a rack holds.
    """
    alone = device_profile(request.device)
    profile = in_its_node(alone, request.per_node)
    inside = fabric(request.fabric or profile.node.fabric)
    if profile.slice_of is not None and inside.name != profile.node.fabric:
        message = f"{profile.name} is a slice of a device: slices have no links."
        raise HardwareError(message, field="hardware.fabric", hint="Leave it out.")
    if inside.kind != "scale-up":
        raise HardwareError(
            f"{inside.name!r} connects nodes, not devices within a node.",
            field="hardware.fabric",
            hint="Set it as `network` instead.",
        )
    _check_domain(request, inside, profile)
    several = inside.domain is not None and request.per_node > inside.domain
    return Cluster(
        device=profile,
        per_node=request.per_node,
        nodes=request.nodes,
        fabric=measured_over(profile, inside),
        network=fabric(request.network or profile.node.network, "hardware.network"),
        price=price_of(request, alone),
        request=request,
        beyond=fabric(inside.beyond) if inside.beyond and several else None,
    )


def in_its_node(profile: Device, per_node: int) -> Device:
    """The profile of a device in nodes of so many: another where several share what one has."""
    if profile.several_a_node is None or per_node <= profile.node.devices:
        return profile
    return device_profile(profile.several_a_node)


def fits_node(profile: Device, inside: Fabric, devices: int) -> bool:
    """Return whether one node holds so many devices.

    A domain of its fabric bounds it; a node of a rack is as large as its profile says.
    """
    if inside.spans_nodes:
        return devices <= profile.node.devices
    return inside.joins(devices)


def in_nodes(name: str | Mapping[str, Any], per_node: int, nodes: int) -> dict[str, Any]:
    """Hardware as plain values, a part of a rack (one "node" in some tables) in its real nodes.

    As stated where the device is unknown, or does not fill nodes.
    """
    hardware = {"device": name, "per_node": per_node, "nodes": nodes}
    try:
        node = device_profile(name).node
    except HardwareError:
        return hardware
    if per_node <= node.devices or per_node % node.devices or not fabric(node.fabric).spans_nodes:
        return hardware
    return {**hardware, "per_node": node.devices, "nodes": nodes * per_node // node.devices}


def _check_domain(request: HardwareRequest, inside: Fabric, profile: Device) -> None:
    """Refuse a node with more devices than the domains of its fabric can join, or a rack's node."""
    if fits_node(profile, inside, request.per_node):
        return
    if inside.spans_nodes:
        full = profile.node.devices
        raise HardwareError(
            f"{request.per_node} devices do not fit into one node: a node of {profile.name} holds "
            f"{full}, and {inside.title} ({inside.name}) joins nodes.",
            field="hardware.per_node",
            hint=f"Set per_node: {full} and nodes: {-(-request.devices // full)}.",
        )
    nodes = -(-request.per_node // (inside.domain or 1))
    per_node = -(-request.per_node // nodes)
    raise HardwareError(
        f"{request.per_node} devices do not fit into one node: {inside.title} ({inside.name}) "
        f"connects {inside.domain}.",
        field="hardware.per_node",
        hint=f"Set per_node: {per_node} and nodes: {nodes * request.nodes}, or another fabric.",
    )
