"""Time of collectives, in a node and across nodes: start-up plus bytes over achieved bandwidth.

Two families of kernels. The *library's* (NCCL, RCCL, gloo) run ``passes`` rounds (1 to gather,
scatter or exchange, 2 to all-reduce) of n - 1 steps (the alpha–beta model):

    t = latency + passes · ((n-1) · latency_per_rank + (n-1)/n · bytes / (bandwidth · efficiency))

*Direct* kernels read the memory of the other devices in one domain. An all-reduce then takes the
faster of one shot (every rank reads all others, (n - 1) · bytes) and two (each reduces its share,
then reads the others', 2 (n - 1)/n · bytes, with two starts). Fitted to measured all-reduces of
three engines this is 4–8 % off (median), a single line for all sizes 8–11 %.

Across nodes the library uses both networks at once: starts add up, and the slower network sets the
transfer time (large all-reduces of 8 and 16 ranks a node reach that rate). Source of the factors:
NCCL's performance notes (bus bandwidth). Left out: in-network reduction.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from recipe_core.base.arrays import Bool, Float, Int
from recipe_core.base.units import share_text
from recipe_core.estimates.columns.serving import Cases
from recipe_core.estimates.ledger import Transfer, only_number, record_entry
from recipe_core.hardware.cluster import Cluster
from recipe_core.hardware.profile import DirectLinks, Fabric, Way

if TYPE_CHECKING:  # importing what training needs takes serving time
    from recipe_core.estimates.columns.training import TrainingCases

# Starts of a direct kernel in one low-latency token exchange (count, send, signal, wait). DeepEP
# takes 3.8 (B200), 3.9 (GB200) and 4.1 (H100) times the start of an all-reduce.
EXCHANGE_STARTS = 4.0

# Starts of a library round in one bulk token exchange (layout, notify, send). DeepEP takes 2.4
# (B200) to 3 (H100, GB200).
LAYOUT_STARTS = 3.0


@dataclass(frozen=True, slots=True)
class Group:
    """Ranks of a collective: ``remote`` islands on the network, ``local`` ranks on each."""

    local: Float
    remote: Float

    @property
    def ranks(self) -> Float:
        """All ranks of the group, one number per case."""
        return self.local * self.remote


def rank_group(
    cluster: Cluster, cases: Cases | TrainingCases, ranks: Int | Float, stride: Int | int = 1
) -> Group:
    """The group of ``ranks`` ranks, ``stride`` apart: as many on one island as it has devices."""
    reach = (
        np.full(len(cases), float(cluster.fabric.domain or 1))
        if cluster.rack_scale
        else cases.per_node.astype(float)
    )
    local = np.clip(np.floor(reach / stride), 1, ranks)
    return Group(local, np.ceil(ranks / local))


def _bandwidth(fabric: Fabric, ranks: Float) -> Float | float:
    """Datasheet bytes per second of one device, one way; a mesh counts links in the group only."""
    full = fabric.bandwidth_bytes_per_s.value
    if fabric.topology == "mesh" and fabric.domain:
        return full * np.clip((ranks - 1) / (fabric.domain - 1), 1 / (fabric.domain - 1), 1)
    return full


def _round_start_s(links: Fabric | DirectLinks, ranks: Float, passes: float = 1.0) -> Float:
    """Seconds before the first byte; none for a single rank."""
    per_rank = links.latency_per_rank_s.value if links.latency_per_rank_s else 0.0
    return np.where(ranks > 1, links.latency_s.value + passes * per_rank * (ranks - 1), 0.0)


Starts = tuple[tuple[float, float], ...]


def _starts(links: Fabric | DirectLinks, ranks: Any, passes: float = 1.0) -> Starts:
    """The terms of `_round_start_s`, of one case: seconds, and how many of them."""
    if only_number(ranks) <= 1:
        return ()
    terms = [(links.latency_s.value, 1.0)]
    if links.latency_per_rank_s:
        terms.append((links.latency_per_rank_s.value, passes * (only_number(ranks) - 1)))
    return tuple(terms)


def _all_starts(cluster: Cluster, members: Group, passes: float, times: float = 1.0) -> Starts:
    """The starts of ``times`` library rounds inside and between islands, of one case."""
    inside = cluster.fabric
    if cluster.beyond is not None and bool(_wide(cluster, members.local).any()):
        inside = cluster.beyond
    both = (
        *_starts(inside, members.local, passes),
        *_starts(cluster.network, members.remote, passes),
    )
    return tuple((start_s, times * count) for start_s, count in both)


def _wide(cluster: Cluster, ranks: Float) -> Bool:
    """Groups in a node that span fabric domains (bridged pairs): the link between them counts."""
    return (
        ranks > (cluster.fabric.domain or 1)
        if cluster.beyond
        else np.zeros(len(ranks), dtype=np.bool_)
    )


def _rounds(fabric: Fabric, ranks: Float, passes: float) -> tuple[Float, Float | float]:
    return _round_start_s(fabric, ranks, passes), _bandwidth(
        fabric, ranks
    ) * fabric.efficiency.value


def _node_round(cluster: Cluster, ranks: Float, passes: float) -> tuple[Float, Float | float]:
    """Start and achieved bandwidth of library rounds in a node."""
    fabric = _rounds(cluster.fabric, ranks, passes)
    if cluster.beyond is None:
        return fabric
    wide, beyond = _wide(cluster, ranks), _rounds(cluster.beyond, ranks, passes)
    return np.where(wide, beyond[0], fabric[0]), np.where(wide, beyond[1], fabric[1])


def _library(
    cluster: Cluster, members: Group, data_bytes: Float, passes: float, label: str
) -> Float:
    """Library rounds that move (n - 1)/n of the data; an island's ranks share its network part."""
    start_inside, rate_inside = _node_round(cluster, members.local, passes)
    start_outside, rate_outside = _rounds(cluster.network, members.remote, passes)
    inside = (members.local - 1) / members.local / rate_inside
    outside = (members.remote - 1) / members.remote / members.local / rate_outside

    def entry(seconds: float) -> Transfer:
        return _collective_transfer(
            cluster,
            members,
            seconds,
            label=label,
            algorithm=f"{LIBRARY[cluster.device.runtime]}, {_PASSES[passes]}",
            data_bytes=data_bytes,
            starts=_all_starts(cluster, members, passes),
            busy_s=(inside * passes * data_bytes, outside * passes * data_bytes),
        )

    return record_entry(
        start_inside + start_outside + passes * np.maximum(inside, outside) * data_bytes, entry
    )


# Collective library of each runtime.
LIBRARY = {
    "cuda": "NCCL",
    "rocm": "RCCL",
    "hpu": "HCCL",
    "xpu": "oneCCL",
    "npu": "host memory",
    "metal": "host memory",
    "tpu": "XLA",
    "neuron": "Neuron",
    "cpu": "gloo",
}
_PASSES = {1.0: "one pass", 2.0: "two passes"}


def _collective_transfer(
    cluster: Cluster,
    members: Group,
    seconds: float,
    *,
    label: str,
    algorithm: str,
    data_bytes: Float,
    starts: Starts,
    busy_s: tuple[Float, Float],
    way: Way = "library",
) -> Transfer:
    """The ledger's entry of a collective: ``busy_s`` inside and outside an island, which overlap.

    The longer one sets the pace; its bytes are those that take so long at its achieved rate.
    """
    inside_s, outside_s = only_number(busy_s[0]), only_number(busy_s[1])
    if outside_s > inside_s:
        fabric, ranks = cluster.network, members.remote
    elif way == "library" and cluster.beyond and bool(_wide(cluster, members.local).any()):
        fabric, ranks = cluster.beyond, members.local
    else:
        fabric, ranks = cluster.fabric, members.local
    efficiency = fabric.links(way).efficiency.value
    bandwidth = only_number(_bandwidth(fabric, ranks))
    return Transfer(
        label,
        seconds,
        algorithm=algorithm,
        ranks=only_number(members.ranks),
        data_bytes=only_number(data_bytes),
        starts=starts,
        moved_bytes=max(inside_s, outside_s) * bandwidth * efficiency,
        bandwidth_bytes_per_s=bandwidth,
        efficiency=efficiency,
        fabric=fabric,
        way=way,
    )


def all_reduce_s(cluster: Cluster, members: Group, data_bytes: Float) -> Float:
    """Seconds to sum ``data_bytes`` over all ranks, the fastest way where one domain joins them.

    Direct kernels send everything to all (one shot) or a share to each rank and back (two). A
    switch that sums itself takes each rank's message once and returns the sum once.
    """
    library = _library(cluster, members, data_bytes, 2.0, "All-reduce")
    fabric, ranks = cluster.fabric, members.local
    direct, switch = fabric.direct, fabric.switch
    if direct is None:
        return library

    def kernels_s(links: DirectLinks, way: Way, name: str, starts: int, moved: Float) -> Float:
        busy_s = moved * data_bytes / (_bandwidth(fabric, ranks) * links.efficiency.value)
        return record_entry(
            starts * _round_start_s(links, ranks) + busy_s,
            lambda seconds: _collective_transfer(
                cluster,
                members,
                seconds,
                label="All-reduce",
                algorithm=name,
                data_bytes=data_bytes,
                starts=tuple((each_s, starts * n) for each_s, n in _starts(links, ranks)),
                busy_s=(busy_s, np.zeros(1)),
                way=way,
            ),
        )

    best = np.minimum(
        kernels_s(direct, "direct", "direct kernels, one shot", 1, ranks - 1),
        kernels_s(direct, "direct", "direct kernels, two shots", 2, 2 / ranks * (ranks - 1)),
    )
    if switch is not None:
        once = np.minimum(ranks - 1, 1.0)
        best = np.minimum(best, kernels_s(switch, "switch", "sums in the switch", 1, once))
    largest = direct.largest_bytes.value if direct.largest_bytes else np.inf
    by_library = (members.remote > 1) | _wide(cluster, ranks) | (data_bytes > largest)
    return np.where(by_library, library, best)


def all_gather_s(
    cluster: Cluster, members: Group, data_bytes: Float, label: str = "All-gather"
) -> Float:
    """Seconds until every rank has all ``data_bytes``; a reduce-scatter takes the same."""
    return _library(cluster, members, data_bytes, 1.0, label)


def all_to_all_s(cluster: Cluster, members: Group, data_bytes: Float) -> Float:
    """Seconds until every rank has sent an equal share of its ``data_bytes`` to each rank."""
    share = data_bytes / members.ranks
    return _exchange_round_s(
        cluster, members, (members.local - 1) * share, (members.ranks - members.local) * share
    )


def _exchange_round_s(
    cluster: Cluster, members: Group, inside_bytes: Float, outside_bytes: Float, starts: float = 1.0
) -> Float:
    """A library round in which each rank sends these bytes inside and outside its island."""
    start_inside, rate_inside = _node_round(cluster, members.local, 1.0)
    start_outside, rate_outside = _rounds(cluster.network, members.remote, 1.0)
    inside_s, outside_s = inside_bytes / rate_inside, outside_bytes / rate_outside
    start_s = starts * (start_inside + start_outside)
    return record_entry(
        start_s + np.maximum(inside_s, outside_s),
        lambda seconds: _collective_transfer(
            cluster,
            members,
            seconds,
            label="Exchange of tokens",
            algorithm=f"{LIBRARY[cluster.device.runtime]}, to all ranks",
            data_bytes=inside_bytes + outside_bytes,
            starts=_all_starts(cluster, members, 1.0, starts),
            busy_s=(inside_s, outside_s),
        ),
    )


def _distinct_places(places: Float, draws: float) -> Float:
    """Expected number of ``places``, other than one's own, hit by ``draws`` independent draws."""
    return (places - 1) * (1 - (1 - 1 / places) ** draws)


def dispatch_s(
    cluster: Cluster, members: Group, tokens: Float, top_k: int, token_bytes: Float | float
) -> Float:
    """Seconds to bring ``tokens`` of every rank to their ``top_k`` experts, or their sums back.

    A bulk exchange sends a token once to each node and there once to each rank that needs it; a
    low-latency exchange (direct kernels only) sends one copy per expert. The faster one counts, as
    engines pick by phase. Source: DeepEP's two modes. Where both were measured the faster one is
    met to 14–21 % (median) in a node and to 3 % on 16 to 64 H100. On Blackwell a bulk exchange may
    take twice as long (DeepEP on 20 multiprocessors does, its second version does not).
    """
    ranks, row = members.ranks, tokens * token_bytes
    bulk = _exchange_round_s(
        cluster,
        members,
        row * _distinct_places(ranks, top_k),
        row * _distinct_places(members.remote, top_k),
        LAYOUT_STARTS,
    )
    return np.minimum(bulk, low_latency_s(cluster, members, tokens, top_k, token_bytes))


def low_latency_s(
    cluster: Cluster, members: Group, tokens: Float, top_k: int, token_bytes: Float | float
) -> Float:
    """The same by direct kernels alone; infinite where none reach every rank."""
    ranks, row = members.ranks, tokens * token_bytes
    direct, remote = cluster.fabric.direct, cluster.network.direct
    if direct is None:
        return np.full(np.broadcast_shapes(np.shape(row), np.shape(ranks)), np.inf)
    start = _round_start_s(direct, members.local)
    rate = _bandwidth(cluster.fabric, members.local) * direct.efficiency.value
    seconds = inside_s = row * top_k * (members.local - 1) / ranks / rate
    outside_s = np.zeros(1)
    possible = ~_wide(cluster, members.local)
    if remote is None:
        possible &= members.remote == 1
    else:
        start = start + _round_start_s(remote, members.remote)
        outside = row * top_k * (ranks - members.local) / ranks
        rate = _bandwidth(cluster.network, members.remote) * remote.efficiency.value
        outside_s = outside / rate
        seconds = np.maximum(seconds, outside_s)
    return record_entry(
        np.where(possible, EXCHANGE_STARTS * start + seconds, np.inf),
        lambda once_s: _collective_transfer(
            cluster,
            members,
            once_s,
            label="Exchange of tokens",
            algorithm="direct kernels, low latency",
            data_bytes=row * top_k,
            starts=tuple(
                (each_s, EXCHANGE_STARTS * n)
                for each_s, n in (
                    *_starts(direct, members.local),
                    *(_starts(remote, members.remote) if remote else ()),
                )
            ),
            busy_s=(inside_s, outside_s),
            way="direct",
        ),
    )


def send_s(cluster: Cluster, across: Float | Bool, data_bytes: Float) -> Float:
    """Seconds to send ``data_bytes`` to the next stage, a share ``across`` of it between nodes."""
    two = np.array([2.0])
    start_inside, rate_inside = _node_round(cluster, two, 1.0)
    start_outside, rate_outside = _rounds(cluster.network, two, 1.0)
    within = 1.0 - across
    start = across * start_outside + within * start_inside
    between, inside = across / rate_outside, within / rate_inside
    return record_entry(
        start + (between + inside) * data_bytes,
        lambda seconds: _message_transfer(cluster, seconds, across, (between, inside), data_bytes),
    )


def _message_transfer(
    cluster: Cluster,
    seconds: float,
    across: Float | Bool,
    each_s: tuple[Any, Any],
    data_bytes: Float,
) -> Transfer:
    """The ledger's entry of a message: the mean of those between nodes and inside them.

    Its bandwidth is that of the slower kind, its efficiency what the mean reaches of it.
    """
    two, share = np.array([2.0]), only_number(across)
    within = cluster.fabric
    if cluster.beyond is not None and bool(_wide(cluster, two).any()):
        within = cluster.beyond
    fabric = cluster.network if share > 0 else within
    bandwidth = only_number(_bandwidth(fabric, two))
    starts = [(latency_s, n * share) for latency_s, n in _starts(cluster.network, two) if share > 0]
    starts += [(latency_s, n * (1 - share)) for latency_s, n in _starts(within, two) if share < 1]
    between = share_text(only_number(across))
    return Transfer(
        "Send to the next stage",
        seconds,
        algorithm=f"{LIBRARY[cluster.device.runtime]}, {between} between nodes",
        ranks=2.0,
        data_bytes=only_number(data_bytes),
        starts=tuple(starts),
        moved_bytes=only_number(data_bytes),
        bandwidth_bytes_per_s=bandwidth,
        efficiency=1 / (only_number(each_s[0] + each_s[1]) * bandwidth),
        fabric=fabric,
    )
