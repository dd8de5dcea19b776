"""The fit of a deployment into its nodes, for scalars (one split) or arrays that broadcast.

The search refuses what does not fit, and a launch places groups of ranks, by the same functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from recipe_core.base.arrays import Bool, Int
from recipe_core.engines.spec import SplitSupport

UNEVEN_FIX = "choose degrees whose product fits in one node or fills whole nodes evenly"
UNPACKED_FIX = "use fewer replicas, or degrees that divide the devices of a node"


@dataclass(frozen=True, slots=True)
class Servers:
    """Servers of one split: their number, and the devices and nodes of each.

    0 nodes where a server cannot be spread evenly.
    """

    count: Int
    devices: Int
    nodes: Int


def are_separate_servers(
    support: SplitSupport, moe: bool, ep: Int, devices: Int, per_node: Int
) -> Bool:
    """Mark replicas (dp) that are separate servers, not ranks that one server balances among."""
    always = support.replicas == "servers" or (moe and support.replicas == "dense-within-node")
    return np.asarray((np.asarray(ep) == 1) & (always | (np.asarray(devices) > per_node)))


def pool_servers(
    support: SplitSupport,
    moe: bool,
    degrees: tuple[Int, Int, Int, Int],
    copies: Int,
    per_node: Int,
    nodes: Int,
) -> Servers:
    """The servers of a pool.

    Args:
        support: what the engine can split.
        moe: whether the model is a mixture of experts.
        degrees: tp, pp, dp and ep.
        copies: how often that split is deployed.
        per_node: devices of a node.
        nodes: nodes available.
    """
    tp, pp, dp, ep = map(np.asarray, degrees)
    separate = are_separate_servers(support, moe, ep, tp * pp * dp, per_node)
    server_dp = np.where(separate, 1, dp)
    count = np.asarray(copies) * np.where(separate, dp, 1)
    devices = tp * pp * server_dp
    return Servers(
        count, devices, fewest_server_nodes(support, pp, server_dp, devices, per_node, nodes)
    )


def fewest_server_nodes(
    support: SplitSupport, pp: Int, dp: Int, devices: Int, per_node: Int, nodes: Int
) -> Int:
    """The fewest nodes that a server spreads over with equally many devices on each; 0 if none."""
    fewest = np.zeros_like(np.asarray(devices))
    # Upwards: the more devices on each node, the fewer nodes, so that the last that fits stays.
    for share in range(1, int(np.max(per_node, initial=1)) + 1):
        n = np.maximum(devices // share, 1)
        divides = (devices % share == 0) & (share <= np.asarray(per_node))
        fits = divides & (n <= nodes) & _may_span_nodes(support, pp, dp, n)
        fewest = np.where(fits, n, fewest)
    return np.asarray(fewest)


def _may_span_nodes(support: SplitSupport, pp: Int, dp: Int, nodes: Int) -> Bool:
    if support.over_nodes == "never":
        return np.asarray(nodes == 1)
    if support.over_nodes == "ranks":
        return np.ones_like(nodes, dtype=bool)
    parts = pp if support.over_nodes == "stages" else dp
    return np.asarray((parts % nodes == 0) | (nodes % parts == 0))


def nodes_needed(kinds: Sequence[Servers], per_node: Int) -> Int:
    """Nodes that one or two kinds of servers take, packed first fit by decreasing size.

    Servers that span nodes take empty ones. For the two sizes that remain, first fit is counted in
    closed form rather than tried. Servers that cannot be spread (0 nodes) count as none.
    """
    several = [np.where(kind.nodes > 1, kind.count * kind.nodes, 0) for kind in kinds]
    single = [
        (np.where(kind.nodes == 1, kind.count, 0), np.clip(kind.devices, 1, per_node))
        for kind in kinds
    ]
    if len(single) == 1:
        count, size = single[0]
        small_count, small_size = np.zeros_like(count), np.ones_like(size)
    else:
        swap = single[1][1] > single[0][1]
        count, size = (np.where(swap, second, first) for first, second in zip(*single, strict=True))
        small_count, small_size = (
            np.where(swap, first, second) for first, second in zip(*single, strict=True)
        )
    full, rest = np.divmod(count, per_node // size)
    begun = rest > 0
    beside = full * ((per_node - per_node // size * size) // small_size) + begun * (
        (per_node - rest * size) // small_size
    )
    unplaced_count = np.maximum(small_count - beside, 0)
    more = -(-unplaced_count // (per_node // small_size))
    return np.asarray(sum(several, start=np.zeros_like(count)) + full + begun + more)


def fits_in_nodes(kinds: Sequence[Servers], per_node: Int, nodes: Int) -> Bool:
    """Mark whether one or two kinds of servers pack into so many nodes."""
    return np.asarray(nodes_needed(kinds, per_node) <= nodes)


def uneven_server_text(tp: int, pp: int, dp: int, per_node: int) -> str:
    """The sentence of a server that cannot be spread."""
    product = f"TP {tp} × PP {pp} × DP {dp} = {tp * pp * dp} devices"
    return f"{product} cannot be spread evenly over nodes of {per_node}"


def unpacked_servers_text(sizes: Sequence[tuple[int, int]], per_node: int, nodes: int) -> str:
    """The sentence of servers (how many, devices of each) that do not pack."""
    servers = " and ".join(
        f"{count} server{'s' * (count > 1)} of {devices} device{'s' * (devices > 1)}"
        for count, devices in sizes
    )
    return f"{servers} do not fit into {nodes} node{'s' * (nodes > 1)} of {per_node}"
