"""Versions, links and limits of accelerators, from vendors' tools, torch and the file system."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import platform
import re
import sys
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path
from typing import Any, Literal

from recipe_core.hardware.cluster import fabric, fabric_names
from recipe_core.hardware.profile import Device, Fabric
from recipe_core.payload.launcher import devices as listing
from recipe_core.payload.launcher.devices import Question, ask_tools, run_vendor_tool

Pairs = dict[tuple[int, int], str]
_ROCM_PAIR = re.compile(
    r"\(Topology\) Link type between DRM devices (\d+) and (\d+)", re.IGNORECASE
)
# NV18 means 18 NVLinks; PIX, PXB, PHB, NODE and SYS are ever longer paths over PCIe.
_DIRECT = ("NV", "XGMI")


@dataclass(frozen=True, slots=True)
class Links:
    """The best link of most pairs.

    ``domain``: devices that all reach each other over it; ``fabric``: its profile, None if unknown.
    """

    kind: Literal["nvlink", "xgmi", "pcie"]
    domain: int
    per_pair: int | None
    fabric: str | None
    note: str


def parse_nvidia_topo(text: str) -> Pairs:
    """The matrix of ``nvidia-smi topo -m``; rows and columns of network cards are left out."""
    header: list[str] = []
    pairs: Pairs = {}
    for line in re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines():
        cells = line.split()
        if not header and cells[:1] == ["GPU0"] and "X" not in cells:
            header = cells
        elif header and cells and re.fullmatch(r"GPU\d+", cells[0]):
            row = int(cells[0][3:])
            for name, cell in zip(header, cells[1:], strict=False):
                if re.fullmatch(r"GPU\d+", name) and (column := int(name[3:])) != row:
                    pairs[row, column] = cell
    return pairs


def parse_rocm_topo(text: str) -> Pairs:
    """The links of ``rocm-smi --showtopo --json``, which has one key for each unordered pair."""
    system = json.loads(text[text.index("{") :]).get("system", {})
    pairs: Pairs = {}
    for key, value in system.items():
        if match := _ROCM_PAIR.fullmatch(key):
            index, peer = int(match[1]), int(match[2])
            pairs[index, peer] = pairs[peer, index] = str(value).upper()
    return pairs


def parse_amd_topo(text: str) -> Pairs:
    """The links of ``amd-smi topology --json``: a list of devices with their ``links``."""
    data = json.loads(text[text.index("[") :])
    return {
        (int(item["gpu"]), int(link["gpu"])): str(link.get("link_type", "UNKNOWN")).upper()
        for item in data
        for link in item.get("links", [])
        if link["gpu"] != item["gpu"]
    }


def link_islands(pairs: Pairs, devices: list[int]) -> list[set[int]]:
    """Groups of devices that direct links connect, in one or several steps."""
    groups: list[set[int]] = []
    for device in devices:
        peers = {peer for peer in devices if pairs.get((device, peer), "").startswith(_DIRECT)}
        peers.add(device)
        joined = [group for group in groups if group & peers]
        groups = [group for group in groups if not group & peers] + [peers.union(*joined)]
    return groups


def machine_links(
    pairs: Pairs, devices: list[int], profile: Device | None, pcie_generation: int | None = None
) -> Links | None:
    """Return what joins ``devices``; None for one device, or where the matrix lacks one of them."""
    inside = {pair: link for pair, link in pairs.items() if set(pair) <= set(devices)}
    if len(devices) < 2 or len(inside) < len(devices) * (len(devices) - 1):
        return None
    groups = link_islands(inside, devices)
    domain = min(map(len, groups))
    if domain == 1:
        note = f"over PCIe ({', '.join(sorted(set(inside.values())))})"
        return Links("pcie", len(devices), None, _pcie(profile, pcie_generation), note)
    direct = sorted({link for link in inside.values() if link.startswith(_DIRECT)})
    kind: Literal["nvlink", "xgmi"] = "xgmi" if direct[0] == "XGMI" else "nvlink"
    per_pair = None
    if kind == "nvlink" and len(direct) == 1 and direct[0][2:].isdigit():
        per_pair = int(direct[0][2:])
    names = ", ".join(direct)
    complete = all(inside[pair].startswith(_DIRECT) for g in groups for pair in permutations(g, 2))
    if not complete or len(set(map(len, groups))) > 1:
        note = f"a partial mesh ({names}), which no known fabric describes"
        return Links(kind, domain, per_pair, None, note)
    alone = domain == len(devices)
    note = f"all to all ({names})" if alone else f"groups of {domain} ({names}), PCIe between them"
    return Links(kind, domain, per_pair, _direct_fabric(profile, domain, alone=alone), note)


def _sold_with(profile: Device | None) -> list[Fabric]:
    if profile is None:
        return []
    return [fabric(name) for name in (profile.node.fabric, *profile.node.alternatives)]


def _direct_fabric(profile: Device | None, domain: int, *, alone: bool) -> str | None:
    """The device's fabric that makes such groups; a switch may be used in part, a bridge not."""
    for link in _sold_with(profile):
        if link.topology in ("mesh", "ring", "switch") and link.domain is not None:
            bridged = link.beyond is not None
            if link.domain == domain or (alone and not bridged and link.domain > domain):
                return link.name
    return None


def _pcie(profile: Device | None, generation: int | None) -> str | None:
    name = f"pcie{generation}"
    if generation is not None:
        return name if name in fabric_names() else None
    return next((link.name for link in _sold_with(profile) if link.topology == "pcie"), None)


_PACKAGES = ("torch", "vllm", "sglang", "tensorrt-llm", "transformers")
_TORCH = """
import json, torch
gpu = torch.cuda
props = [gpu.get_device_properties(i) for i in range(gpu.device_count())]
arch = lambda p: getattr(p, "gcnArchName", "").split(":")[0] or f"sm_{p.major}{p.minor}"
print(json.dumps({"cuda": torch.version.cuda, "hip": torch.version.hip,
                  "devices": [[p.name, p.total_memory, arch(p)] for p in props]}))
"""
_AMD_DRIVER = re.compile(
    r'"(?:Driver version|driver_version|version)":\s*"([\d.]+[^"]*)"', re.IGNORECASE
)


@dataclass(slots=True)
class Readings:
    """The readings of tools on devices besides name and memory."""

    architecture: str | None = None
    power_watts: float | None = None
    pcie_generation: int | None = None
    torch_memory_bytes: int | None = None


def read_versions() -> dict[str, str]:
    """Versions of Python, the kernel and the packages that matter, without importing them."""
    out = {"python": platform.python_version(), "kernel": platform.release()}
    for name in _PACKAGES:
        try:
            out[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return out


def ask_torch(notes: list[str]) -> dict[str, Any]:
    """Return what torch sees, in a separate process: importing it takes seconds and may fail."""
    if importlib.util.find_spec("torch") is None:
        return {}
    output = run_vendor_tool([sys.executable, "-c", _TORCH], notes)
    try:
        return dict(json.loads(output.strip().splitlines()[-1])) if output else {}
    except (ValueError, IndexError):
        notes.append("torch: the answer could not be read")
        return {}


def ask_gaudi(notes: list[str]) -> list[listing.Device]:
    """Intel's cards, which the launcher does not look for: no engine here runs on them."""
    output = run_vendor_tool(["hl-smi", "-Q", "name,memory.total", "-f", "csv,noheader"], notes)
    return listing.parse_nvidia_smi(output.replace("MiB", "")) if output else []


def read_nvidia(readings: Readings, versions: dict[str, str], notes: list[str]) -> None:
    """Fill in what nvidia-smi reports."""
    fields = "driver_version,power.limit,pcie.link.gen.max,mig.mode.current"
    output = run_vendor_tool(
        ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits"], notes
    )
    cells: list[str] = []
    if output and output.strip():
        cells = [cell.strip() for cell in output.splitlines()[0].split(",")]
    if len(cells) == len(fields.split(",")):
        driver, power, generation, mig = cells
        versions["driver"] = driver
        readings.power_watts = float(power) if re.fullmatch(r"\d+(\.\d+)?", power) else None
        readings.pcie_generation = int(generation) if generation.isdigit() else None
        if mig == "Enabled":
            notes.append("MIG is enabled: a process gets a slice of the card described here")
    if match := re.search(
        r"CUDA Version:\s*([\d.]+)", run_vendor_tool(["nvidia-smi"], notes) or ""
    ):
        versions["CUDA of the driver"] = match[1]


def read_amd(versions: dict[str, str], notes: list[str]) -> None:
    """Fill in what rocm-smi or amd-smi reports."""
    shown = run_vendor_tool(
        ["rocm-smi", "--showproductname", "--showdriverversion", "--json"], notes
    )
    shown = (
        shown or run_vendor_tool(["amd-smi", "static", "--asic", "--driver", "--json"], notes) or ""
    )
    if match := _AMD_DRIVER.search(shown):
        versions["driver"] = match[1]
    release = Path("/opt/rocm/.info/version")
    if release.is_file():
        versions["ROCm"] = release.read_text(encoding="utf-8").strip()


def read_link_pairs(runtime: str, notes: list[str]) -> Pairs:
    """The matrix of links, by the first tool that prints one."""
    pairs: Pairs = ask_tools(_LINKS.get(runtime, ()), notes) or {}
    return pairs


_LINKS = {
    "cuda": [Question("nvidia-smi topo -m", parse_nvidia_topo)],
    "rocm": [
        Question("rocm-smi --showtopo --json", parse_rocm_topo),
        Question("amd-smi topology --json", parse_amd_topo),
    ],
}
