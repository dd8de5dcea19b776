"""Which splits could ever be: those that the model's shapes, the batch and the nodes divide by."""

from __future__ import annotations

import numpy as np

from recipe_core.base.arrays import Bool
from recipe_core.plans.rows import PlanRows

NEVER = frozenset(
    {
        "heads",
        "kv-heads",
        "output-groups",
        "hidden",
        "width",
        "block",
        "layers",
        "no-experts",
        "experts",
        "expert-ranks",
        "ep-divides",
        "cp-divides",
        "idle-stages",
        "uneven-nodes",
        "packing",
        "global-batch",
        "sequence",
        "virtual-stages",
        "schedule",
        "shard",
    }
)
"""Codes of refusals of which no load, limit, format, device or price is a cure: numbers that do not
divide, and pipelines that a shorter one equals."""


def legal(plan: PlanRows) -> Bool:
    """Rows that no rule of divisibility refuses; nobody could choose the others."""
    out = np.ones(len(plan), dtype=np.bool_)
    for code, broken in plan.rules().items():
        if code in NEVER:
            out &= ~broken
    return out
