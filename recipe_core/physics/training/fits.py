"""Memory against what there is: of a device, and of the node's host."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from recipe_core.base.units import gib
from recipe_core.physics.training.memory import PARTS, Memory
from recipe_core.space.refusal import Refusal
from recipe_core.space.training import OFFLOADS, TrainingCases, TrainingSetting


def memory_rule(setting: TrainingSetting, mem: Memory) -> Refusal:
    """Peak memory against what a process can have, and the share beyond it that estimates are known to be too high by."""
    peak = mem.peak_bytes

    def said(i: int) -> str:
        by_stage = mem.stages_of(i)
        stage = int(np.nanargmax(by_stage))
        parts = {name: float(mem.parts[name][i, stage]) for name in PARTS}
        most = max(parts, key=lambda name: parts[name])
        where = f" on stage {stage}" if np.isfinite(by_stage).sum() > 1 else ""
        return (
            f"needs {gib(peak[i])} of {gib(mem.capacity_bytes)} per device{where}: {gib(peak[i] - mem.capacity_bytes)} too much; "
            f"{most} are {gib(parts[most])}"
        )

    return Refusal(
        "memory", peak > (1 + setting.calibration.tight.value) * mem.capacity_bytes, said
    )


def host_rule(setting: TrainingSetting, cases: TrainingCases, mem: Memory) -> Iterator[Refusal]:
    """What the devices of a node keep in its memory, against that memory; nothing where a profile does not know it."""
    known = setting.cluster.device.node.host_memory_bytes
    if known is None:
        return
    wanted = mem.host_bytes * np.minimum(cases.per_node, cases.devices)
    yield Refusal(
        "host-memory",
        (cases.offload == OFFLOADS.index("optimizer")) & (wanted > known.value),
        lambda i: (
            f"offload: optimizer states of a node need {gib(wanted[i])} of {gib(known.value)} host memory"
        ),
    )
