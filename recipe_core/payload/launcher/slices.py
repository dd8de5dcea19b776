"""MIG slices as devices: nvidia-smi lists them below their device, and CUDA takes their UUIDs."""

from __future__ import annotations

import os
import re
from dataclasses import replace

from .devices import Device, run_vendor_tool

_DEVICE = re.compile(r"GPU (?P<index>\d+): (?P<name>.+?) \(UUID: ")
_SLICE = re.compile(r"\s+MIG (?P<profile>\S+)\s+Device\s+\d+: \(UUID: (?P<uuid>MIG-[\w/-]+)\)")
VARIABLE = "CUDA_VISIBLE_DEVICES"


def with_slices(devices: list[Device], notes: list[str]) -> list[Device]:
    """The devices, of which those that are cut become their slices, as CUDA names these.

    Slices are looked for where CUDA_VISIBLE_DEVICES lists some, which are then the devices, and
    where nvidia-smi hides a device's memory, as it does from who has a slice.
    """
    visible = [part.strip() for part in os.environ.get(VARIABLE, "").split(",")]
    uuids = [part for part in visible if part.startswith("MIG-")]
    if not uuids and all(device.memory_bytes is not None for device in devices):
        return devices
    slices = parse_slices(run_vendor_tool(["nvidia-smi", "-L"], notes) or "", devices)
    shown = [slices[uuid] for uuid in uuids if uuid in slices] or list(slices.values())
    return [replace(device, index=n) for n, device in enumerate(shown)] or devices


def parse_slices(output: str, devices: list[Device]) -> dict[str, Device]:
    """Slices by UUID, of lines like ``  MIG 1g.10gb     Device  0: (UUID: MIG-…)`` below a GPU's.

    Nothing tells their memory but their names, which round it up.
    """
    architectures = {device.index: device.architecture for device in devices}
    slices: dict[str, Device] = {}
    name, architecture = "", ""
    for line in output.splitlines():
        if match := _DEVICE.match(line):
            name, architecture = match["name"], architectures.get(int(match["index"]), "")
        elif match := _SLICE.match(line):
            title = f"{name} MIG {match['profile']}"
            slices[match["uuid"]] = Device(len(slices), title, None, None, architecture)
    return slices
