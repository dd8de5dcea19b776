"""What this machine is, in the words of ``hw_profiles/``: its device with what was read here, and the request that names it.

The vendors' tools and /proc are read by the launcher's own module, which travels in bundles. What no tool tells stays None.
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
from recipe_core.hardware.cluster import device, device_names
from recipe_core.hardware.detect import tools
from recipe_core.hardware.detect.links import Links, links
from recipe_core.hardware.detect.tools import Readings
from recipe_core.hardware.profile import Device
from recipe_core.launcher import machine

_VENDORS = {"cuda": "nvidia", "rocm": "amd", "hpu": "intel", "cpu": "cpu"}
_ECC = (
    0.08  # error correction in GDDR takes a sixteenth; further off is another card or a partition
)


@dataclass(frozen=True, slots=True)
class Found:
    """One machine. ``profile`` is a file of ``hw_profiles/`` as plain values, None where nothing told; ``request`` names it."""

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
        """Plain values."""
        return {"schema_version": 1, **asdict(self)}


def detect() -> Found:
    """Read this machine."""
    here = machine.detect()
    notes, versions, readings = list(here.notes), tools.read_versions(), Readings()
    runtime, devices = here.runtime, list(here.devices)
    if not devices and (devices := tools.ask_gaudi(notes)):
        runtime = "hpu"
    seen = (
        tools.ask_torch(notes)
        if devices or any(Path(node).exists() for node in ("/dev/nvidiactl", "/dev/kfd"))
        else {}
    )
    if not devices and seen.get("devices"):
        runtime = "rocm" if seen.get("hip") else "cuda"
        devices = [
            machine.Device(i, name, memory) for i, (name, memory, _) in enumerate(seen["devices"])
        ]
    versions |= {
        f"torch's {key.upper()}": str(seen[key]) for key in ("cuda", "hip") if seen.get(key)
    }
    if seen.get("devices"):
        readings.torch_memory_bytes = min(memory for _, memory, _ in seen["devices"])
        readings.architecture = seen["devices"][0][2]
    devices = _most(devices, notes)
    if runtime == "cuda":
        tools.read_nvidia(readings, versions, notes)
    elif runtime == "rocm":
        tools.read_amd(readings, versions, notes)
    return _found(here, runtime, devices, readings, versions, notes)


def _found(
    here: machine.Machine,
    runtime: str,
    devices: list[machine.Device],
    readings: Readings,
    versions: dict[str, str],
    notes: list[str],
) -> Found:
    memory_bytes = devices[0].memory_bytes if devices else here.memory_bytes
    profile, by = _match(
        runtime, devices, readings.architecture, memory_bytes or readings.torch_memory_bytes, notes
    )
    pairs = tools.read_pairs(runtime, notes) if len(devices) > 1 else {}
    joined = links(pairs, [item.index for item in devices], profile, readings.pcie_generation)
    facts = _facts(
        profile, runtime, devices[0].name if devices else here.cpu_name, readings, memory_bytes
    )
    count = max(1, len(devices))
    if runtime == "cpu" and profile:
        notes.append(
            f"rates and bandwidth are the profile's ({profile.title}); scripts/profile_cpu.py measures this machine's"
        )
    if len(devices) > 1 and (joined is None or joined.fabric is None) and profile:
        notes.append(
            f"the links were not read or fit no fabric: the request takes {profile.node.fabric}, as the profile does"
        )
    return Found(
        matched=profile.name if profile else None,
        matched_by=by,
        count=count,
        devices=[asdict(item) for item in devices],
        profile=facts,
        allocatable_memory_bytes=_allocatable(runtime, profile, memory_bytes, readings, here),
        links=joined,
        host={
            "cpu": here.cpu_name,
            "cpus": here.cpus,
            "memory_bytes": here.memory_bytes,
            "available_bytes": here.available_bytes,
        },
        versions=versions,
        request=_request(profile, count, joined),
        unknown=sorted(key for key, value in facts.items() if value is None),
        notes=notes,
    )


def _request(profile: Device | None, count: int, joined: Links | None) -> dict[str, Any] | None:
    if profile is None:
        return None
    chosen = {"fabric": joined.fabric} if joined and joined.fabric else {}
    return {"hardware": {"device": profile.name, "per_node": count, "nodes": 1, **chosen}}


def _match(
    runtime: str,
    devices: list[machine.Device],
    architecture: str | None,
    memory_bytes: int | None,
    notes: list[str],
) -> tuple[Device | None, str | None]:
    """The profile of this device: by the driver's name when the memory agrees, else by architecture and memory when only one fits."""
    if runtime == "cpu":
        return device("cpu"), "the lack of an accelerator"
    name = devices[0].name
    try:
        named = device(name)
    except HardwareError:
        named = None
    if named and (memory_bytes is None or _close(memory_bytes, named, _ECC)):
        return named, "driver name"
    if named and memory_bytes is not None:
        notes.append(
            f"{name} is called {named.name} here, but has {memory_bytes / 2**30:.1f} GiB, "
            f"not {named.memory_bytes.value / 2**30:.1f}: another variant, or a partition of the card"
        )
        return None, None
    alike = [
        each
        for each in map(device, device_names())
        if each.runtime == runtime
        and each.architecture == architecture
        and memory_bytes is not None
        and _close(memory_bytes, each, 0.005)
    ]
    generic = name in ("AMD GPU", "AMD Radeon Graphics")  # drivers that do not know the card's name
    return (alike[0], "architecture and memory") if generic and len(alike) == 1 else (None, None)


def _close(memory_bytes: int, profile: Device, tolerance: float) -> bool:
    """Whether a card with this memory, as a tool or as torch tells it, may be the profile's."""
    return any(
        abs(memory_bytes / known - 1) <= tolerance
        for known in (profile.memory_bytes.value, profile.usable_memory_bytes)
    )


def _facts(
    profile: Device | None, runtime: str, name: str, readings: Readings, memory_bytes: int | None
) -> dict[str, Any]:
    """The device file with what was read here in place of the catalog's; of an unknown device only that."""
    read: dict[str, Any] = {}
    if memory_bytes:
        read["memory_bytes"] = {"value": memory_bytes, "source": "machine", "status": "measured"}
    if readings.power_watts:
        read["tdp_watts"] = {
            "value": readings.power_watts,
            "source": "machine",
            "status": "measured",
            "note": "power limit now in force",
        }
    source = {
        "machine": {
            "title": f"{name}, read on this machine",
            "command": "recipe hardware --detect",
            "date": f"{date.today()}",
        }
    }
    if profile:
        known = profile.model_dump(mode="json", exclude_none=True, exclude={"roofline"})
        return known | read | {"sources": known["sources"] | source}
    slug = re.sub(r"[^a-z0-9]+", "-", name.casefold()).strip("-") or "unknown"
    blank: dict[str, Any] = dict.fromkeys(
        key for key, field in Device.model_fields.items() if field.is_required()
    )
    known = {
        "schema_version": 1,
        "name": slug,
        "title": name,
        "vendor": _VENDORS[runtime],
        "runtime": runtime,
        "aliases": [name],
    }
    return blank | known | {"architecture": readings.architecture} | read | {"sources": source}


def _allocatable(
    runtime: str,
    profile: Device | None,
    memory_bytes: int | None,
    readings: Readings,
    here: machine.Machine,
) -> dict[str, Any] | None:
    """Memory one process can allocate on one device, and on what that rests."""
    if readings.torch_memory_bytes:
        return {
            "value": readings.torch_memory_bytes,
            "status": "measured",
            "note": "total_memory of torch's device properties",
        }
    if runtime == "cpu":
        return {
            "value": here.available_bytes,
            "status": "measured",
            "note": "MemAvailable, or what the container leaves",
        }
    if profile is None:
        return None
    if memory_bytes is None:
        return {
            "value": profile.usable_memory_bytes,
            "status": "assumed",
            "note": "as the profile says; the driver told no total",
        }
    kept = profile.memory_bytes.value - profile.usable_memory_bytes
    return {
        "value": memory_bytes - kept,
        "status": "assumed",
        "note": "the driver's total less what the profile says it keeps",
    }


def _most(devices: list[machine.Device], notes: list[str]) -> list[machine.Device]:
    """The devices of the most frequent name; a request names one kind."""
    counts = Counter(item.name for item in devices)
    if len(counts) < 2:
        return devices
    name = counts.most_common(1)[0][0]
    left = ", ".join(f"{count} × {other}" for other, count in counts.items() if other != name)
    notes.append(f"a request names one kind of device; left out: {left}")
    return [item for item in devices if item.name == name]


def describe(found: Found) -> str:
    """The machine as lines for a terminal; the request's block comes last."""
    facts, room = found.profile, found.allocatable_memory_bytes
    known = (
        f"profile {found.matched}, by {found.matched_by}" if found.matched else "no profile matches"
    )
    rows = [
        (
            "Device",
            f"{found.count} × {found.devices[0]['name'] if found.devices else found.host['cpu']} ({known})",
        ),
        ("Architecture", facts["architecture"] or "unknown"),
        ("Memory", _shown(facts["memory_bytes"], gib)),
        (
            "A process gets",
            f"{gib(room['value'])} ({room['status']}: {room['note']})"
            if room and room["value"]
            else "unknown",
        ),
        (
            "Memory bandwidth",
            _shown(facts["memory_bandwidth_bytes_per_s"], lambda value: per_second(value, "B")),
        ),
        ("Power limit", _shown(facts["tdp_watts"], lambda value: f"{significant(value)} W")),
        ("Links", _links_text(found)),
        (
            "Host",
            f"{found.host['cpus']} cores, {_amount(found.host['memory_bytes'])}, {_amount(found.host['available_bytes'])} available",
        ),
        ("Versions", ", ".join(f"{name} {version}" for name, version in found.versions.items())),
        *(
            ("Unknown", f"{name}: not told by any tool here, and not guessed")
            for name in found.unknown
        ),
        *(("Note", note) for note in found.notes),
    ]
    lines = [f"{label + ':':18}{text}" for label, text in rows]
    return "\n".join([*lines, "", to_yaml(found.request).rstrip() if found.request else _REFUSED])


_REFUSED = "No request can name this device yet: complete the profile that --json prints and give its file as hardware.device."


def _shown(figure: dict[str, Any] | None, show: Callable[[float], str]) -> str:
    if figure is None:
        return "unknown"
    origin = "read here" if figure["source"] == "machine" else "of the profile"
    return f"{show(figure['value'])} ({figure['status']}, {origin})"


def _amount(value: int | None) -> str:
    return gib(value) if value else "unknown memory"


def _links_text(found: Found) -> str:
    if found.links is None:
        return "not read" if found.count > 1 else "a single device"
    return f"{found.links.kind}, {found.links.note}; fabric {found.links.fabric or 'unknown'}"
