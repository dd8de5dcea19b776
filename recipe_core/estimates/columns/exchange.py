"""Where ranks that share experts dispatch tokens: asked by the estimate and by the launch alike."""

from __future__ import annotations

import numpy as np

from recipe_core.base.arrays import Bool, Float, Int
from recipe_core.engines.spec import Dispatch
from recipe_core.estimates.columns.serving import Cases, Setting
from recipe_core.models.spec import MoeMlp


def exchange_dispatch(setting: Setting) -> Dispatch | None:
    """What the engine dispatches with on this hardware and model; None where it never does.

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
    """Where a pool that only decodes dispatches: its experts span nodes within a fabric domain.

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
