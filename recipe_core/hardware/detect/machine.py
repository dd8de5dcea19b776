"""The machine at hand in terms of ``hw_profiles/``: its profile, and a request that names it.

Module `machine` of the launcher, which travels in bundles, reads the vendors' tools and /proc. What
no tool tells stays None.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Any

from recipe_core.base.documents import to_yaml
from recipe_core.base.errors import HardwareError
from recipe_core.base.units import gib, per_second, significant
from recipe_core.hardware.cluster import device_names, device_profile
from recipe_core.hardware.detect import tools
from recipe_core.hardware.detect.tools import Links, Readings, machine_links
from recipe_core.hardware.profile import Device
from recipe_core.payload.launcher import devices as listing
from recipe_core.payload.launcher import machine

_VENDORS = {"cuda": "nvidia", "rocm": "amd", "hpu": "intel", "xpu": "intel", "cpu": "cpu"}
# Error correction in GDDR takes a sixteenth; a larger deviation is another card or a partition.
_ECC = 0.08


@dataclass(frozen=True, slots=True)
class Found:
    """One machine.

    ``profile`` is a file of ``hw_profiles/`` as plain values, with None for what is unknown;
    ``request`` names the machine, None if no profile does.
    """

    matched: str | None
    matched_by: str | None
    count: int
    devices: list[dict[str, Any]]
    profile: dict[str, Any]
    allocatable_memory_bytes: dict[str, Any] | None
    links: Links | None
    host: dict[str, Any]
    versions: dict[str, str]
    request: dict[str, Any] | None
    unknown: list[str]
    notes: list[str]

    def to_json(self) -> dict[str, Any]:
        return {"schema_version": 1, **asdict(self)}


def detect_machine() -> Found:
    """Read this machine."""
    host = machine.detect_machine()
    notes, versions, readings = list(host.notes), tools.read_versions(), Readings()
    runtime, devices = host.runtime, list(host.devices)
    if not devices and (devices := tools.ask_gaudi(notes)):
        runtime = "hpu"
    driver = any(Path(node).exists() for node in ("/dev/nvidiactl", "/dev/kfd"))
    torch = tools.ask_torch(notes) if devices or driver else {}
    torch_devices = torch.get("devices") or []
    if not devices and torch_devices:
        runtime = "rocm" if torch.get("hip") else "cuda"
        for i, (name, memory, _) in enumerate(torch_devices):
            devices.append(listing.Device(i, name, memory))
    for key in ("cuda", "hip"):
        if torch.get(key):
            versions[f"torch's {key.upper()}"] = str(torch[key])
    if torch_devices:
        readings.torch_memory_bytes = min(memory for _, memory, _ in torch_devices)
    devices = _most_frequent(devices, notes)
    architectures = [
        *(device.architecture for device in devices),
        *(arch for _, _, arch in torch_devices),
    ]
    readings.architecture = next(filter(None, architectures), None)
    if runtime == "cuda":
        tools.read_nvidia(readings, versions, notes)
    elif runtime == "rocm":
        tools.read_amd(versions, notes)
    return _found_machine(host, runtime, devices, readings, versions, notes)


def _found_machine(
    host: machine.Machine,
    runtime: str,
    devices: list[listing.Device],
    readings: Readings,
    versions: dict[str, str],
    notes: list[str],
) -> Found:
    memory_bytes = devices[0].memory_bytes if devices else host.memory_bytes
    known_bytes = memory_bytes or readings.torch_memory_bytes
    profile, by = _match_profile(runtime, devices, readings.architecture, known_bytes, notes)
    pairs = tools.read_link_pairs(runtime, notes) if len(devices) > 1 else {}
    joined = machine_links(
        pairs, [item.index for item in devices], profile, readings.pcie_generation
    )
    name = devices[0].name if devices else host.cpu_name
    facts = _profile_facts(profile, runtime, name, readings, memory_bytes)
    count = max(1, len(devices))
    if runtime == "cpu" and profile:
        notes.append(
            f"rates and bandwidth are those of the profile ({profile.title}); "
            "`recipe profile` measures this machine"
        )
    if len(devices) > 1 and (joined is None or joined.fabric is None) and profile:
        notes.append(
            "the links could not be read or match no fabric: "
            f"the request uses the profile's {profile.node.fabric}"
        )
    return Found(
        matched=profile.name if profile else None,
        matched_by=by,
        count=count,
        devices=[asdict(item) for item in devices],
        profile=facts,
        allocatable_memory_bytes=_allocatable_memory(
            runtime, profile, memory_bytes, readings, host
        ),
        links=joined,
        host={
            "cpu": host.cpu_name,
            "cpus": host.cpus,
            "memory_bytes": host.memory_bytes,
            "available_bytes": host.available_bytes,
        },
        versions=versions,
        request=_hardware_request(profile, count, joined),
        unknown=sorted(key for key, value in facts.items() if value is None),
        notes=notes,
    )


def _hardware_request(
    profile: Device | None, count: int, joined: Links | None
) -> dict[str, Any] | None:
    if profile is None:
        return None
    hardware = {"device": profile.name, "per_node": count, "nodes": 1}
    if joined and joined.fabric:
        hardware["fabric"] = joined.fabric
    return {"hardware": hardware}


def _match_profile(
    runtime: str,
    devices: list[listing.Device],
    architecture: str | None,
    memory_bytes: int | None,
    notes: list[str],
) -> tuple[Device | None, str | None]:
    """The profile of this device, and how it was recognised.

    By the driver's name when the memory agrees, else by architecture and memory if only one fits.
    """
    if runtime == "cpu":
        return device_profile("cpu"), "the lack of an accelerator"
    name = devices[0].name
    try:
        profile = device_profile(name)
    except HardwareError:
        profile = None
    if profile and (memory_bytes is None or _memory_agrees(memory_bytes, profile, _ECC)):
        return profile, "driver name"
    if profile and memory_bytes is not None:
        notes.append(
            f"{name} is the name of {profile.name}, but it has {memory_bytes / 2**30:.1f} GiB "
            f"instead of {profile.memory_bytes.value / 2**30:.1f}: "
            "another variant, or a partition of the card"
        )
        return None, None
    alike = [
        candidate
        for candidate in map(device_profile, device_names())
        if candidate.runtime == runtime
        and candidate.architecture == architecture
        and memory_bytes is not None
        and _memory_agrees(memory_bytes, candidate, 0.005)
    ]
    generic = name in ("AMD GPU", "AMD Radeon Graphics")  # drivers that do not know the card's name
    return (alike[0], "architecture and memory") if generic and len(alike) == 1 else (None, None)


def _memory_agrees(memory_bytes: int, profile: Device, tolerance: float) -> bool:
    return any(
        abs(memory_bytes / profile_bytes - 1) <= tolerance
        for profile_bytes in (profile.memory_bytes.value, profile.usable_memory_bytes)
    )


def _profile_facts(
    profile: Device | None, runtime: str, name: str, readings: Readings, memory_bytes: int | None
) -> dict[str, Any]:
    """The profile with what was read here in its place; of an unknown device only that."""
    readout: dict[str, Any] = {}
    if memory_bytes:
        readout["memory_bytes"] = {"value": memory_bytes, "source": "machine", "status": "measured"}
    if readings.power_watts:
        readout["tdp_watts"] = {
            "value": readings.power_watts,
            "source": "machine",
            "status": "measured",
            "note": "current power limit",
        }
    source = {
        "machine": {
            "title": f"{name}, read on this machine",
            "command": "recipe hardware --detect",
            "date": f"{date.today()}",
        }
    }
    if profile:
        profile_values = profile.model_dump(mode="json", exclude_none=True, exclude={"roofline"})
        return {**profile_values, **readout, "sources": {**profile_values["sources"], **source}}
    slug = re.sub(r"[^a-z0-9]+", "-", name.casefold()).strip("-") or "unknown"
    required = [key for key, field in Device.model_fields.items() if field.is_required()]
    return {
        **dict.fromkeys(required),
        "schema_version": 1,
        "name": slug,
        "title": name,
        "vendor": _VENDORS[runtime],
        "runtime": runtime,
        "aliases": [name],
        "architecture": readings.architecture,
        **readout,
        "sources": source,
    }


def _allocatable_memory(
    runtime: str,
    profile: Device | None,
    memory_bytes: int | None,
    readings: Readings,
    host: machine.Machine,
) -> dict[str, Any] | None:
    if readings.torch_memory_bytes:
        return {
            "value": readings.torch_memory_bytes,
            "status": "measured",
            "note": "total_memory of torch's device properties",
        }
    if runtime == "cpu":
        return {
            "value": host.available_bytes,
            "status": "measured",
            "note": "MemAvailable, or the limit of the container",
        }
    if profile is None:
        return None
    if memory_bytes is None:
        return {
            "value": profile.usable_memory_bytes,
            "status": "assumed",
            "note": "from the profile; the driver reports no total",
        }
    reserved = profile.memory_bytes.value - profile.usable_memory_bytes
    return {
        "value": memory_bytes - reserved,
        "status": "assumed",
        "note": "the driver's total less what the profile says is reserved",
    }


def _most_frequent(devices: list[listing.Device], notes: list[str]) -> list[listing.Device]:
    """The devices of the most frequent name: a request names one kind."""
    counts = Counter(item.name for item in devices)
    if len(counts) < 2:
        return devices
    name = counts.most_common(1)[0][0]
    ignored = ", ".join(
        f"{count} × {device_name}" for device_name, count in counts.items() if device_name != name
    )
    notes.append(f"a request has one kind of device; ignored: {ignored}")
    return [item for item in devices if item.name == name]


def detected_text(detected: Found) -> str:
    """The machine as lines for a terminal; the request comes last."""
    facts, host = detected.profile, detected.host
    match = "no profile matches"
    if detected.matched:
        match = f"profile {detected.matched}, by {detected.matched_by}"
    name = detected.devices[0]["name"] if detected.devices else host["cpu"]
    available = f"{_memory_text(host['available_bytes'])} available"
    rows = [
        ("Device", f"{detected.count} × {name} ({match})"),
        ("Architecture", facts["architecture"] or "unknown"),
        ("Memory", _figure_text(facts["memory_bytes"], gib)),
        ("Allocatable", _allocatable_text(detected.allocatable_memory_bytes)),
        (
            "Memory bandwidth",
            _figure_text(
                facts["memory_bandwidth_bytes_per_s"], lambda value: per_second(value, "B")
            ),
        ),
        ("Power limit", _figure_text(facts["tdp_watts"], lambda value: f"{significant(value)} W")),
        ("Links", _links_text(detected)),
        ("Host", f"{host['cpus']} cores, {_memory_text(host['memory_bytes'])}, {available}"),
        ("Versions", ", ".join(f"{tool} {version}" for tool, version in detected.versions.items())),
        *(("Unknown", f"{field}: no tool here reports it") for field in detected.unknown),
        *(("Note", note) for note in detected.notes),
    ]
    lines = [f"{label + ':':18}{text}" for label, text in rows]
    request = to_yaml(detected.request).rstrip() if detected.request else _REFUSED
    return "\n".join([*lines, "", request])


_REFUSED = (
    "No profile matches this device: complete the one that --json prints, "
    "and set hardware.device to its file."
)


def _allocatable_text(memory: dict[str, Any] | None) -> str:
    if not memory or not memory["value"]:
        return "unknown"
    return f"{gib(memory['value'])} ({memory['status']}: {memory['note']})"


def _figure_text(figure: dict[str, Any] | None, show: Callable[[float], str]) -> str:
    if figure is None:
        return "unknown"
    origin = "read here" if figure["source"] == "machine" else "from the profile"
    return f"{show(figure['value'])} ({figure['status']}, {origin})"


def _memory_text(value: int | None) -> str:
    return gib(value) if value else "unknown memory"


def _links_text(detected: Found) -> str:
    inside = detected.links
    if inside is None:
        return "not read" if detected.count > 1 else "a single device"
    return f"{inside.kind}, {inside.note}; fabric {inside.fabric or 'unknown'}"
