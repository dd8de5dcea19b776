"""Accelerators as their vendors' tools and the kernel list them, and who holds their memory."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .procs import ask_program, read_process_name

_UNITS = {"B": 1} | {
    f"{letter}{end}": 1 << 10 * power
    for power, letter in enumerate("KMG", 1)
    for end in ("B", "IB")
}
_SHOWN = 3
# What holds less would not change whether an engine starts.
_LEAST_BYTES = 64 << 20
_LONGEST_NAME = 40


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
class Holder:
    """A process and what it holds; ``size_bytes`` is None where the tool does not say."""

    pid: int
    name: str
    size_bytes: int | None

    def text(self) -> str:
        """For people."""
        name = f" ({self.name})" if self.name else ""
        size = "memory" if self.size_bytes is None else f"{self.size_bytes / (1 << 30):.2f} GiB"
        return f"pid {self.pid}{name} holds {size}"


@dataclass(frozen=True, slots=True)
class Question:
    """A vendor's tool with its words, and what reads its answer; ``notes``: failures are told."""

    words: str
    parse: Callable[[str], Any]
    notes: bool = True


def ask_tools(questions: Iterable[Question], notes: list[str]) -> Any:
    """Return the first answer that is not empty; None where no tool gives one, which is noted."""
    for question in questions:
        argv, failures = question.words.split(), notes if question.notes else []
        output = run_vendor_tool(argv, failures)
        try:
            if output and (answer := question.parse(output)):
                return answer
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            failures.append(f"{argv[0]}: the output could not be read ({error})")
    return None


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


def list_devices(runtime: str, notes: list[str]) -> list[Device]:
    """All devices of a runtime here, with their memory where a tool tells it."""
    devices: list[Device] = ask_tools(DEVICES[runtime], notes) or []
    if runtime == "rocm":
        devices = devices or read_kfd(Path("/sys/class/kfd/kfd/topology/nodes"))
        return _with_free(devices, notes)
    return [_with_size(device, notes) for device in devices] if runtime == "xpu" else devices


def list_holders(runtime: str) -> list[Holder]:
    """The processes that hold most, largest first; empty where nothing can be learned."""
    if runtime == "cpu":
        listed = list_memory_holders()
    else:
        listed = _sum_by_pid(ask_tools(HOLDERS.get(runtime, ()), []) or ())
    relevant = [
        holder
        for holder in listed
        if holder.pid != os.getpid()
        and (holder.size_bytes is None or holder.size_bytes >= _LEAST_BYTES)
    ]
    return sorted(relevant, key=lambda holder: -(holder.size_bytes or 0))[:_SHOWN]


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
            devices.append(Device(len(devices), name, total, free, _sm(capability)))
    return devices


def _sm(capability: str) -> str:
    """``sm_90`` of a compute capability like 9.0; empty for anything else."""
    return f"sm_{capability.replace('.', '')}" if re.fullmatch(r"\d+\.\d", capability) else ""


def spell_gfx(name: str) -> str:
    """The usual spelling of names like gfx9010, as some releases of rocm-smi print gfx90a."""
    match = re.fullmatch(r"gfx9(\d)(\d\d)", name.casefold())
    return f"gfx9{match[1]}{int(match[2]):x}" if match else name.casefold()


def _mebibytes(text: str) -> int | None:
    return int(text) << 20 if text.isdigit() else None


def parse_rocm_smi(output: str) -> list[Device]:
    """The devices of ``{"card0": {"Card Series": …, "VRAM Total Memory (B)": "…"}}``."""
    cards = _read_printed(output)
    numbered = sorted(
        (int(key[4:]), value) for key, value in cards.items() if re.fullmatch(r"card\d+", key)
    )
    return [_rocm_device(index, card) for index, card in numbered]


def _rocm_device(index: int, card: dict[str, Any]) -> Device:
    total = _parse_digits(card.get("VRAM Total Memory (B)"))
    used = _parse_digits(card.get("VRAM Total Used Memory (B)"))
    free = None if total is None or used is None else total - used
    return Device(index, _card_name(card), total, free, spell_gfx(str(card.get("GFX Version", ""))))


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
            _parse_unit_bytes(item.get("vram", {}).get("size")),
            architecture=spell_gfx(str(item.get("asic", {}).get("target_graphics_version", ""))),
        )
        for index, item in enumerate(_list_amd_items(output))
    ]


def _with_free(devices: list[Device], notes: list[str]) -> list[Device]:
    """The devices with their free memory, where only amd-smi tells it."""
    if all(device.free_bytes is not None for device in devices):
        return devices
    question = Question("amd-smi metric --mem-usage --json", parse_amd_usage)
    free: dict[int, int] = ask_tools([question], notes) or {}
    return [replace(device, free_bytes=free.get(device.index)) for device in devices]


def parse_amd_usage(output: str) -> dict[int, int]:
    """Free bytes by device, of objects with ``mem_usage``: ``free_vram``, or total less used."""
    free: dict[int, int] = {}
    for index, item in enumerate(_list_amd_items(output)):
        usage = item.get("mem_usage") or {}
        free_bytes, total, used = (
            _parse_unit_bytes(usage.get(key)) for key in ("free_vram", "total_vram", "used_vram")
        )
        if free_bytes is None and total is not None and used is not None:
            free_bytes = total - used
        if free_bytes is not None:
            free[int(item.get("gpu", index))] = free_bytes
    return free


def _list_amd_items(output: str) -> list[dict[str, Any]]:
    """The devices in what ``amd-smi`` prints, after its warnings: a list, or one in ``gpu_data``.

    Raises:
        ValueError: where it is no JSON.
    """
    starts = [position for position in (output.find("["), output.find("{")) if position >= 0]
    data = json.loads(output[min(starts) :]) if starts else []
    items = data.get("gpu_data", []) if isinstance(data, dict) else data
    return [item for item in items if isinstance(item, dict)]


def _read_printed(output: str) -> dict[str, Any]:
    """The object that a tool prints, after its warnings.

    Raises:
        ValueError: where there is none.
    """
    data: dict[str, Any] = json.loads(output[output.index("{") :])
    return data


def _parse_unit_bytes(size: object, unit: str = "MB") -> int | None:
    """Bytes of ``{"value": 37.2, "unit": "GB"}``, in binary units; ``unit`` where it has none."""
    value = size.get("value") if isinstance(size, dict) else None
    if not isinstance(size, dict) or not isinstance(value, (int, float)):
        return None
    return round(value * _UNITS.get(str(size.get("unit", unit)).upper(), _UNITS[unit]))


def parse_xpu_smi(output: str) -> list[Device]:
    """The GPUs of ``{"device_list": [{"device_id": 0, "device_name": "Intel(R) Arc(TM) …"}]}``."""
    items = _read_printed(output).get("device_list", [])
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
    question = Question(f"xpu-smi discovery -d {device.index} --json", _read_printed)
    facts: dict[str, Any] = ask_tools([question], notes) or {}
    return replace(device, memory_bytes=_parse_digits(facts.get("memory_physical_size_byte")))


def _parse_digits(value: object) -> int | None:
    return int(str(value)) if str(value).isdigit() else None


def read_kfd(nodes: Path) -> list[Device]:
    """The kernel's own list, without ROCm's tools: nodes with SIMD units are GPUs."""
    devices: list[Device] = []
    for node in sorted(nodes.glob("*"), key=lambda path: (len(path.name), path.name)):
        facts = read_properties(node / "properties")
        if facts.get("simd_count", 0) > 0:
            banks = [
                read_properties(bank).get("size_in_bytes", 0)
                for bank in node.glob("mem_banks/*/properties")
            ]
            version = facts.get("gfx_target_version", 0)
            # gfx942 of 90402: major, minor and, in hexadecimal, stepping
            target = f"gfx{version // 10000}{version // 100 % 100}{version % 100:x}"
            size = max(banks, default=0) or None
            devices.append(
                Device(len(devices), "AMD GPU", size, architecture=target if version else "")
            )
    return devices


def read_properties(path: Path) -> dict[str, int]:
    """Whole numbers by name, from lines like ``simd_count 1216``; empty for no such file."""
    try:
        pairs = [line.split() for line in path.read_text(encoding="utf-8").splitlines()]
    except OSError:
        return {}
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}


def parse_compute_apps(output: str) -> list[Holder]:
    """Holders of lines like ``812, 38912, /usr/bin/python3`` (MiB, or ``[N/A]``)."""
    holders = []
    for line in output.splitlines():
        pid, size, name = (*line.split(",", 2), "", "")[:3]
        if pid.strip().isdigit():
            holders.append(_name_holder(pid, name, _mebibytes(size.strip())))
    return holders


def parse_amd_processes(output: str) -> list[Holder]:
    """Holders of a list of devices, each with its ``process_list``.

    Raises:
        ValueError: where it is no JSON.
    """
    holders = []
    for device in _list_amd_items(output):
        listed = device.get("process_list")
        for item in listed if isinstance(listed, list) else []:
            process = item.get("process_info", item) if isinstance(item, dict) else None
            if isinstance(process, dict) and str(process.get("pid", "")).isdigit():
                size = _parse_unit_bytes((process.get("memory_usage") or {}).get("vram_mem"), "B")
                holders.append(_name_holder(process["pid"], str(process.get("name") or ""), size))
    return holders


def parse_rocm_pids(output: str) -> list[Holder]:
    """Holders of ``{"system": {"PID812": "python3, 1, 40802189312, 0, 0"}}``: third is VRAM.

    Raises:
        ValueError: where it is no JSON.
    """
    holders = []
    for key, value in _read_printed(output).get("system", {}).items():
        number = re.fullmatch(r"PID(\d+)", key)
        words = [word.strip() for word in str(value).split(",")]
        if number and len(words) >= 3:
            holders.append(_name_holder(number[1], words[0], _parse_digits(words[2])))
    return holders


def list_memory_holders(processes: Path = Path("/proc")) -> list[Holder]:
    """Resident memory of every process, without what it shares."""
    page, holders = os.sysconf("SC_PAGE_SIZE"), []
    for entry in processes.iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "statm").read_text(encoding="utf-8").split()
            except OSError:
                continue
            size = (int(words[1]) - int(words[2])) * page
            if size >= _LEAST_BYTES:
                holders.append(_name_holder(entry.name, "", size))
    return holders


def _sum_by_pid(holders: Iterable[Holder]) -> list[Holder]:
    by_pid: dict[int, Holder] = {}
    for holder in holders:
        before = by_pid.get(holder.pid)
        if before is not None and before.size_bytes is not None:
            holder = replace(holder, size_bytes=before.size_bytes + (holder.size_bytes or 0))
        by_pid[holder.pid] = holder
    return list(by_pid.values())


def _name_holder(pid: str | int, reported: str, size_bytes: int | None) -> Holder:
    """A process with its own name where it can be read, else with what the tool reports."""
    text = read_process_name(int(pid)) or reported.strip().strip('"')
    name = "" if text.startswith("[") or text == "N/A" else text[:_LONGEST_NAME]
    return Holder(int(pid), name, size_bytes)


_NVIDIA = "nvidia-smi --query-gpu=name,memory.total,memory.free{} --format=csv,noheader,nounits"
_NVIDIA_APPS = (
    "nvidia-smi --query-compute-apps=pid,used_gpu_memory,process_name --format=csv,noheader,nounits"
)
# Who lists the devices of a runtime, first the one that tells most.
DEVICES: Mapping[str, Sequence[Question]] = {
    "cuda": (
        # Drivers of before 2022 do not tell the compute capability.
        Question(_NVIDIA.format(",compute_cap"), parse_nvidia_smi, notes=False),
        Question(_NVIDIA.format(""), parse_nvidia_smi),
    ),
    "rocm": (
        Question("rocm-smi --showproductname --showmeminfo vram --json", parse_rocm_smi),
        Question("amd-smi static --asic --vram --json", parse_amd_smi),
    ),
    "xpu": (Question("xpu-smi discovery --json", parse_xpu_smi),),
}
# Who lists the processes that hold their memory.
HOLDERS: Mapping[str, Sequence[Question]] = {
    "cuda": (Question(_NVIDIA_APPS, parse_compute_apps),),
    "rocm": (
        Question("amd-smi process --json", parse_amd_processes),
        Question("rocm-smi --showpids --json", parse_rocm_pids),
    ),
}
