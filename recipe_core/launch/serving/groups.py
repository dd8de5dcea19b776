"""Nodes and devices of a deployment: groups of ranks, one engine each, packed into nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from recipe_core.base.errors import NoAnswer
from recipe_core.estimates.rules import placement
from recipe_core.launch.process import Deployment, Process, Role, Split

HEAD = "${head}"
# Where the ranks of an engine over several nodes meet; such engines share no node.
MASTER_PORT = 29501


@dataclass(frozen=True, slots=True)
class Place:
    """A node, and the devices used in it."""

    node: int
    devices: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Part:
    """One data-parallel ``rank`` of engine number ``of`` that is a server of its own.

    Rank 0 is on node ``head``.
    """

    rank: int
    of: int
    head: int


@dataclass(frozen=True, slots=True)
class Group:
    """One engine: its split, what it is for, and its place on each of its nodes.

    ``part``: where each data-parallel rank of an engine answers by itself; the split is then that
    of them all.
    """

    number: int
    role: Role
    split: Split
    places: tuple[Place, ...]
    part: Part | None = None

    @property
    def nodes(self) -> int:
        return len(self.places)


def engine_groups(deployment: Deployment) -> list[Group]:
    """Every engine of a deployment, prefill pools first.

    Raises:
        NoAnswer: where a group cannot be spread over nodes, or the groups do not pack into them.
    """
    candidate = deployment.candidate
    pools: list[tuple[Role, Split]] = [
        ("server" if candidate.prefill is None else "decode", candidate.split)
    ]
    if candidate.prefill is not None:
        pools.insert(0, ("prefill", candidate.prefill))
    engines: list[tuple[Role, Split]] = []
    sizes: list[tuple[int, int]] = []
    for role, pool in pools:
        servers = _servers_of_pool(deployment, pool)
        devices, nodes, count = int(servers.devices), int(servers.nodes), int(servers.count)
        split = replace(pool, dp=devices // (pool.tp * pool.pp), replicas=1)
        engines += [(role, split)] * count
        sizes += [(devices, nodes)] * count
    places = _pack_groups(
        sizes, deployment.setting.cluster.per_node, deployment.setting.cluster.nodes
    )
    return [Group(n, role, split, places[n]) for n, (role, split) in enumerate(engines)]


def by_rank(placed: Sequence[Group]) -> list[Group]:
    """Every data-parallel rank as a group of its own, on its part of the places.

    Ranks that share no experts are independent engines.

    Raises:
        NoAnswer: where a rank spans nodes.
    """
    out: list[Group] = []
    for group in placed:
        size, shared = group.split.tp * group.split.pp, group.split.ep > 1 and group.split.dp > 1
        ranks = range(ranks_of_node(group, "data_parallel_external_lb"))
        spots = [
            Place(place.node, place.devices[n * size : (n + 1) * size])
            for place in group.places
            for n in ranks
        ]
        head = spots[0].node
        for rank, spot in enumerate(spots if group.split.dp > 1 else [None]):
            split = group.split if shared else replace(group.split, dp=1)
            part = Part(rank, group.number, head) if shared else None
            out.append(Group(len(out), group.role, split, (spot,) if spot else group.places, part))
    return out


def ranks_of_node(group: Group, option: str) -> int:
    """Data-parallel ranks on each node of a group.

    Raises:
        NoAnswer: where a rank spans nodes; it names ``option``, which needs ranks within one.
    """
    size, per_node = group.split.tp * group.split.pp, len(group.places[0].devices)
    if group.split.dp > 1 and per_node % size:
        rank = f"a data-parallel rank of TP {group.split.tp} × PP {group.split.pp} = {size} devices"
        raise NoAnswer(
            f"{rank} spans nodes and cannot answer by itself.",
            field=f"options.engine_options.{option}",
            hint="Leave the option out, or use a smaller TP or PP.",
        )
    return max(per_node // size, 1)


def _servers_of_pool(deployment: Deployment, pool: Split) -> placement.Servers:
    setting = deployment.setting
    rules, is_moe, cluster = setting.engine.split, setting.model.is_moe, setting.cluster
    # The rule of placement works on columns; this is one row of them.
    tp, pp, dp, ep = (np.asarray(degree) for degree in (pool.tp, pool.pp, pool.dp, pool.ep))
    sizes = (np.asarray(size) for size in (pool.replicas, cluster.per_node, cluster.nodes))
    servers = placement.pool_servers(rules, is_moe, (tp, pp, dp, ep), *sizes)
    if not servers.nodes:
        message = placement.uneven_server_text(pool.tp, pool.pp, pool.dp, cluster.per_node)
        hint = f"{placement.UNEVEN_FIX.capitalize()}."
        raise NoAnswer(f"{message}.", field="candidate", hint=hint)
    return servers


def _pack_groups(
    sizes: Sequence[tuple[int, int]], per_node: int, nodes: int
) -> list[tuple[Place, ...]]:
    """Places of groups of (devices, nodes), in the order of ``sizes``.

    Groups over several nodes get empty ones; of the others the larger go first, each to the first
    node with room.
    """
    used = [0] * nodes
    places: dict[int, tuple[Place, ...]] = {}
    for n in sorted(range(len(sizes)), key=lambda n: (-sizes[n][1], -sizes[n][0])):
        devices, over = sizes[n]
        share = devices // over
        limit = 0 if over > 1 else per_node - share
        room = [node for node in range(nodes) if used[node] <= limit][:over]
        if len(room) < over:
            kinds = [(count, size) for (size, _), count in Counter(sizes).items()]
            message = placement.unpacked_servers_text(kinds, per_node, nodes)
            hint = f"{placement.UNPACKED_FIX.capitalize()}."
            raise NoAnswer(f"{message}.", field="candidate", hint=hint)
        places[n] = tuple(
            Place(node, tuple(range(used[node], used[node] + share))) for node in room
        )
        for node in room:
            used[node] = per_node if over > 1 else used[node] + share
    return [places[n] for n in range(len(sizes))]


Words = Callable[[Group, int], Sequence[str]]
Environment = Callable[[Group, int], dict[str, str]]


def _only_first(_: Group) -> bool:
    return False


def group_processes(
    groups: Sequence[Group],
    words: Words,
    env: Environment,
    *,
    first_port: int = 0,
    everywhere: Callable[[Group], bool] = _only_first,
) -> list[Process]:
    """One process per group and node; ``words`` and ``env`` are those of a node by its rank.

    Ports count up from ``first_port`` over the groups; a worker has its group's. ``everywhere``:
    whether all nodes of a group answer.
    """
    out: list[Process] = []
    counts: Counter[str] = Counter()
    for group in groups:
        name = f"{group.role}-{counts[group.role]}"
        counts[group.role] += 1
        for rank, place in enumerate(group.places):
            out.append(
                Process(
                    name=f"{name}-node{rank}" if rank else name,
                    argv=tuple(words(group, rank)),
                    env=env(group, rank),
                    port_offset=first_port + group.number,
                    devices=place.devices,
                    node=place.node,
                    role="worker" if rank and not everywhere(group) else group.role,
                    group=group.number,
                )
            )
    return out


def router_process(
    argv: Sequence[str], groups: Sequence[Group], env: dict[str, str] | None = None
) -> Process:
    """The process that requests go to where pools answer; it uses no device."""
    return Process("router", tuple(argv), env or {}, 0, (), 0, "router", len(groups))


def node_options(group: Group, rank: int) -> dict[str, object]:
    """Return what vLLM is told about the nodes that an engine is spread over."""
    place = {"master_addr": HEAD, "master_port": MASTER_PORT}
    return {"nnodes": group.nodes, "node_rank": rank, **place}


def group_url(group: Group, first_port: int = 1) -> str:
    return f"http://${{node{group.places[0].node}}}:${{port{first_port + group.number}}}"
