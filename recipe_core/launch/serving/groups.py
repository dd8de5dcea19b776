"""Which node and devices each part of a deployment gets: groups of ranks that are one engine each, packed into nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from recipe_core.base.errors import NoAnswer
from recipe_core.launch.process import Deployment, Role, Split
from recipe_core.space import placement


@dataclass(frozen=True, slots=True)
class Place:
    """A node, and the devices used in it."""

    node: int
    devices: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Part:
    """Which data-parallel ``rank`` of engine number ``of`` a server of its own is; rank 0 is on node ``head``."""

    rank: int
    of: int
    head: int


@dataclass(frozen=True, slots=True)
class Group:
    """One engine: its split, what it is for, and its place on each of its nodes.

    ``part``: where each data-parallel rank of an engine answers by itself; the split is then that of them all.
    """

    number: int
    role: Role
    split: Split
    places: tuple[Place, ...]
    part: Part | None = None

    @property
    def nodes(self) -> int:
        """Nodes that it spans."""
        return len(self.places)


def groups(deployment: Deployment) -> list[Group]:
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
    wanted: list[tuple[Role, Split]] = []
    sizes: list[tuple[int, int]] = []
    for role, pool in pools:
        found = _servers(deployment, pool)
        each = replace(pool, dp=int(found.devices) // (pool.tp * pool.pp), replicas=1)
        wanted += [(role, each)] * int(found.count)
        sizes += [(int(found.devices), int(found.nodes))] * int(found.count)
    places = _packed(sizes, deployment.setting.cluster.per_node, deployment.setting.cluster.nodes)
    return [Group(n, role, split, places[n]) for n, (role, split) in enumerate(wanted)]


def by_rank(placed: Sequence[Group]) -> list[Group]:
    """Every data-parallel rank as a group of its own, on its part of the places; ranks that share no experts are independent.

    Raises:
        NoAnswer: where a rank spans nodes.
    """
    out: list[Group] = []
    for group in placed:
        size, shared = group.split.tp * group.split.pp, group.split.ep > 1 and group.split.dp > 1
        each = ranks_of_node(group, "data_parallel_external_lb")
        spots = [
            Place(at.node, at.devices[n * size : (n + 1) * size])
            for at in group.places
            for n in range(each)
        ]
        head = spots[0].node
        for rank, spot in enumerate(spots if group.split.dp > 1 else [None]):
            split = group.split if shared else replace(group.split, dp=1)
            part = Part(rank, group.number, head) if shared else None
            out.append(Group(len(out), group.role, split, (spot,) if spot else group.places, part))
    return out


def ranks_of_node(group: Group, option: str) -> int:
    """Data-parallel ranks on each node of a group; raises NoAnswer where one spans nodes, with the option that needs it whole."""
    size, each = group.split.tp * group.split.pp, len(group.places[0].devices)
    if group.split.dp > 1 and each % size:
        said = f"a data-parallel rank of tp {group.split.tp} × pp {group.split.pp} = {size} devices spans nodes, and answers nowhere by itself"
        raise NoAnswer(
            f"{said}.",
            field=f"options.engine_options.{option}",
            hint="Leave the option out, or use a smaller tp or pp.",
        )
    return max(each // size, 1)


def _servers(deployment: Deployment, pool: Split) -> placement.Servers:
    """The servers of one pool, each on as few nodes as it fits."""
    setting = deployment.setting
    values = (
        pool.tp,
        pool.pp,
        pool.dp,
        pool.ep,
        pool.replicas,
        setting.cluster.per_node,
        setting.cluster.nodes,
    )
    tp, pp, dp, ep, copies, per_node, nodes = (np.asarray(value) for value in values)
    found = placement.servers(
        setting.engine.split, setting.model.is_moe, (tp, pp, dp, ep), copies, per_node, nodes
    )
    if not found.nodes:
        said = placement.uneven(pool.tp, pool.pp, pool.dp, setting.cluster.per_node)
        raise NoAnswer(f"{said}.", field="candidate", hint=f"{placement.UNEVEN_FIX.capitalize()}.")
    return found


def _packed(sizes: Sequence[tuple[int, int]], per_node: int, nodes: int) -> list[tuple[Place, ...]]:
    """Places of groups of (devices, nodes): those over several nodes get empty ones, the larger of the others the first node with room."""
    used = [0] * nodes
    places: dict[int, tuple[Place, ...]] = {}
    for n in sorted(range(len(sizes)), key=lambda n: (-sizes[n][1], -sizes[n][0])):
        devices, over = sizes[n]
        each = devices // over
        room = [
            k for k in range(nodes) if (used[k] == 0 if over > 1 else used[k] + each <= per_node)
        ][:over]
        if len(room) < over:
            kinds = [(count, of) for (of, _), count in Counter(sizes).items()]
            raise NoAnswer(
                f"{placement.unpacked(kinds, per_node, nodes)}.",
                field="candidate",
                hint=f"{placement.UNPACKED_FIX.capitalize()}.",
            )
        places[n] = tuple(Place(k, tuple(range(used[k], used[k] + each))) for k in room)
        for k in room:
            used[k] = per_node if over > 1 else used[k] + each
    return [places[n] for n in range(len(sizes))]
