"""Whether a deployment finds room in its nodes, for one split or many at once: scalars or arrays that broadcast.

The search refuses what does not fit by these, and a launch places groups of ranks by the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from recipe_core.base.arrays import Bool, Int
from recipe_core.engines.spec import SplitSupport

UNEVEN_FIX = "choose degrees whose product fits a node, or fills whole nodes evenly"
UNPACKED_FIX = "use fewer replicas, or degrees that divide a node"


@dataclass(frozen=True, slots=True)
class Servers:
    """Servers that are cut alike: how many, and devices and nodes of each (0 nodes where it cannot be spread evenly)."""

    count: Int
    devices: Int
    nodes: Int


def apart(support: SplitSupport, moe: bool, ep: Int, devices: Int, per_node: Int) -> Bool:
    """Whether replicas (dp) are servers of their own, rather than one server that balances among them."""
    always = support.replicas == "servers" or (moe and support.replicas == "dense-within-node")
    return np.asarray((np.asarray(ep) == 1) & (always | (np.asarray(devices) > per_node)))


def servers(
    support: SplitSupport,
    moe: bool,
    degrees: tuple[Int, Int, Int, Int],
    copies: Int,
    per_node: Int,
    there: Int,
) -> Servers:
    """The servers of a pool.

    Args:
        support: what the engine can split.
        moe: whether the model is a mixture of experts.
        degrees: tp, pp, dp and ep.
        copies: how often that split is there.
        per_node: devices of a node.
        there: nodes.
    """
    tp, pp, dp, ep = map(np.asarray, degrees)
    own = apart(support, moe, ep, tp * pp * dp, per_node)
    mine = np.where(own, 1, dp)
    count = np.asarray(copies) * np.where(own, dp, 1)
    return Servers(
        count, tp * pp * mine, fewest_nodes(support, pp, mine, tp * pp * mine, per_node, there)
    )


def fewest_nodes(
    support: SplitSupport, pp: Int, dp: Int, devices: Int, per_node: Int, there: Int
) -> Int:
    """The fewest nodes over which a server can be spread, with as many devices on each; 0 where there is no way."""
    found = np.zeros_like(np.asarray(devices))
    for each in range(
        1, int(np.max(per_node, initial=1)) + 1
    ):  # the more on each node, the fewer nodes
        n = np.maximum(devices // each, 1)
        fits = (
            (devices % each == 0)
            & (each <= np.asarray(per_node))
            & (n <= there)
            & _spans(support, pp, dp, n)
        )
        found = np.where(fits, n, found)
    return np.asarray(found)


def _spans(support: SplitSupport, pp: Int, dp: Int, nodes: Int) -> Bool:
    if support.over_nodes == "never":
        return np.asarray(nodes == 1)
    if support.over_nodes == "ranks":
        return np.ones_like(nodes, dtype=bool)
    parts = pp if support.over_nodes == "stages" else dp
    return np.asarray((parts % nodes == 0) | (nodes % parts == 0))


def fits_in_nodes(kinds: Sequence[Servers], per_node: Int, there: Int) -> Bool:
    """Whether one or two kinds of servers pack: those over several nodes take empty ones, the larger of the others go first.

    Each of the others takes the first node with room, which for two sizes is counted rather than tried.
    """
    several = [np.where(kind.nodes > 1, kind.count * kind.nodes, 0) for kind in kinds]
    free = there - sum(several, start=np.zeros_like(np.asarray(there)))
    one = [
        (np.where(kind.nodes == 1, kind.count, 0), np.minimum(kind.devices, per_node))
        for kind in kinds
    ]
    if len(one) == 1:
        (count, size), other, least = one[0], np.zeros_like(one[0][0]), np.ones_like(one[0][1])
    else:
        swap = one[1][1] > one[0][1]
        count, size = (np.where(swap, second, first) for first, second in zip(*one, strict=True))
        other, least = (np.where(swap, first, second) for first, second in zip(*one, strict=True))
    full, rest = np.divmod(count, per_node // size)
    begun = rest > 0
    beside = full * ((per_node - per_node // size * size) // least) + begun * (
        (per_node - rest * size) // least
    )
    empty = free - full - begun
    return np.asarray((empty >= 0) & (beside + empty * (per_node // least) >= other))


def uneven(tp: int, pp: int, dp: int, per_node: int) -> str:
    """That a server cannot be spread."""
    return f"tp {tp} × pp {pp} × dp {dp} = {tp * pp * dp} devices do not divide evenly over nodes of {per_node}"


def unpacked(sizes: Sequence[tuple[int, int]], per_node: int, nodes: int) -> str:
    """That servers (how many, devices of each) do not pack."""
    wanted = " and ".join(
        f"{count} server{'s' * (count > 1)} of {devices} device{'s' * (devices > 1)}"
        for count, devices in sizes
    )
    return f"{wanted} do not pack into {nodes} node{'s' * (nodes > 1)} of {per_node}"
