"""Reads the machine: accelerators by their vendors' tools, processor and memory from /proc."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import Any

from .claims import Memory, node_memories
from .procs import ask_program

UNITS = {
    "B": 1,
    "KB": 1 << 10,
    "MB": 1 << 20,
    "GB": 1 << 30,
    "KIB": 1 << 10,
    "MIB": 1 << 20,
    "GIB": 1 << 30,
}


@dataclass(frozen=True, slots=True)
class Device:
    """One accelerator; memory is None where the tool does not say (unified memory prints [N/A]).

    ``free_bytes``: of its memory, what no process holds now. ``architecture``: sm_90, gfx942 and so
    on; empty where the tool does not say.
    """

    index: int
    name: str
    memory_bytes: int | None
    free_bytes: int | None = None
    architecture: str = ""


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
    runtime, devices, variable = "cuda", _nvidia(notes), "CUDA_VISIBLE_DEVICES"
    if not devices:
        runtime, devices, variable = "rocm", _amd(notes), "HIP_VISIBLE_DEVICES"
    if not devices:
        runtime, devices, variable = "xpu", _intel(notes), "ZE_AFFINITY_MASK"
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


def run_vendor_tool(argv: list[str], notes: list[str]) -> str | None:
    """A tool's output; None where it is missing, or fails (with a note)."""
    if shutil.which(argv[0]) is None:
        return None
    code, text, errors = ask_program(argv, timeout_s=30)
    if code == 0:
        return text
    first = (errors or text).strip().splitlines()[:1]
    notes.append(f"{argv[0]}: {first[0] if first else f'exit code {code}'}")
    return None


def _nvidia(notes: list[str]) -> list[Device]:
    """NVIDIA's GPUs; drivers of before 2022 do not tell the compute capability."""
    ignored: list[str] = []
    for fields, tool_notes in (("compute_cap", ignored), ("", notes)):
        query = ",".join(filter(None, ("name,memory.total,memory.free", fields)))
        argv = ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader,nounits"]
        if output := run_vendor_tool(argv, tool_notes):
            return parse_nvidia_smi(output)
    return []


def parse_nvidia_smi(output: str) -> list[Device]:
    """The devices of lines like ``NVIDIA H100 80GB HBM3, 81559, 81000, 9.0`` (MiB, or ``[N/A]``).

    Free memory and the compute capability may be left out.
    """
    devices: list[Device] = []
    for line in output.splitlines():
        name, *sizes = [part.strip() for part in line.split(",")]
        if name and sizes:
            total, free = (*map(_mebibytes, sizes[:2]), None)[:2]
            capability = sizes[2] if len(sizes) > 2 else ""
            devices.append(Device(len(devices), name, total, free, sm(capability)))
    return devices


def sm(capability: str) -> str:
    """``sm_90`` of a compute capability like 9.0; empty for anything else."""
    return f"sm_{capability.replace('.', '')}" if re.fullmatch(r"\d+\.\d", capability) else ""


def gfx(name: str) -> str:
    """The usual spelling of names like gfx9010, as some releases of rocm-smi print gfx90a."""
    match = re.fullmatch(r"gfx9(\d)(\d\d)", name.casefold())
    return f"gfx9{match[1]}{int(match[2]):x}" if match else name.casefold()


def _mebibytes(text: str) -> int | None:
    return int(text) << 20 if text.isdigit() else None


def _amd(notes: list[str]) -> list[Device]:
    attempts: list[tuple[list[str], Callable[[str], list[Device]]]] = [
        (["rocm-smi", "--showproductname", "--showmeminfo", "vram", "--json"], parse_rocm_smi),
        (["amd-smi", "static", "--asic", "--vram", "--json"], parse_amd_smi),
    ]
    for argv, parse in attempts:
        output = run_vendor_tool(argv, notes)
        if output is None:
            continue
        try:
            if devices := parse(output):
                return _with_free(devices, notes)
        except (ValueError, TypeError, AttributeError) as error:
            notes.append(f"{argv[0]}: the output could not be read ({error})")
    return read_kfd(Path("/sys/class/kfd/kfd/topology/nodes"))


def parse_rocm_smi(output: str) -> list[Device]:
    """The devices of ``{"card0": {"Card Series": …, "VRAM Total Memory (B)": "…"}}``."""
    cards = json.loads(output[output.index("{") :])
    numbered = sorted(
        (int(key[4:]), value) for key, value in cards.items() if re.fullmatch(r"card\d+", key)
    )
    return [_rocm_device(index, card) for index, card in numbered]


def _rocm_device(index: int, card: dict[str, Any]) -> Device:
    total = _parse_digits(card.get("VRAM Total Memory (B)"))
    used = _parse_digits(card.get("VRAM Total Used Memory (B)"))
    free = None if total is None or used is None else total - used
    return Device(index, _card_name(card), total, free, gfx(str(card.get("GFX Version", ""))))


def _card_name(card: dict[str, Any]) -> str:
    """Releases differ in capitals, and some put a number like 0x74a1 where the name belongs."""
    by_key = {key.casefold(): str(value) for key, value in card.items()}
    names = [
        by_key.get(key, "") for key in ("card series", "card model", "device name", "market name")
    ]
    return next(
        (name for name in names if name and name != "N/A" and not name.startswith("0x")), "AMD GPU"
    )


def parse_amd_smi(output: str) -> list[Device]:
    """The devices of a list of objects, which is in ``gpu_data`` in later releases.

    The size is ``{"value": 196592, "unit": "MB"}``, in binary units.
    """
    return [
        Device(
            int(item.get("gpu", index)),
            item.get("asic", {}).get("market_name") or "AMD GPU",
            parse_unit_bytes(item.get("vram", {}).get("size")),
            architecture=gfx(str(item.get("asic", {}).get("target_graphics_version", ""))),
        )
        for index, item in enumerate(list_amd_items(output))
    ]


def _with_free(devices: list[Device], notes: list[str]) -> list[Device]:
    """The devices with their free memory, where only amd-smi tells it."""
    if all(device.free_bytes is not None for device in devices):
        return devices
    output = run_vendor_tool(["amd-smi", "metric", "--mem-usage", "--json"], notes)
    free = parse_amd_usage(output) if output else {}
    return [replace(device, free_bytes=free.get(device.index)) for device in devices]


def parse_amd_usage(output: str) -> dict[int, int]:
    """Free bytes by device, of objects with ``mem_usage``: ``free_vram``, or total less used."""
    free: dict[int, int] = {}
    for index, item in enumerate(list_amd_items(output)):
        usage = item.get("mem_usage") or {}
        sizes = [
            parse_unit_bytes(usage.get(key)) for key in ("free_vram", "total_vram", "used_vram")
        ]
        free_bytes, total, used = sizes
        if free_bytes is None and total is not None and used is not None:
            free_bytes = total - used
        if free_bytes is not None:
            free[int(item.get("gpu", index))] = free_bytes
    return free


def list_amd_items(output: str) -> list[dict[str, Any]]:
    """The devices in what ``amd-smi`` prints, after its warnings: a list, or one in ``gpu_data``.

    Raises:
        ValueError: where it is no JSON.
    """
    starts = [position for position in (output.find("["), output.find("{")) if position >= 0]
    data = json.loads(output[min(starts) :]) if starts else []
    items = data.get("gpu_data", []) if isinstance(data, dict) else data
    return [item for item in items if isinstance(item, dict)]


def parse_unit_bytes(size: object, unit: str = "MB") -> int | None:
    """Bytes of ``{"value": 37.2, "unit": "GB"}``, in binary units; ``unit`` where it has none."""
    value = size.get("value") if isinstance(size, dict) else None
    if not isinstance(size, dict) or not isinstance(value, (int, float)):
        return None
    return round(value * UNITS.get(str(size.get("unit", unit)).upper(), UNITS[unit]))


def _intel(notes: list[str]) -> list[Device]:
    """Intel's GPUs, with their memory where the tool tells it of each."""
    output = run_vendor_tool(["xpu-smi", "discovery", "--json"], notes)
    try:
        devices = parse_xpu_smi(output) if output else []
    except (ValueError, TypeError, AttributeError) as error:
        notes.append(f"xpu-smi: the output could not be read ({error})")
        return []
    return [_with_size(device, notes) for device in devices]


def parse_xpu_smi(output: str) -> list[Device]:
    """The GPUs of ``{"device_list": [{"device_id": 0, "device_name": "Intel(R) Arc(TM) …"}]}``."""
    items = json.loads(output[output.index("{") :]).get("device_list", [])
    gpus = [item for item in items if item.get("device_type", "GPU") == "GPU"]
    return [
        Device(
            int(item["device_id"]),
            str(item.get("device_name", "Intel GPU")),
            _parse_digits(item.get("memory_physical_size_byte")),
        )
        for item in gpus
        if str(item.get("device_id")).isdigit()
    ]


def _with_size(device: Device, notes: list[str]) -> Device:
    if device.memory_bytes is not None:
        return device
    output = run_vendor_tool(["xpu-smi", "discovery", "-d", str(device.index), "--json"], notes)
    try:
        facts = json.loads(output[output.index("{") :]) if output else {}
    except ValueError:
        return device
    return replace(device, memory_bytes=_parse_digits(facts.get("memory_physical_size_byte")))


def _parse_digits(value: object) -> int | None:
    return int(str(value)) if str(value).isdigit() else None


def read_kfd(nodes: Path) -> list[Device]:
    """The kernel's own list, without ROCm's tools: nodes with SIMD units are GPUs."""
    devices: list[Device] = []
    for node in sorted(nodes.glob("*"), key=lambda path: (len(path.name), path.name)):
        if _properties(node / "properties").get("simd_count", 0) > 0:
            banks = [
                _properties(bank).get("size_in_bytes", 0)
                for bank in sorted(node.glob("mem_banks/*/properties"))
            ]
            version = _properties(node / "properties").get("gfx_target_version", 0)
            memory_bytes = max(banks, default=0) or None
            devices.append(
                Device(len(devices), "AMD GPU", memory_bytes, architecture=_gfx_target(version))
            )
    return devices


def _gfx_target(version: int) -> str:
    """``gfx942`` of the kernel's 90402: major, minor and, in hexadecimal, stepping."""
    return f"gfx{version // 10000}{version // 100 % 100}{version % 100:x}" if version else ""


def _properties(path: Path) -> dict[str, int]:
    try:
        pairs = [line.split() for line in path.read_text(encoding="utf-8").splitlines()]
    except OSError:
        return {}
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}


def host_memory_bytes(
    meminfo: Path = Path("/proc/meminfo"), cgroup: Path = Path("/sys/fs/cgroup")
) -> tuple[int | None, int | None]:
    """Total and available bytes; a container's limit counts where it is lower."""
    try:
        lines = dict(
            line.split(":", 1)
            for line in meminfo.read_text(encoding="utf-8").splitlines()
            if ":" in line
        )
        total, available = (
            int(lines[key].split()[0]) << 10 for key in ("MemTotal", "MemAvailable")
        )
    except (OSError, KeyError, ValueError):
        return None, None
    try:
        limit = int((cgroup / "memory.max").read_text(encoding="utf-8"))
        used = int((cgroup / "memory.current").read_text(encoding="utf-8"))
        # The kernel frees file cache on demand.
        used -= _properties(cgroup / "memory.stat").get("inactive_file", 0)
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
