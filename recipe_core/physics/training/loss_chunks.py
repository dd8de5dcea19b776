"""What a request leaves open and only memory decides."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from recipe_core.physics.training.fits import memory_rule
from recipe_core.physics.training.memory import Memory, memory
from recipe_core.space.training import TrainingCases, TrainingSetting


def decided(setting: TrainingSetting, cases: TrainingCases) -> tuple[TrainingCases, Memory]:
    """Cases with nothing left open, and their memory.

    Loss: logits are made at once where they fit, else piece by piece where the framework can (and the request does not say).
    """
    whole = memory(setting, cases)
    if setting.fused_loss is not None or not setting.framework.loss_in_pieces:
        return cases, whole
    full = memory_rule(setting, whole).broken
    least = np.nanmax(
        whole.by_stage - setting.calibration.fragmentation.value * whole.parts["loss"], axis=1
    )
    rows = np.flatnonzero(
        full & (least <= whole.capacity_bytes * (1 + setting.calibration.tight.value))
    )  # others lack more than a loss
    if not len(rows):
        return cases, whole
    cut = cases.fused_loss.copy()
    cut[rows] = 1
    cases = replace(cases, fused_loss=cut)
    return cases, _exchanged(whole, rows, memory(setting, cases.take(rows)))


def _exchanged(every: Memory, rows: Any, some: Memory) -> Memory:
    """Memory with that of some rows in place of what was there; ``some`` may have fewer stages."""

    def put(old: Any, new: Any) -> Any:
        out = old.copy()
        out[(rows, slice(new.shape[1])) if new.ndim > 1 else rows] = new
        return out

    parts = {name: put(values, some.parts[name]) for name, values in every.parts.items()}
    return replace(
        every,
        parts=parts,
        host_bytes=put(every.host_bytes, some.host_bytes),
        peak_bytes=put(every.peak_bytes, some.peak_bytes),
    )
