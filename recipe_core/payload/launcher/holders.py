"""Processes that hold memory: of accelerators by their vendors' tools, else by /proc."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from .machine import list_amd_items, parse_unit_bytes, run_vendor_tool
from .procs import read_process_name

_SHOWN = 3
# What holds less would not change whether an engine starts.
_LEAST_BYTES = 64 << 20
_LONGEST_NAME = 40


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


def holders(runtime: str) -> list[Holder]:
    """The processes that hold most, largest first; empty where nothing can be learned."""
    readers: dict[str, Callable[[], list[Holder]]] = {
        "cuda": _of_nvidia,
        "rocm": _of_amd,
        "cpu": _list_memory_holders,
    }
    relevant = [
        holder
        for holder in readers.get(runtime, list)()
        if holder.pid != os.getpid()
        and (holder.size_bytes is None or holder.size_bytes >= _LEAST_BYTES)
    ]
    return sorted(relevant, key=lambda holder: -(holder.size_bytes or 0))[:_SHOWN]


def _of_nvidia() -> list[Holder]:
    words = ["--query-compute-apps=pid,used_gpu_memory,process_name"]
    output = run_vendor_tool(["nvidia-smi", *words, "--format=csv,noheader,nounits"], [])
    return parse_compute_apps(output) if output else []


def parse_compute_apps(output: str) -> list[Holder]:
    """Holders of lines like ``812, 38912, /usr/bin/python3`` (MiB, or ``[N/A]``); sums by pid."""
    rows = []
    for line in output.splitlines():
        pid, _, rest = line.partition(",")
        size, _, name = rest.partition(",")
        if pid.strip().isdigit():
            mebibytes = size.strip()
            size_bytes = int(mebibytes) << 20 if mebibytes.isdigit() else None
            rows.append(Holder(int(pid), _holder_name(int(pid), name), size_bytes))
    return _summed(rows)


def _of_amd() -> list[Holder]:
    attempts: list[tuple[list[str], Callable[[str], list[Holder]]]] = [
        (["amd-smi", "process", "--json"], parse_amd_processes),
        (["rocm-smi", "--showpids", "--json"], parse_rocm_pids),
    ]
    for argv, parse in attempts:
        output = run_vendor_tool(argv, [])
        try:
            if output and (holders := parse(output)):
                return holders
        except (ValueError, TypeError, AttributeError):
            continue
    return []


def parse_amd_processes(output: str) -> list[Holder]:
    """Holders of a list of devices, each with its ``process_list``; sums by pid.

    Raises:
        ValueError: where it is no JSON.
    """
    rows = []
    for device in list_amd_items(output):
        listed = device.get("process_list")
        for item in listed if isinstance(listed, list) else []:
            process = item.get("process_info", item) if isinstance(item, dict) else None
            if isinstance(process, dict) and str(process.get("pid", "")).isdigit():
                pid = int(process["pid"])
                size = parse_unit_bytes((process.get("memory_usage") or {}).get("vram_mem"), "B")
                rows.append(Holder(pid, _holder_name(pid, str(process.get("name") or "")), size))
    return _summed(rows)


def parse_rocm_pids(output: str) -> list[Holder]:
    """Holders of ``{"system": {"PID812": "python3, 1, 40802189312, 0, 0"}}``: third is VRAM.

    Raises:
        ValueError: where it is no JSON.
    """
    listed = json.loads(output[output.index("{") :]).get("system", {})
    rows = []
    for key, value in listed.items():
        number = re.fullmatch(r"PID(\d+)", key)
        words = [word.strip() for word in str(value).split(",")]
        if number and len(words) >= 3:
            size = int(words[2]) if words[2].isdigit() else None
            rows.append(Holder(int(number[1]), _holder_name(int(number[1]), words[0]), size))
    return _summed(rows)


def _list_memory_holders(processes: Path = Path("/proc")) -> list[Holder]:
    """Resident memory of every process, without what it shares."""
    page, rows = os.sysconf("SC_PAGE_SIZE"), []
    for entry in processes.iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "statm").read_text(encoding="utf-8").split()
            except OSError:
                continue
            size = (int(words[1]) - int(words[2])) * page
            if size >= _LEAST_BYTES:
                rows.append(Holder(int(entry.name), _holder_name(int(entry.name), ""), size))
    return rows


def _summed(rows: Iterable[Holder]) -> list[Holder]:
    by_pid: dict[int, Holder] = {}
    for row in rows:
        before = by_pid.get(row.pid)
        sizes = [
            holder.size_bytes
            for holder in (before, row)
            if holder and holder.size_bytes is not None
        ]
        by_pid[row.pid] = Holder(row.pid, row.name, sum(sizes) if sizes else None)
    return list(by_pid.values())


def _holder_name(pid: int, reported: str) -> str:
    """A process's name: its own where it can be read, else what the tool reports."""
    text = read_process_name(pid) or reported.strip().strip('"')
    return "" if text.startswith("[") or text == "N/A" else text[:_LONGEST_NAME]
