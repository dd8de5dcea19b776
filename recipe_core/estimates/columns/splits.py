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

from recipe_core.base.arrays import Bool, Float, Int
from recipe_core.engines.spec import Dispatch
from recipe_core.estimates.columns.serving import Cases, Setting
from recipe_core.models.spec import MoeMlp


def exchange_dispatch(setting: Setting) -> Dispatch | None:
    """Return what the engine dispatches with on this hardware and model; None where it never does.

    The kernels exist for a runtime, for formats of experts and for widths of tokens, which reach
    other nodes over a rack's fabric.
    """
    exchange, cluster = setting.engine.split.exchange, setting.cluster
    ways = exchange.between_nodes if exchange else None
    if ways is None or cluster.device.runtime not in ways.runtimes or not cluster.rack_scale:
        return None
    if cluster.fabric.direct is None or setting.stored_dtype("experts") not in ways.sent:
        return None
    mlps = [mlp for mlp, _ in setting.model.mlps if isinstance(mlp, MoeMlp)]
    mlp_fits = (
        mlp.expert_hidden(setting.model.hidden) in ways.hidden and mlp.top_k <= ways.most_experts
        for mlp in mlps
    )
    return ways if mlps and all(mlp_fits) else None


def dispatches(
    setting: Setting,
    degrees: tuple[Int | int, Int | int, Int | int, Int | int],
    per_node: Int | int,
    sequences: Float | int,
) -> Bool:
    """Mark cases whose pool only decodes and dispatches: experts span nodes of a fabric domain.

    Args:
        setting: model, cluster and engine.
        degrees: tp, pp, dp and ep of the pool.
        per_node: devices of a node.
        sequences: that a rank runs at most; each has a row a step, as nothing is drafted.
    """
    tp, pp, dp, ep = map(np.asarray, degrees)
    ranks, ways = tp * dp, exchange_dispatch(setting)
    if ways is None:
        return np.zeros(np.broadcast_shapes(ranks.shape, np.shape(per_node)), dtype=np.bool_)
    possible = (dp > 1) & (pp == 1) & (ep == ranks) & (ranks > np.asarray(per_node))
    possible &= ranks <= (setting.cluster.fabric.domain or 1)
    for mlp, _ in setting.model.mlps:
        if isinstance(mlp, MoeMlp):  # each rank holds as many
            possible &= mlp.experts % ranks == 0
    return np.asarray(possible & (np.asarray(sequences) <= ways.most_tokens))


def dispatching_cases(setting: Setting, cases: Cases) -> Bool:
    """The cases whose decode pool dispatches; pools that draft gather."""
    degrees = (cases.tp, cases.pp, cases.dp, cases.ep)
    pools: Bool = cases.disaggregated & (cases.draft_tokens == 0)
    pools &= dispatches(setting, degrees, cases.per_node, cases.max_num_seqs)
    return pools


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
    """Return how many splits ``enumerate_splits`` would make, without making them."""
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
    """Return how many of the ranks can share the experts; 1 means that they are not shared."""
    if sharing == "divisors":
        return {n for n in range(1, ranks + 1) if ranks % n == 0}
    return {1, ranks} if sharing == "all-ranks" else {1}


def _halvings(ranks: int) -> list[int]:
    return [1 << k for k in range(ranks.bit_length()) if ranks % (1 << k) == 0]


def _upto(n: int) -> range:
    return range(1, n + 1)
