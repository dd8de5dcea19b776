"""Time of collectives: what it takes to start, plus bytes over achieved bandwidth (alpha–beta), in a node and across nodes.

Two families of kernels. Those of the *library* (NCCL, RCCL, gloo) go round by round: ``passes`` rounds (1 to gather, scatter or
exchange, 2 to reduce for all) of n - 1 steps,

    t = latency + passes · ((n - 1) · latency_per_rank + (n - 1)/n · bytes / (bandwidth · efficiency))

*Direct* kernels read the memory of the other devices, within one domain. An all-reduce is then the quicker of one shot (every rank reads
all others, (n - 1) · bytes) and two (each reduces its share, then reads the others', 2 (n - 1)/n · bytes, starting twice). Fitted to
measured all-reduces of three engines this is 4–8 % off (median), one line for all sizes 8–11 %.

Across nodes the library works in both networks at once: what starts adds up, of the bytes the slower network counts (large all-reduces of
8 and 16 ranks a node reach that rate). Source of the factors: NCCL's performance notes (bus bandwidth). Left out: in-network reduction.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from recipe_core.base.arrays import Bool, Float, Int
from recipe_core.hardware.cluster import Cluster
from recipe_core.hardware.profile import DirectLinks, Fabric
from recipe_core.space.serving import Cases
from recipe_core.space.training import TrainingCases

EXCHANGE_STARTS = 4.0
"""Starts of a direct kernel that one low-latency exchange of tokens takes (count, send, signal, wait). DeepEP's take 3.8 (B200), 3.9
(GB200) and 4.1 (H100) of what an all-reduce starts with."""

LAYOUT_STARTS = 3.0
"""Starts of a library round that an exchange of tokens in bulk takes (layout, notify, send): 2.4 (B200) to 3 (H100, GB200) in DeepEP."""


@dataclass(frozen=True, slots=True)
class Group:
    """Ranks of a collective: ``local`` reach each other over the fabric, in ``remote`` such islands joined by the network."""

    local: Float
    remote: Float

    @property
    def ranks(self) -> Float:
        """All ranks."""
        return self.local * self.remote


def rank_group(
    cluster: Cluster, cases: Cases | TrainingCases, ranks: Int | Float, stride: Int | int = 1
) -> Group:
    """The group of ``ranks`` consecutive ranks (``stride`` apart): as many on one island as its devices allow."""
    reach = (
        np.full(len(cases), float(cluster.fabric.domain or 1))
        if cluster.rack_scale
        else cases.per_node.astype(float)
    )
    local = np.clip(np.floor(reach / stride), 1, ranks)
    return Group(local, np.ceil(ranks / local))


def _bandwidth(fabric: Fabric, ranks: Float) -> Float | float:
    """Datasheet bytes per second and direction of one device; in a mesh only the links to members of the group count."""
    full = fabric.bandwidth_bytes_per_s.value
    if fabric.topology == "mesh" and fabric.domain:
        return full * np.clip((ranks - 1) / (fabric.domain - 1), 1 / (fabric.domain - 1), 1)
    return full


def _start(links: Fabric | DirectLinks, ranks: Float, passes: float = 1.0) -> Float:
    """Seconds before bytes count; none for a single rank."""
    per_rank = links.latency_per_rank_s.value if links.latency_per_rank_s else 0.0
    return np.where(ranks > 1, links.latency_s.value + passes * per_rank * (ranks - 1), 0.0)


def _wide(cluster: Cluster, ranks: Float) -> Bool:
    """Groups in a node that reach over the fabric's domain (bridged pairs): they go at the pace of what joins the domains."""
    return (
        ranks > (cluster.fabric.domain or 1)
        if cluster.beyond
        else np.zeros(len(ranks), dtype=np.bool_)
    )


def _rounds(fabric: Fabric, ranks: Float, passes: float) -> tuple[Float, Float | float]:
    """Start and achieved bandwidth of library rounds over one fabric."""
    return _start(fabric, ranks, passes), _bandwidth(fabric, ranks) * fabric.efficiency.value


def _inside(cluster: Cluster, ranks: Float, passes: float) -> tuple[Float, Float | float]:
    """Start and achieved bandwidth of library rounds in a node."""
    near = _rounds(cluster.fabric, ranks, passes)
    if cluster.beyond is None:
        return near
    wide, far = _wide(cluster, ranks), _rounds(cluster.beyond, ranks, passes)
    return np.where(wide, far[0], near[0]), np.where(wide, far[1], near[1])


def _library(cluster: Cluster, members: Group, data_bytes: Float, passes: float) -> Float:
    """Rounds in which each rank moves (n - 1)/n of the data, each island sharing what crosses the network among its ranks."""
    start_inside, rate_inside = _inside(cluster, members.local, passes)
    start_outside, rate_outside = _rounds(cluster.network, members.remote, passes)
    inside = (members.local - 1) / members.local / rate_inside
    outside = (members.remote - 1) / members.remote / members.local / rate_outside
    return start_inside + start_outside + passes * np.maximum(inside, outside) * data_bytes


def all_reduce_s(cluster: Cluster, members: Group, data_bytes: Float) -> Float:
    """Seconds to sum ``data_bytes`` held by every rank; by direct kernels where one domain with such kernels holds the group."""
    library = _library(cluster, members, data_bytes, 2.0)
    direct, ranks = cluster.fabric.direct, members.local
    if direct is None:
        return library
    start = _start(direct, ranks)
    one_s = (ranks - 1) / (_bandwidth(cluster.fabric, ranks) * direct.efficiency.value)
    best = np.minimum(start + one_s * data_bytes, 2 * start + 2 / ranks * one_s * data_bytes)
    largest = direct.largest_bytes.value if direct.largest_bytes else np.inf
    return np.where(
        (members.remote > 1) | _wide(cluster, ranks) | (data_bytes > largest), library, best
    )


def all_gather_s(cluster: Cluster, members: Group, data_bytes: Float) -> Float:
    """Seconds until every rank has the ``data_bytes`` that all hold together (a reduce-scatter takes the same)."""
    return _library(cluster, members, data_bytes, 1.0)


def all_to_all_s(cluster: Cluster, members: Group, data_bytes: Float) -> Float:
    """Seconds until every rank has handed an equal share of its own ``data_bytes`` to each other rank."""
    share = data_bytes / members.ranks
    return _exchange(
        cluster, members, (members.local - 1) * share, (members.ranks - members.local) * share
    )


def _exchange(
    cluster: Cluster, members: Group, inside_bytes: Float, outside_bytes: Float, starts: float = 1.0
) -> Float:
    """A library round in which each rank sends so many bytes to its own island and to others."""
    start_inside, rate_inside = _inside(cluster, members.local, 1.0)
    start_outside, rate_outside = _rounds(cluster.network, members.remote, 1.0)
    return starts * (start_inside + start_outside) + np.maximum(
        inside_bytes / rate_inside, outside_bytes / rate_outside
    )


def _distinct(places: Float, draws: float) -> Float:
    """How many of ``places`` other than one's own ``draws`` independent draws hit, on average."""
    return (places - 1) * (1 - (1 - 1 / places) ** draws)


def dispatch_s(
    cluster: Cluster, members: Group, tokens: Float, top_k: int, token_bytes: Float | float
) -> Float:
    """Seconds until ``tokens`` of every rank, of ``token_bytes`` each, are where their ``top_k`` experts are (or their sums are back).

    In bulk a token crosses to a node once and is handed on to each rank that wants it once; a low-latency exchange, where direct kernels
    can make it, sends a copy for each expert. The quicker one counts, as engines pick by phase. Source: DeepEP's two modes; where both were
    measured the quicker is met to 14–21 % (median) in a node, to 3 % on 16 to 64 H100. In bulk Blackwell may need twice what is said here
    (DeepEP on 20 of its multiprocessors does, its second version does not).
    """
    ranks, row = members.ranks, tokens * token_bytes
    bulk = _exchange(
        cluster,
        members,
        row * _distinct(ranks, top_k),
        row * _distinct(members.remote, top_k),
        LAYOUT_STARTS,
    )
    near, far = cluster.fabric.direct, cluster.network.direct
    if near is None:
        return bulk
    start, rate = (
        _start(near, members.local),
        _bandwidth(cluster.fabric, members.local) * near.efficiency.value,
    )
    seconds = row * top_k * (members.local - 1) / ranks / rate
    possible = ~_wide(cluster, members.local)
    if far is None:
        possible &= members.remote == 1
    else:
        start = start + _start(far, members.remote)
        outside = row * top_k * (ranks - members.local) / ranks
        seconds = np.maximum(
            seconds, outside / (_bandwidth(cluster.network, members.remote) * far.efficiency.value)
        )
    return np.where(possible, np.minimum(bulk, EXCHANGE_STARTS * start + seconds), bulk)


def send_s(cluster: Cluster, across: Float | Bool, data_bytes: Float) -> Float:
    """Seconds to hand ``data_bytes`` to the next stage, over the network where it sits in another node (or for a share of the stages)."""
    two = np.array([2.0])
    (start_inside, rate_inside), (start_outside, rate_outside) = (
        _inside(cluster, two, 1.0),
        _rounds(cluster.network, two, 1.0),
    )
    near = 1.0 - across
    return (
        across * start_outside
        + near * start_inside
        + (across / rate_outside + near / rate_inside) * data_bytes
    )
