"""Files that cut devices: a configuration of NVIDIA's mig-parted, commands of AMD's amd-smi.

mig-parted applies it by hand (``nvidia-mig-parted apply -f FILE -c NAME``), and the GPU operator's
MIG manager to nodes with the label ``nvidia.com/mig.config=NAME``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from recipe_core.base.documents import to_yaml
from recipe_core.base.errors import HardwareError
from recipe_core.hardware.slices import is_allowed

FIELD = "hardware.device"


@dataclass(frozen=True, slots=True)
class NodeCuts:
    """Cuts of the devices of a node, by index: slices of each by name; none of a whole one."""

    device: str
    cuts: tuple[Mapping[str, int], ...]


def nodes_cuts(
    device: str, per_node: int, cuts: Iterable[tuple[int, Mapping[str, int]]]
) -> tuple[NodeCuts, ...]:
    """The nodes of a pool that have cut devices, of which ``cuts`` says how many are cut how.

    They fill one node after another; the devices left on the last one stay whole.
    """
    laid: list[Mapping[str, int]] = [counts for number, counts in cuts for _ in range(number)]
    laid += [{}] * (-len(laid) % per_node)
    starts = range(0, len(laid), per_node)
    return tuple(NodeCuts(device, tuple(laid[start : start + per_node])) for start in starts)


def mig_parted_config(assignments: Mapping[str, NodeCuts]) -> str:
    """A configuration file of mig-parted with one configuration of a node by each name.

    Raises:
        HardwareError: for a cut that a device does not allow.
    """
    configs = {name: _mig_devices(node) for name, node in assignments.items()}
    return to_yaml({"version": "v1", "mig-configs": configs})


def _mig_devices(node: NodeCuts) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = []
    for counts, indexes in _alike(node):
        entry: dict[str, Any] = {
            "devices": "all" if len(indexes) == len(node.cuts) else indexes,
            "mig-enabled": bool(counts),
        }
        entries.append({**entry, "mig-devices": counts} if counts else entry)
    return entries


def _alike(node: NodeCuts) -> list[tuple[dict[str, int], list[int]]]:
    """Devices that are cut alike, by index, with their cut.

    Raises:
        HardwareError: for a cut that the device does not allow.
    """
    groups: dict[tuple[tuple[str, int], ...], list[int]] = {}
    for index, cut in enumerate(node.cuts):
        counts = {name: number for name, number in cut.items() if number}
        if not is_allowed(node.device, counts):
            words = " + ".join(f"{number} x {name}" for name, number in counts.items())
            hint = "`list_geometries` has the ways to cut it."
            message = f"One {node.device} cannot be cut into {words}."
            raise HardwareError(message, field=FIELD, hint=hint)
        groups.setdefault(tuple(sorted(counts.items())), []).append(index)
    return [(dict(key), indexes) for key, indexes in groups.items()]


def amd_partition_commands(node: NodeCuts) -> str:
    """A script for root that sets the modes of a node's devices, on which nothing may run.

    The memory mode first, which all devices of a node share and whose reload of the driver sets
    compute modes back; then those, from the last device, as amd-smi numbers partitions too.

    Raises:
        HardwareError: for a cut that a device does not allow, or modes that a node cannot have.
    """
    groups = [(next(iter(counts), "spx-nps1"), indexes) for counts, indexes in _alike(node)]
    memory_modes = sorted({mode.split("-")[1].upper() for mode, _ in groups})
    memory = memory_modes[0]
    if len(memory_modes) > 1 or (len(groups) > 1 and memory != "NPS1"):
        modes = ", ".join(sorted(mode for mode, _ in groups))
        message = f"The devices of a node cannot have the modes {modes} at once."
        hint = "All of them share a memory mode, and but for NPS1 this package sets them alike."
        raise HardwareError(message, field=FIELD, hint=hint)
    lines = [
        "#!/bin/sh",
        "set -e",
        f"echo y | amd-smi set --gpu all --memory-partition {memory}  # it asks",
        "modprobe -r amdgpu",
        "modprobe amdgpu  # which takes the memory mode",
    ]
    if len(groups) == 1:
        lines.append(f"amd-smi set --gpu all --compute-partition {_compute_mode(groups[0][0])}")
        return "\n".join([*lines, ""])
    lines.append("amd-smi set --gpu all --compute-partition SPX")
    by_index = {index: _compute_mode(mode) for mode, indexes in groups for index in indexes}
    lines += [
        f"amd-smi set --gpu {index} --compute-partition {mode}"
        for index, mode in sorted(by_index.items(), reverse=True)
        if mode != "SPX"
    ]
    return "\n".join([*lines, ""])


def _compute_mode(mode: str) -> str:
    return mode.split("-")[0].upper()
