"""``hw_profiles/slices.yaml``: parts of a device that clusters offer as devices of their own.

MIG instances of NVIDIA's GPUs, which have places on a device and may be mixed, and AMD's partitions
by compute and memory mode, equal ones that cut a whole device.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Annotated, Literal

from pydantic import Field, model_validator

from recipe_core.base.data_files import DataRow
from recipe_core.base.errors import HardwareError, look_up
from recipe_core.base.provenance import Quantity, Source, Sourced, Status
from recipe_core.base.resources import shipped_path
from recipe_core.hardware.profile import Device, Name, SliceOf, profile_data_file

FIELD = "hardware.device"
FABRIC = "no-links"
Parts = Annotated[int, Field(ge=1, le=64)]
_MIG = re.compile(
    r"(?P<device>.+?)[- ](?:(?:mig[- ])?(?P<slice>\d+g\.\d+gb)|mig(?:[- ](?P<unknown>\S*))?)"
)
_PARTITION = re.compile(r"(?P<device>.+)-(?P<slice>[sdtqc]px(-nps\d)?)")


class Placement(DataRow):
    """The parts of the memory that an instance takes, and those at which it may start."""

    parts: Parts
    starts: Annotated[tuple[Annotated[int, Field(ge=0, le=63)], ...], Field(min_length=1)]


class Placements(DataRow):
    """Placements of the kinds of instances, in ``parts`` of a device's memory."""

    parts: Parts
    kinds: dict[str, Placement]
    source: str


class MigProfile(DataRow):
    """A kind of GPU instance: its SMs, and the memory that nvidia-smi lists for it."""

    kind: str
    multiprocessors: Annotated[int, Field(ge=1, le=1024)]
    memory_mib: Annotated[int, Field(ge=256)]
    source: str
    status: Status


class MigDevices(DataRow):
    """Devices with the same instances, and the SMs of a whole one."""

    devices: Annotated[tuple[Name, ...], Field(min_length=1)]
    placements: str
    multiprocessors: Annotated[int, Field(ge=1, le=1024)]
    profiles: Annotated[dict[str, MigProfile], Field(min_length=1)]


class PartitionedDevices(DataRow):
    """Devices with the same modes: by compute and memory mode, into how many each is cut."""

    devices: Annotated[tuple[Name, ...], Field(min_length=1)]
    xcds: Parts
    modes: Annotated[dict[Name, Parts], Field(min_length=1)]
    source: str
    status: Status


class SliceFile(Sourced):
    """The file: placements by name, MIG instances and partitions by device."""

    placements: dict[str, Placements]
    mig: tuple[MigDevices, ...]
    partitions: tuple[PartitionedDevices, ...]

    @model_validator(mode="after")
    def _fits(self) -> SliceFile:
        for group in self.mig:
            table = self.placements[group.placements]
            for name, profile in group.profiles.items():
                place = table.kinds[profile.kind]
                if max(place.starts) + place.parts > table.parts:
                    raise ValueError(f"{name} of {group.devices[0]} ends behind the device")
                if profile.multiprocessors > group.multiprocessors:
                    raise ValueError(f"{name} of {group.devices[0]} has more SMs than it")
        for cut in self.partitions:
            for mode, count in cut.modes.items():
                if cut.xcds % count:
                    raise ValueError(f"{mode} of {cut.devices[0]} does not divide its XCDs")
        return self


@cache
def slice_file() -> SliceFile:
    """Return the shipped file.

    Raises:
        HardwareError: for a damaged file, naming the field and the fix.
    """
    return profile_data_file(shipped_path("hw_profiles") / "slices.yaml").read_as(SliceFile)


@dataclass(frozen=True, slots=True)
class Slice:
    """A part of a device as a device.

    ``name``: as its vendor calls it (``1g.10gb``, ``cpx-nps4``), ``profile_name`` as its tools do
    (``CPX`` in ``NPS4``); ``device``: the derived profile's name; ``share``: of the device's price,
    the larger of its shares of compute and of memory.
    """

    name: str
    device: str
    profile_name: str
    share: float


@dataclass(frozen=True, slots=True)
class Geometry:
    """A way to cut one device to which no slice can be added: how many of each, by name."""

    counts: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class _Cut:
    """A slice's shares of a device, and what the file says of it; ``usual``: the most of it."""

    kind: Literal["mig", "partition"]
    compute: float
    memory: float
    memory_bytes: float | None
    usual: int
    words: str
    source: str
    status: Status

    @property
    def share(self) -> float:
        return max(self.compute, self.memory)


@cache
def _cuts_of(device: str) -> Mapping[str, _Cut]:
    """The slices of a device, by name; empty where it has none."""
    file = slice_file()
    cuts: dict[str, _Cut] = {}
    for group in file.mig if device else ():
        if device in group.devices:
            cuts |= _instances(group, file.placements[group.placements])
    for cut in file.partitions:
        for mode, count in cut.modes.items() if device in cut.devices else ():
            words = f"{cut.xcds // count} of {cut.xcds} XCDs"
            share, source, status = 1 / count, cut.source, cut.status
            cuts[mode] = _Cut("partition", share, share, None, count, words, source, status)
    return MappingProxyType(cuts)


def _instances(group: MigDevices, table: Placements) -> Iterator[tuple[str, _Cut]]:
    layouts = _list_layouts(group, table)
    for index, (name, profile) in enumerate(group.profiles.items()):
        parts = table.kinds[profile.kind].parts
        words = f"{profile.multiprocessors} of {group.multiprocessors} SMs"
        yield (
            name,
            _Cut(
                "mig",
                profile.multiprocessors / group.multiprocessors,
                parts / table.parts,
                float(profile.memory_mib << 20),
                max(counts[index] for counts in layouts),
                f"{words}, {parts} of {table.parts} parts of the memory",
                profile.source,
                profile.status,
            ),
        )


def _list_layouts(group: MigDevices, table: Placements) -> set[tuple[int, ...]]:
    """Numbers of instances by profile of every way to place them side by side."""
    kinds = [table.kinds[profile.kind] for profile in group.profiles.values()]
    layouts: set[tuple[int, ...]] = set()

    def place(start: int, counts: tuple[int, ...]) -> None:
        if start >= table.parts:
            layouts.add(counts)
            return
        place(start + 1, counts)
        for index, kind in enumerate(kinds):
            if start in kind.starts:
                more = tuple(n + (i == index) for i, n in enumerate(counts))
                place(start + kind.parts, more)

    place(0, (0,) * len(kinds))
    return layouts


# --- what can be cut


@cache
def list_slices(device_name: str) -> tuple[Slice, ...]:
    """Return the slices of a shipped device, by its profile's name; none where it has none."""
    return tuple(
        Slice(name, _slice_device(device_name, name), _tool_words(name), cut.share)
        for name, cut in _cuts_of(device_name).items()
    )


def _slice_device(device: str, name: str) -> str:
    return f"{device}-{name}" if "px-" in name else f"{device}-mig-{name}"


def _tool_words(name: str) -> str:
    return name.upper().replace("-", " in ") if "px-" in name else name


@cache
def list_geometries(device_name: str) -> tuple[Geometry, ...]:
    """Return every way to cut a device to which no slice can be added, by the vendor's placements.

    Of AMD's one a mode, as a device has one mode at a time.
    """
    file = slice_file()
    for group in file.mig:
        if device_name in group.devices:
            names = tuple(group.profiles)
            layouts = sorted(_list_layouts(group, file.placements[group.placements]), reverse=True)
            full = [
                counts
                for counts in layouts
                if not any(counts != more and _covers(more, counts) for more in layouts)
            ]
            return tuple(Geometry(_counted(names, counts)) for counts in full)
    return tuple(
        Geometry(MappingProxyType({name: cut.usual})) for name, cut in _cuts_of(device_name).items()
    )


def _covers(more: tuple[int, ...], counts: tuple[int, ...]) -> bool:
    return all(a >= b for a, b in zip(more, counts, strict=True))


def _counted(names: tuple[str, ...], counts: tuple[int, ...]) -> Mapping[str, int]:
    return MappingProxyType({name: n for name, n in zip(names, counts, strict=True) if n})


def is_allowed(device_name: str, counts: Mapping[str, int]) -> bool:
    """Return whether one device can be cut so, by where its vendor lets each slice be.

    Raises:
        HardwareError: for a slice that the device does not have.
    """
    cuts = _cuts_of(device_name)
    for name in counts:
        look_up(f"slice of {device_name}", name, cuts, FIELD, HardwareError)
    return any(
        all(0 <= count <= geometry.counts.get(name, 0) for name, count in counts.items())
        for geometry in list_geometries(device_name)
    )


def sharing_note(kind: Literal["mps", "time-slicing"], device: Device) -> str:
    """Say why a device is not shared by MPS or by time slicing, in one sentence."""
    if device.vendor != "nvidia":
        return f"{device.title} is not shared so: MPS and time slicing are NVIDIA's."
    if kind == "mps":
        return (
            "MPS keeps neither memory nor faults of its clients apart, and no run of an LLM engine "
            "beside another was measured under it: use MIG slices, or whole devices."
        )
    return (
        "Time slicing keeps neither memory nor faults apart, gives each process the device in "
        "turns, and no run of an LLM engine beside another was measured so: use MIG slices, or "
        "whole devices."
    )


# --- what starts on one


def pod_resource(part: SliceOf) -> str:
    """Return what a pod asks for, as the vendors' device plugins name it with strategy mixed."""
    if part.kind == "mig":
        return f"nvidia.com/mig-{part.name}"
    return f"amd.com/{part.name.replace('-', '_')}"


def starting_note(part: SliceOf) -> str:
    """Say how a bundle gets its slice."""
    if part.kind == "mig":
        return (
            f"It runs on MIG slices {part.name}: cut the devices first (nvidia-smi mig), and start "
            "it with CUDA_VISIBLE_DEVICES=MIG-…,MIG-…, the UUIDs that nvidia-smi -L prints, one a "
            "server; files for containers take a UUID where they have a device's number. Pods ask "
            f"for {pod_resource(part)}, which nodes have where NVIDIA's device plugin has the MIG "
            "strategy mixed."
        )
    compute, memory = part.name.upper().split("-")
    return (
        f"It runs on partitions: first amd-smi set --memory-partition {memory}, a reload of the "
        f"driver, and amd-smi set --compute-partition {compute}. HIP_VISIBLE_DEVICES then counts "
        f"partitions. Pods ask for {pod_resource(part)}, which nodes have where AMD's device "
        "plugin has the resource naming strategy mixed."
    )


# --- slices as devices


def split_slice(name: str) -> tuple[str, str] | None:
    """``h100-sxm-mig-1g.10gb`` as device and slice; None for a name that is no slice's.

    Also as drivers and node labels print it (``NVIDIA-H100-80GB-HBM3-MIG-1g.10gb``), and where the
    slice is not one.
    """
    text = name.casefold()
    if match := _PARTITION.fullmatch(text):
        return match["device"], match["slice"]
    match = _MIG.fullmatch(text)
    return (match["device"], match["slice"] or match["unknown"] or "mig") if match else None


def derive_slice(device: Device, name: str) -> Device:
    """A slice of a shipped device as a device.

    It has its shares of compute (SMs, XCDs) and bandwidth (parts of the memory), the memory that
    its vendor publishes, the device's efficiencies and host, and no links.

    Raises:
        HardwareError: for a slice that the device does not have.
    """
    cuts = _cuts_of(device.name)
    if not cuts:
        message = f"{device.name} cannot be cut into slices."
        hint = "Name the whole device, or one whose vendor publishes its slices."
        raise HardwareError(message, field=FIELD, hint=hint)
    cut = look_up(f"slice of {device.name}", name, cuts, FIELD, HardwareError)
    derived = f"derived: {cut.words}"

    def scaled(quantity: Quantity, share: float) -> Quantity:
        update = {"value": quantity.value * share, "status": "assumed", "note": derived}
        return quantity.model_copy(update=update)

    memory = scaled(device.memory_bytes, cut.memory)
    if cut.memory_bytes is not None:
        update = {"value": cut.memory_bytes, "source": _source_key(cut), "status": cut.status}
        memory = memory.model_copy(update={**update, "note": "as nvidia-smi lists the profile"})
    peaks = device.peak_flops_per_s.items()
    bandwidth = device.memory_bandwidth_bytes_per_s
    devices = min(cut.usual * device.node.devices, 128)
    node = {"devices": devices, "fabric": FABRIC, "alternatives": (), "collectives": None}
    return device.model_copy(
        update={
            "name": _slice_device(device.name, name),
            "title": _slice_title(device, name),
            "aliases": _driver_names(device, name),
            "known_as": device.name,
            "slice_of": SliceOf(device=device.name, name=name, kind=cut.kind, share=cut.share),
            "memory_bytes": memory,
            "memory_bandwidth_bytes_per_s": scaled(bandwidth, cut.memory),
            "peak_flops_per_s": {dtype: scaled(peak, cut.compute) for dtype, peak in peaks},
            "tdp_watts": scaled(device.tdp_watts, cut.share),
            "idle_watts": device.idle_watts and scaled(device.idle_watts, cut.share),
            "price_usd": device.price_usd and scaled(device.price_usd, cut.share),
            "several_a_node": None,
            "transfers": None,
            "node": device.node.model_copy(update=node),
            "sources": {**device.sources, _source_key(cut): _source(cut)},
        }
    )


def _source_key(cut: _Cut) -> str:
    return f"slice-{cut.source}"


def _source(cut: _Cut) -> Source:
    return slice_file().sources[cut.source]


def _slice_title(device: Device, name: str) -> str:
    base = re.split(r"[,(]", device.title)[0].strip()
    return f"{base} {_tool_words(name)}" if "px-" in name else f"{base} MIG {name}"


def _driver_names(device: Device, name: str) -> tuple[str, ...]:
    """Names that drivers give the slice: of MIG they add the profile, of a partition nothing."""
    names = tuple(alias for alias in device.aliases if " " in alias)
    return names if "px-" in name else tuple(f"{alias} MIG {name}" for alias in names)
