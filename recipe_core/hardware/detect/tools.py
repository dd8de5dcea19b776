"""Versions, links and limits of accelerators, from vendors' tools, torch and the file system."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import platform
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recipe_core.hardware.detect.links import (
    Pairs,
    parse_amd_topo,
    parse_nvidia_topo,
    parse_rocm_topo,
)
from recipe_core.payload.launcher import machine

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
    """What the tools tell of the devices besides name and memory."""

    architecture: str | None = None
    power_watts: float | None = None
    pcie_generation: int | None = None
    torch_memory_bytes: int | None = None


def ask_tool(argv: list[str], notes: list[str]) -> str | None:
    """A tool's output; None where it is missing, or fails (with a note)."""
    if shutil.which(argv[0]) is None:
        return None
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, errors="replace", timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        notes.append(f"{argv[0]}: {error}")
        return None
    if done.returncode != 0:
        output = (done.stderr or done.stdout).strip()[:120]
        notes.append(f"{' '.join(argv[:2])}: {output or f'exit code {done.returncode}'}")
        return None
    return done.stdout


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
    """What torch sees, in a separate process: importing it takes seconds and may fail."""
    if importlib.util.find_spec("torch") is None:
        return {}
    output = ask_tool([sys.executable, "-c", _TORCH], notes)
    try:
        return dict(json.loads(output.strip().splitlines()[-1])) if output else {}
    except (ValueError, IndexError):
        notes.append("torch: the answer could not be read")
        return {}


def ask_gaudi(notes: list[str]) -> list[machine.Device]:
    """Intel's cards, which the launcher does not look for: no engine here runs on them."""
    output = ask_tool(["hl-smi", "-Q", "name,memory.total", "-f", "csv,noheader"], notes)
    return machine.parse_nvidia_smi(output.replace("MiB", "")) if output else []


def read_nvidia(readings: Readings, versions: dict[str, str], notes: list[str]) -> None:
    """Fill in what nvidia-smi reports."""
    fields = "driver_version,power.limit,pcie.link.gen.max,mig.mode.current"
    output = ask_tool(
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
    if match := re.search(r"CUDA Version:\s*([\d.]+)", ask_tool(["nvidia-smi"], notes) or ""):
        versions["CUDA of the driver"] = match[1]


def read_amd(versions: dict[str, str], notes: list[str]) -> None:
    """Fill in what rocm-smi or amd-smi reports."""
    shown = ask_tool(["rocm-smi", "--showproductname", "--showdriverversion", "--json"], notes)
    shown = shown or ask_tool(["amd-smi", "static", "--asic", "--driver", "--json"], notes) or ""
    if match := _AMD_DRIVER.search(shown):
        versions["driver"] = match[1]
    release = Path("/opt/rocm/.info/version")
    if release.is_file():
        versions["ROCm"] = release.read_text(encoding="utf-8").strip()


def read_link_pairs(runtime: str, notes: list[str]) -> Pairs:
    """The matrix of links, by the first tool that prints one."""
    attempts = {
        "cuda": [(["nvidia-smi", "topo", "-m"], parse_nvidia_topo)],
        "rocm": [
            (["rocm-smi", "--showtopo", "--json"], parse_rocm_topo),
            (["amd-smi", "topology", "--json"], parse_amd_topo),
        ],
    }
    for argv, parse in attempts.get(runtime, []):
        output = ask_tool(argv, notes)
        try:
            if output and (pairs := parse(output)):
                return pairs
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            notes.append(f"{argv[0]}: the links could not be read ({error})")
    return {}
