"""Memory against what is available: on a device, and on a node's host."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from recipe_core.base.units import gib
from recipe_core.estimates.columns.training import OFFLOADS, TrainingCases, TrainingSetting
from recipe_core.estimates.rules.refusal import Refusal
from recipe_core.estimates.training.memory import MEMORY_TITLES, PARTS, Memory


def memory_rule(setting: TrainingSetting, mem: Memory) -> Refusal:
    """Refuses peaks above the capacity plus the share by which estimates are known to be high."""
    peak = mem.peak_bytes

    def sentence(i: int) -> str:
        by_stage = mem.stages_of(i)
        stage = int(np.nanargmax(by_stage))
        parts = {name: float(mem.parts[name][i, stage]) for name in PARTS}
        largest = max(parts, key=lambda name: parts[name])
        place = f" on stage {stage}" if np.isfinite(by_stage).sum() > 1 else ""
        return (
            f"needs {gib(peak[i])} per GPU{place}, {gib(mem.capacity_bytes[i])} usable: "
            f"{gib(peak[i] - mem.capacity_bytes[i])} short "
            f"(largest part: {MEMORY_TITLES[largest].lower()}, {gib(parts[largest])})"
        )

    limit = (1 + setting.calibration.tight.value) * mem.capacity_bytes
    return Refusal("memory", peak > limit, sentence)


def host_rule(setting: TrainingSetting, cases: TrainingCases, mem: Memory) -> Iterator[Refusal]:
    """Refuses what waits on a node's host and exceeds its memory, where a profile has it."""
    host = setting.cluster.device.node.host_memory_bytes
    if host is None:
        return
    needed = mem.host_bytes * np.minimum(cases.per_node, cases.devices)
    disks = cases.offload == OFFLOADS.index("optimizer-nvme")
    offloaded = ~disks & ((cases.offload > 0) | (cases.activation_offload > 0))
    yield Refusal(
        "host-memory",
        offloaded & (needed > host.value),
        lambda i: (
            f"what is offloaded needs {gib(needed[i])} of host memory per node, "
            f"only {gib(host.value)} available"
        ),
    )
