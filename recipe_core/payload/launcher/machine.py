"""Reads the machine: accelerators by their vendors' tools, processor and memory from /proc."""

from __future__ import annotations

import os
import re
from dataclasses import asdict, dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

from .devices import Device, list_devices, read_properties
from .slices import with_slices

# The variable by which each runtime hides devices, in the order in which runtimes are looked for.
VISIBLE = {
    "cuda": "CUDA_VISIBLE_DEVICES",
    "rocm": "HIP_VISIBLE_DEVICES",
    "xpu": "ZE_AFFINITY_MASK",
}
_FREE = ("MemFree", "Active(file)", "Inactive(file)", "SReclaimable")


@dataclass(frozen=True, slots=True)
class Memory:
    """One memory as it is now: a device's, or that of a memory node; ``name`` for people."""

    name: str
    total_bytes: int
    free_bytes: int


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine; ``runtime`` is cuda, rocm or xpu with accelerators, else cpu.

    ``notes`` say why a vendor's tool failed. ``driver``: version of the accelerators' kernel
    driver; empty where it does not say. ``memories``: the memory nodes that this process may run
    on.
    """

    runtime: str
    devices: tuple[Device, ...]
    cpu_name: str
    cpus: int
    memory_bytes: int | None
    available_bytes: int | None
    notes: tuple[str, ...] = ()
    driver: str = ""
    memories: tuple[Memory, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The machine as a measurement records it."""
        values = asdict(self)
        del values["memories"]  # how it is just now
        return values


def detect_machine() -> Machine:
    """Ask each vendor's tool in turn; the first that lists devices names the runtime."""
    notes: list[str] = []
    devices: list[Device] = []
    runtime = ""
    for runtime in VISIBLE:
        if devices := list_devices(runtime, notes):
            break
    if devices and runtime == "cuda":
        devices = with_slices(devices, notes)
    variable = VISIBLE[runtime]
    shown = visible_devices(devices, variable)
    if devices and not shown:
        hidden = f"{len(devices)} x {devices[0].name}"
        notes.append(f"{variable}={os.environ[variable]} hides all of {hidden}")
    total, available = host_memory_bytes()
    cpus = frozenset(os.sched_getaffinity(0))
    return Machine(
        runtime if shown else "cpu",
        tuple(shown),
        cpu_name(),
        len(cpus),
        total,
        available,
        tuple(notes),
        driver_version(runtime) if shown else "",
        node_memories(cpus, limit_bytes=total, available_bytes=available),
    )


# Where the kernel says which driver it has loaded, and how to read the version out of it.
_DRIVERS = {
    "cuda": (Path("/proc/driver/nvidia/version"), r"\s(\d+\.\d+(?:\.\d+)?)\s"),
    "rocm": (Path("/sys/module/amdgpu/version"), r"(\S+)"),
    "xpu": (Path("/sys/module/xe/version"), r"(\S+)"),
}


def driver_version(runtime: str) -> str:
    """The version of the loaded driver; empty where the kernel does not say."""
    path, pattern = _DRIVERS[runtime]
    try:
        text = path.read_text(encoding="utf-8", errors="replace")[:4096]
    except OSError:
        return ""
    match = re.search(pattern, text)
    return match.group(1) if match else ""


def visible_devices(devices: list[Device], variable: str) -> list[Device]:
    """The devices that the environment leaves visible, where it lists numbers, not UUIDs.

    As the vendors' runtimes read it: an empty list hides all, and the first number without a device
    (-1) ends the list.
    """
    value = os.environ.get(variable)
    if value is None or not re.fullmatch(r"(\s*-?\d+\s*(,\s*-?\d+\s*)*)?\s*", value):
        return devices
    device_indexes = {device.index for device in devices}
    listed = (int(part) for part in value.split(",") if part.strip())
    indexes = set(takewhile(device_indexes.__contains__, listed))
    return [device for device in devices if device.index in indexes]


def host_memory_bytes(
    meminfo: Path = Path("/proc/meminfo"), cgroup: Path = Path("/sys/fs/cgroup")
) -> tuple[int | None, int | None]:
    """Total and available bytes; a container's limit counts where it is lower."""
    figures = _read_kilobytes(meminfo)
    total, available = figures.get("MemTotal"), figures.get("MemAvailable")
    if total is None or available is None:
        return None, None
    try:
        limit = int((cgroup / "memory.max").read_text(encoding="utf-8"))
        used = int((cgroup / "memory.current").read_text(encoding="utf-8"))
        # The kernel frees file cache on demand.
        used -= read_properties(cgroup / "memory.stat").get("inactive_file", 0)
    except (OSError, ValueError):  # "max" means no limit
        return total, available
    return min(total, limit), min(available, max(0, limit - used))


def cpu_name() -> str:
    """The processor's name as the kernel prints it."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return "unknown CPU"
    match = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return match.group(1).strip() if match else "unknown CPU"


def node_memories(
    cpus: frozenset[int],
    folder: Path = Path("/sys/devices/system/node"),
    *,
    limit_bytes: int | None = None,
    available_bytes: int | None = None,
) -> tuple[Memory, ...]:
    """The memory nodes that ``cpus`` are on, in the order of their first; none where none are read.

    Free is what the kernel can give without swapping, as vLLM counts it for a node: unused memory,
    caches of files, reclaimable kernel memory. A container's limit, ``limit_bytes``, counts where
    it is lower; ``available_bytes`` is what it leaves.
    """
    memories = []
    for node in sorted(folder.glob("node[0-9]*"), key=lambda path: int(path.name[4:])):
        try:
            listed = (node / "cpulist").read_text(encoding="utf-8")  # like 0-3,8
        except OSError:
            continue
        ranges = re.findall(r"(\d+)(?:-(\d+))?", listed)
        node_cpus = {cpu for low, high in ranges for cpu in range(int(low), int(high or low) + 1)}
        first, figures = min(node_cpus & cpus, default=None), _read_kilobytes(node / "meminfo")
        if first is None or "MemTotal" not in figures:
            continue
        free = sum(figures.get(name, 0) for name in _FREE)
        total = figures["MemTotal"]
        if limit_bytes is not None and limit_bytes < total:
            total, free = limit_bytes, min(free, available_bytes or 0)
        memories.append((first, Memory(f"memory node {node.name[4:]}", total, free)))
    return tuple(memory for _, memory in sorted(memories, key=lambda pair: pair[0]))


def _read_kilobytes(path: Path) -> dict[str, int]:
    """Bytes by name, from lines like ``MemFree:  8453848 kB``; empty for no such file."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError:
        return {}
    return {name: int(size) << 10 for name, size in re.findall(r"(\S+):\s+(\d+) kB", text)}
