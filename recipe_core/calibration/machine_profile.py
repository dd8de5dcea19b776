"""A profile of this machine from its micro-benchmarks: fitted numbers in the form of a device.

What a tool of the vendor tells (name, memory, driver) is taken from ``hardware.detect``. A device
that a shipped profile describes is based on it, with shares of the datasheet's rates; any other,
and every processor, is held against its own best measured rates.
"""

from __future__ import annotations

import math
import platform
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from recipe_core import __version__
from recipe_core.base.documents import parse_yaml, read_text, to_yaml, write_whole
from recipe_core.base.errors import InputError, NoAnswer, RecipeError
from recipe_core.base.units import share_text
from recipe_core.calibration.roofline_fit import RooflineFit, fit_roofline
from recipe_core.hardware.cluster import device_names, device_profile, fabric
from recipe_core.hardware.detect.machine import Found, detect_machine
from recipe_core.hardware.microbench.collectives import Reduced
from recipe_core.hardware.microbench.disk import DiskRates, measure_disk
from recipe_core.hardware.microbench.host import Ratios, host_ratios, merge_host_times
from recipe_core.hardware.microbench.points import Deadline, Point
from recipe_core.hardware.microbench.run import (
    FULL_S,
    LEAST_S,
    QUICK_S,
    Measured,
    check_torch,
    measure_device,
)
from recipe_core.hardware.microbench.run import device_kind as chosen
from recipe_core.hardware.profile import Device, Dtype, Fabric, Family
from recipe_core.hardware.request import BASE, MAX_BYTES, is_profile_path

# The entry of ``sources`` that measured figures cite.
SOURCE = "profile"
_ASSUMED = "assumed"
# Of a server's processor: its power limit over its cores, roughly.
WATTS_A_CORE = 15.0
CARD_WATTS = 300.0
# Load over processors beyond which times say no more.
MOST_BUSY = 16.0
_PRESENT: tuple[Dtype, ...] = ("fp32", "bf16", "fp16")


@dataclass(frozen=True, slots=True)
class Profiled:
    """A finished profile: plain values in the form of a custom device, and how it was made."""

    values: dict[str, Any]
    device: Device
    measured: Measured
    spread: float
    busy: float


def profile_machine(
    kind: str | None = None,
    *,
    seconds: float | None = None,
    quick: bool = False,
    ranks: int | None = None,
    disk: Path | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> Profiled:
    """Measure this machine for at most ``seconds`` (180; 20 for a quick one) and fit its profile.

    ``ranks``: processes for the collectives; by default as many as there are accelerators, and none
    on a processor. ``disk``: a folder whose storage is measured first, in at most 30 seconds more.

    Raises:
        InputError: for a device that torch does not see, or too few seconds.
        NoAnswer: where torch is missing, or a part could not be measured.
    """
    usual_s = QUICK_S if quick else FULL_S
    total_s = usual_s if seconds is None else seconds
    if not LEAST_S <= total_s <= 3600:
        hint = f"Use {LEAST_S:g} to 3600; 180 is usual."
        raise InputError(f"{total_s:g} seconds are not possible.", field="seconds", hint=hint)
    check_torch()
    device_kind = chosen(kind)
    rates = None
    if disk is not None:
        tell(f"storage of {disk}")
        rates = measure_disk(disk)
    deadline = Deadline(total_s)
    machine = detect_machine()
    if ranks is None:
        ranks = machine.count if device_kind != "cpu" else 0
    measured = measure_device(device_kind, deadline, quick=quick, ranks=ranks, tell=tell)
    measured.disk = rates
    return assemble_profile(machine, measured)


def assemble_profile(machine: Found, measured: Measured) -> Profiled:
    """The profile of a machine from what its tools tell and what was measured.

    Raises:
        NoAnswer: when too few products were measured for a fit.
    """
    busy = min(measured.load / measured.cpus, MOST_BUSY)
    spread = total_spread(measured, busy)
    base = device_profile(machine.matched) if machine.matched and measured.kind != "cpu" else None
    peaks = _peak_rates(measured, base)
    bandwidth = base.memory_bandwidth_bytes_per_s.value if base else measured.bandwidth_bytes_per_s
    rooflines = _fit_rooflines(measured.points, peaks, bandwidth)
    if "gemm" not in rooflines:
        raise NoAnswer(
            f"too few matrix products ran in the time ({_products_count_text(measured)}).",
            hint="Give it more --seconds, or profile when the machine is less busy.",
        )
    values = (
        _describe_known_device(base, machine)
        if base
        else _describe_new_device(machine, measured, peaks)
    )
    values["roofline"] = rooflines
    values["host"] = _host_entry(measured, spread)
    if transfers := _transfer_entries(measured):
        values["transfers"] = transfers
    if measured.disk:
        values["disk"] = _disk_entry(measured.disk)
    inside = fabric(base.node.fabric if base else values["node"]["fabric"])
    if reached := fit_collectives(measured.collectives, inside):
        values.setdefault("node", {})["collectives"] = {
            name: _measured_figure(value) for name, value in reached.items()
        }
    values["sources"] = {**values.get("sources", {}), SOURCE: _profile_source(machine, measured)}
    return Profiled(values, device_profile(values), measured, spread, busy)


def total_spread(measured: Measured, busy: float) -> float:
    """Standard deviation of the logarithm of what this machine's times may be in an hour.

    Of rounds of the host's loop and of readings of memory, the larger; the drift between the loop
    at the start and at the end; and what others may take or leave: with ``busy`` other processes
    for each processor before the benchmarks began, times may fall or rise by up to ``1 + busy``,
    taken as two standard deviations.
    """
    spread = max(measured.host.spread, measured.bandwidth_timing.spread)
    drift = 0.0
    if measured.host_at_end:
        spread = max(spread, measured.host_at_end.spread)
        first, last = measured.host.steps, measured.host_at_end.steps
        drift = 0.5 * median(abs(math.log(last[cell] / first[cell])) for cell in first)
    return round(min(math.hypot(spread, drift, math.log1p(busy) / 2), 2.0), 4)


def _host_entry(measured: Measured, spread: float) -> dict[str, Any]:
    """Return how slow the host is; as the reference for an accelerator.

    What engines spend on the host of an accelerator was measured on hosts of such machines, not on
    the reference of this loop.
    """
    times = merge_host_times([measured.host, *filter(None, [measured.host_at_end])])
    slow = host_ratios(times) if measured.kind == "cpu" else Ratios(1.0, 1.0, 1.0)
    steps = ", ".join(
        f"{layers} layers x {tokens}: {seconds * 1e3:.2f} ms"
        for (layers, tokens), seconds in times.steps.items()
    )
    note = f"{steps}; request {times.request_s * 1e3:.1f} ms; {times.rounds} rounds; "
    note += f"load {measured.load:.2f} on {measured.cpus} processors before"
    ratios = {
        name: _round_profile_figure(min(max(value, 0.01), 1000.0))
        for name, value in asdict(slow).items()
    }
    return {**ratios, "spread": spread, "source": SOURCE, "status": "measured", "note": note}


def _peak_rates(measured: Measured, base: Device | None) -> dict[Dtype, float]:
    """Rates that products are held against: the base's, else the best measured one."""
    peaks: dict[Dtype, float] = {}
    for point in measured.points:
        if point.family == "gemm":
            rate = point.flops / point.timing.seconds
            peaks[point.dtype] = max(peaks.get(point.dtype, 0.0), rate)
    spec_peaks = base.peak_flops_per_s if base else {}
    return {
        dtype: spec_peaks[dtype].value if dtype in spec_peaks else peaks[dtype] for dtype in peaks
    }


def _fit_rooflines(
    points: list[Point], peaks: Mapping[Dtype, float], bandwidth: float
) -> dict[str, dict[str, Any]]:
    """Fitted numbers by family and dtype; the first format stands for all that have none."""
    sections: dict[str, dict[str, Any]] = {}
    groups: dict[tuple[Family, Dtype], list[Point]] = {}
    for point in points:
        groups.setdefault((point.family, point.dtype), []).append(point)
    for (family, dtype), group in groups.items():
        if family != "gemm" and dtype not in peaks:
            continue
        fitted = fit_roofline(group, peaks[dtype], bandwidth)
        if fitted:
            sections.setdefault(family, {})[dtype] = _roofline_entry(fitted)
    return sections


def _roofline_entry(fitted: RooflineFit) -> dict[str, Any]:
    median, p90 = share_text(fitted.median_error, 1), share_text(fitted.p90_error)
    note = f"n {fitted.points}, median error {median}, p90 {p90}"
    names = ("compute_efficiency", "memory_efficiency", "overhead_s", "smoothing")
    numbers = {name: _round_profile_figure(getattr(fitted, name)) for name in names}
    return {**numbers, "source": SOURCE, "status": "fitted", "note": note}


def _describe_known_device(base: Device, machine: Found) -> dict[str, Any]:
    """Return what names a device that a shipped profile describes; the rest is the base's."""
    values: dict[str, Any] = {
        "schema_version": 1,
        "name": f"my-{base.name}"[:64],
        "title": f"{base.title}, measured here"[:300],
        BASE: base.name,
    }
    if read := machine.profile.get("memory_bytes"):
        values["memory_bytes"] = {**read, "source": SOURCE}
    return values


def _describe_new_device(
    machine: Found, measured: Measured, peaks: Mapping[Dtype, float]
) -> dict[str, Any]:
    """Every field of a device that no shipped profile describes."""
    cpu = measured.kind == "cpu"
    title = machine.host["cpu"] if cpu else machine.profile["title"]
    title = re.sub(r"[\x00-\x1f\x7f<>{}`]", " ", title).strip() or "unknown device"
    cores = machine.host["cpus"]
    memory = machine.host["memory_bytes"] if cpu else _device_memory(machine)
    if not memory:
        hint = "Write memory_bytes into a profile of your own; see docs/reference/hardware.md."
        raise NoAnswer("no tool here tells how much memory the device has.", hint=hint)
    usable = [dtype for dtype in _PRESENT if dtype in peaks]
    stored = [dtype for dtype in ("fp8", "int8") if dtype in peaks and not cpu]
    watts = None if cpu else machine.profile.get("tdp_watts")
    values: dict[str, Any] = {
        "schema_version": 1,
        "name": own_profile_name(f"{title}-{cores}-cores" if cpu else title),
        "title": f"{title}, {cores} cores, measured here"[:300] if cpu else title[:300],
        "vendor": {"cuda": "nvidia", "rocm": "amd", "cpu": "cpu"}[measured.kind],
        "runtime": measured.kind,
        "architecture": _architecture_slug(machine, cpu),
        "aliases": [title[:300]],
        "memory_bytes": _measured_figure(float(memory), note="as the operating system prints it"),
        "memory_bandwidth_bytes_per_s": _measured_figure(
            measured.bandwidth_bytes_per_s,
            note=f"reading, median; spread {share_text(measured.bandwidth_timing.spread, 1)}",
        ),
        "peak_flops_per_s": {
            dtype: _measured_figure(rate, note="best of the measured products")
            for dtype, rate in peaks.items()
            if dtype in (*usable, *stored)
        },
        "weight_dtypes": [*usable, *stored],
        "kv_dtypes": [dtype for dtype in usable if dtype != "fp16" or not cpu],
        "tdp_watts": {**watts, "source": SOURCE}
        if watts
        else _assumed_figure(WATTS_A_CORE * cores if cpu else CARD_WATTS),
        "node": {
            "devices": machine.count if not cpu else 1,
            "fabric": _fabric_name(machine, cpu),
            "network": "ethernet-100",
        },
        "sources": {_ASSUMED: {"title": "order of magnitude; no tool here tells"}},
    }
    if cpu:
        values["known_as"] = "cpu"
    return values


def _device_memory(machine: Found) -> float | None:
    """Bytes of an accelerator: as its tool prints them, else as torch sees them."""
    for figure in (machine.profile["memory_bytes"], machine.allocatable_memory_bytes):
        if figure and figure["value"]:
            return float(figure["value"])
    return None


def _architecture_slug(machine: Found, cpu: bool) -> str:
    word = platform.machine() if cpu else str(machine.profile.get("architecture") or "unknown")
    return re.sub(r"[^a-z0-9_]", "_", word.casefold())[:32]


def _fabric_name(machine: Found, cpu: bool) -> str:
    if cpu:
        return "shared-memory"
    return (machine.links and machine.links.fabric) or "pcie4"


def own_profile_name(text: str) -> str:
    """A name for a profile that no shipped device has."""
    slug = re.sub(r"[^a-z0-9]+", "-", text.casefold()).strip("-")[:56].strip("-") or "device"
    return f"my-{slug}" if slug in device_names() else slug


def fit_collectives(reduced: list[Reduced], inside: Fabric) -> dict[str, float]:
    """Efficiency and latencies that fit measured all-reduces best; empty without any.

    ``t = latency + 2·((n-1)·latency_per_rank + (n-1)/n·bytes/(bandwidth·efficiency))``, a line over
    the bytes with relative weights. One number of ranks does not tell ``latency`` from
    ``latency_per_rank``: they keep the ratio that the fabric's file has.
    """
    if len(reduced) < 2:
        return {}
    ranks = reduced[0].ranks
    sizes, seconds = (
        np.array([getattr(row, name) for row in reduced]) for name in ("size_bytes", "seconds")
    )
    slope, start = np.polyfit(sizes, seconds, 1, w=1 / seconds)
    largest = int(sizes.argmax())
    if slope < (lowest := 1e-3 * seconds[largest] / sizes[largest]):
        slope, start = lowest, float(np.average(seconds - lowest * sizes, weights=seconds**-2.0))
    start_s = max(float(start), 0.1 * float(seconds.min()))
    factor = 2 * (ranks - 1) / ranks
    per_rank = inside.latency_per_rank_s.value if inside.latency_per_rank_s else 0.0
    fabric_start_s = inside.latency_s.value + 2 * (ranks - 1) * per_rank
    return {
        "efficiency": factor / float(slope) / inside.bandwidth_bytes_per_s.value,
        "latency_s": start_s * inside.latency_s.value / fabric_start_s,
        "latency_per_rank_s": max(start_s * per_rank / fabric_start_s, 1e-12),
    }


def _transfer_entries(measured: Measured) -> dict[str, Any]:
    names = ("to_device", "from_device", "disk_cold", "disk_warm")
    rates = {f"{name}_bytes_per_s": getattr(measured, f"{name}_bytes_per_s") for name in names}
    return {name: _measured_figure(rate) for name, rate in rates.items() if rate}


def _disk_entry(rates: DiskRates) -> dict[str, Any]:
    size = f"{rates.size_bytes / 2**20:,.0f} MiB"
    read_method = (
        "past the kernel's cache" if rates.direct else "perhaps from memory: no direct reads there"
    )
    notes = {
        "read_bytes_per_s": f"{size} in sequence, {read_method}",
        "write_bytes_per_s": f"{size}, until fsync",
        "window_reads_per_s": "8 KiB of a mapped file each",
    }
    return {name: _measured_figure(getattr(rates, name), note) for name, note in notes.items()}


def _profile_source(machine: Found, measured: Measured) -> dict[str, Any]:
    driver = machine.versions.get("driver") or machine.versions.get("ROCm")
    words = [f"torch {measured.torch}", f"kernel {machine.versions['kernel']}"]
    words += [f"driver {driver}"] if driver and measured.kind != "cpu" else []
    load = f"load {measured.load:.2f} before and {measured.load_after:.2f} after"
    launch = f"a launch takes {measured.launch_s * 1e6:.1f} us"
    return {
        "title": f"{', '.join(words)}; recipe {__version__}; {load}; {launch}"[:500],
        "date": f"{date.today()}",
        "command": f"recipe profile --device {measured.kind}, {measured.seconds:.0f} s",
    }


def _measured_figure(value: float, note: str | None = None) -> dict[str, Any]:
    figure = {"value": _round_profile_figure(value), "source": SOURCE, "status": "measured"}
    return {**figure, "note": note} if note else figure


def _assumed_figure(value: float) -> dict[str, Any]:
    return {"value": value, "source": _ASSUMED, "status": "assumed"}


def _round_profile_figure(value: float) -> float:
    """Four significant digits; large whole numbers (bytes) as they are."""
    return float(f"{value:.4g}") if value < 1e9 or value != int(value) else float(int(value))


def _products_count_text(measured: Measured) -> str:
    products = [point for point in measured.points if point.family == "gemm"]
    return f"{len(products)} in {measured.seconds:.0f} s"


# --- files


def check_output(path: Path) -> None:
    """Refuse a file that a request would not read as a profile, or that is something else.

    Raises:
        InputError: names the fix.
    """
    if not is_profile_path(str(path)):
        hint = "For example -o machine.yaml."
        raise InputError(f"{path} does not end in .yaml or .yml.", field="output", hint=hint)
    if not path.parent.is_dir():
        raise InputError(f"{path.parent} is not a folder.", field="output", hint="Create it first.")
    if path.exists() and not _is_profile(path):
        hint = "Choose another name, or remove it first."
        raise InputError(f"{path} exists and is not a profile.", field="output", hint=hint)


def _is_profile(path: Path) -> bool:
    try:
        values = parse_yaml(read_text(path, field="output", limit=MAX_BYTES), str(path))
    except RecipeError:
        return False
    return (
        isinstance(values, Mapping)
        and {"roofline", "memory_bandwidth_bytes_per_s", BASE} & set(values) != set()
    )


def write_profile(path: Path, profiled: Profiled) -> None:
    """Write the profile as YAML, whole or not at all.

    Raises:
        InputError: when the folder is not writable.
    """
    write_whole(path, to_yaml(profiled.values).encode())


def profile_text(profiled: Profiled) -> list[str]:
    profile, measured = profiled.device, profiled.measured
    lines = [f"{profile.title} ({profile.name}), torch {measured.torch}"]
    lines.append(f"  memory read at {measured.bandwidth_bytes_per_s / 1e9:,.1f} GB/s")
    best = _peak_rates(measured, None)
    for family, cells in profiled.values["roofline"].items():
        for dtype, cell in cells.items():
            rate = f", best {best[dtype] / 1e12:,.3g} TFLOP/s" if family == "gemm" else ""
            start = f"start {cell['overhead_s'] * 1e6:.1f} us"
            lines.append(f"  {family} {dtype}: {start}{rate}; fit: {cell['note']}")
    host = profile.host
    if host and measured.kind == "cpu":
        lines.append(
            f"  host: {host.layers:.2f} times the reference a layer, {host.sequences:.2f} a token, "
            f"{host.requests:.2f} a request"
        )
    transfers = [
        f"{name.removesuffix('_bytes_per_s').replace('_', ' ')} {cell['value'] / 1e9:.2g} GB/s"
        for name, cell in profiled.values.get("transfers", {}).items()
    ]
    lines += [f"  {', '.join(transfers)}"] if transfers else []
    if disk := profile.disk:
        lines.append(
            f"  storage: read {disk.read_bytes_per_s.value / 1e9:.2g} GB/s, written "
            f"{disk.write_bytes_per_s.value / 1e9:.2g} GB/s, "
            f"{disk.window_reads_per_s.value:,.0f} reads of 8 KiB a second"
        )
    lines.append(
        f"  the load was {measured.load:.1f} on {measured.cpus} processors before; times vary by "
        f"{share_text(profiled.spread)}, which widens every interval"
    )
    return [*lines, *(f"  note: {note}" for note in measured.notes)]
