"""What a request leaves open and memory decides: whether the loss is computed in chunks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from recipe_core.estimates.columns.columns import map_columns
from recipe_core.estimates.columns.training import TrainingCases, TrainingSetting
from recipe_core.estimates.training.memory import Memory, training_memory
from recipe_core.estimates.training.starts import memory_rule


def decide_loss_chunks(
    setting: TrainingSetting, cases: TrainingCases
) -> tuple[TrainingCases, Memory]:
    """Cases with nothing left open, and their memory.

    The loss is computed in chunks where the framework does nothing else, or where full logits do
    not fit, the framework can, and the request leaves it open.
    """
    if setting.framework.pieces.use == "always":
        cases = replace(cases, fused_loss=np.ones_like(cases.fused_loss))
        return cases, training_memory(setting, cases)
    full = training_memory(setting, cases)
    if setting.fused_loss is not None or setting.framework.pieces.use == "asked":
        return cases, full
    figures, over = setting.calibration, memory_rule(setting, full).broken
    lossless = np.nanmax(full.by_stage - figures.fragmentation.value * full.parts["loss"], axis=1)
    # the others lack more than the loss takes
    helped = lossless <= full.capacity_bytes * (1 + figures.tight.value)
    rows = np.flatnonzero(over & helped)
    if not len(rows):
        return cases, full
    fused = cases.fused_loss.copy()
    fused[rows] = 1
    cases = replace(cases, fused_loss=fused)

    def put(old: Any, new: Any) -> Any:
        """``old`` with the new rows, which may have fewer stages."""
        out = old.copy()
        out[(rows, slice(new.shape[1])) if new.ndim > 1 else rows] = new
        return out

    return cases, map_columns(put, full, training_memory(setting, cases.take(rows)))
