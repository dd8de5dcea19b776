"""All ways to cut a model over devices, as columns.

``tp × pp × dp`` devices: tensor-parallel ranks within pipeline stages within replicas. ``ep``
counts the ranks that share the experts (within tp × dp); with ep > 1, dp is data-parallel
attention, otherwise dp counts replicas. Module `rules` says which of these splits cannot run.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Literal

import numpy as np

from recipe_core.base.arrays import Int

ExpertSharing = Literal["all-ranks", "divisors", "none"]


@lru_cache(64)
def enumerate_splits(
    devices: int, *, shares_experts: ExpertSharing, kv_heads: int | None = None
) -> Mapping[str, Int]:
    """Every tp × pp × dp of at most ``devices`` ranks as read-only columns tp, pp, dp, ep and cp.

    Each comes without shared experts and with them, over all tp × dp ranks or each divisor of them.
    With ``kv_heads``, a tp that replicates KV heads also comes with the cache of a head shared by
    2, 4, … of the ranks that would hold copies of it (cp). Degrees are not restricted to powers of
    two: what heads or layers do not allow is refused with the reason.
    """
    grid = [
        (tp, pp, dp)
        for tp in _upto(devices)
        for pp in _upto(devices // tp)
        for dp in _upto(devices // (tp * pp))
    ]
    rows = [
        (tp, pp, dp, ep, cp)
        for tp, pp, dp in grid
        for ep in _shared_by(tp * dp, shares_experts)
        for cp in (_halvings(tp // kv_heads) if kv_heads and tp % kv_heads == 0 else (1,))
    ]
    table = np.array(sorted(rows), dtype=np.int64).reshape(-1, 5)
    table.setflags(write=False)
    return MappingProxyType(dict(zip(("tp", "pp", "dp", "ep", "cp"), table.T, strict=True)))


@lru_cache(256)
def count_splits(
    devices: int, *, shares_experts: ExpertSharing, kv_heads: int | None = None
) -> int:
    """How many splits ``enumerate_splits`` would make, without making them."""
    degrees = np.arange(devices + 1)
    shared = np.ones(devices + 1, dtype=np.int64)
    if shares_experts == "all-ranks":
        shared[2:] = 2
    elif shares_experts == "divisors":
        for divisor in range(2, devices + 1):
            shared[divisor::divisor] += 1
    total = 0
    for tp in _upto(devices):
        ranks = tp * degrees[1 : devices // tp + 1]  # tp × dp; pp has devices // ranks values
        copies = tp // kv_heads if kv_heads and tp % kv_heads == 0 else 1
        total += int((devices // ranks * shared[ranks]).sum()) * len(_halvings(copies))
    return total


def _shared_by(ranks: int, sharing: ExpertSharing) -> set[int]:
    """How many of the ranks can share the experts; 1 means that they are not shared."""
    if sharing == "divisors":
        return {n for n in range(1, ranks + 1) if ranks % n == 0}
    return {1, ranks} if sharing == "all-ranks" else {1}


def _halvings(ranks: int) -> list[int]:
    return [1 << k for k in range(ranks.bit_length()) if ranks % (1 << k) == 0]


def _upto(n: int) -> range:
    return range(1, n + 1)
