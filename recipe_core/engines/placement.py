"""Which node and devices each part of a deployment gets: groups of ranks that are one engine each, packed into nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from recipe_core.engines.deployment import Deployment, Role, Split
from recipe_core.errors import NoAnswer

Spans = Callable[[Split, int], bool]


@dataclass(frozen=True, slots=True)
class Place:
    """A node, and the devices used in it."""

    node: int
    devices: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Group:
    """One engine: its split, what it is for, and its place on each of its nodes."""

    number: int
    role: Role
    split: Split
    places: tuple[Place, ...]

    @property
    def nodes(self) -> int:
        """Nodes that it spans."""
        return len(self.places)


def evenly(split: Split, nodes: int) -> bool:
    """Whether ranks divide over nodes so that each has whole replicas, or each replica whole nodes."""
    return split.devices % nodes == 0 and (split.dp % nodes == 0 or nodes % split.dp == 0)


def one_node(_: Split, nodes: int) -> bool:
    """Engines that stay in a node."""
    return nodes == 1


def groups(deployment: Deployment, *, apart: Callable[[Split], bool], spans: Spans = evenly) -> list[Group]:
    """Every engine of a deployment, prefill pools first.

    Args:
        deployment: what to place.
        apart: whether the replicas (dp) of a split are engines of their own, rather than one engine that balances among them.
        spans: whether an engine with a split can run over so many nodes.

    Raises:
        NoAnswer: where the groups do not pack into the nodes.
    """
    candidate = deployment.candidate
    pools: list[tuple[Role, Split]] = [("server" if candidate.prefill is None else "decode", candidate.split)]
    if candidate.prefill is not None:
        pools.insert(0, ("prefill", candidate.prefill))
    wanted: list[tuple[Role, Split]] = []
    for role, pool in pools:
        own = apart(pool) and pool.dp > 1
        each = replace(pool, dp=1 if own else pool.dp, replicas=1)
        wanted += [(role, each)] * (pool.replicas * (pool.dp if own else 1))
    cluster = deployment.setting.cluster
    sizes = [(split.devices, _nodes(split, cluster.per_node, cluster.nodes, spans)) for _, split in wanted]
    places = _packed(sizes, cluster.per_node, cluster.nodes)
    return [Group(n, role, split, places[n]) for n, (role, split) in enumerate(wanted)]


def _nodes(split: Split, per_node: int, there: int, spans: Spans) -> int:
    """The fewest nodes that a group fits."""
    found = next((n for n in range(-(-split.devices // per_node), there + 1) if spans(split, n)), None)
    if found is None:
        raise NoAnswer(
            f"tp {split.tp} × pp {split.pp} × dp {split.dp} = {split.devices} devices do not divide evenly over nodes of {per_node} here.",
            field="candidate",
            hint="Choose degrees whose product fits a node, or fills whole nodes evenly.",
        )
    return found


def _packed(sizes: Sequence[tuple[int, int]], per_node: int, nodes: int) -> list[tuple[Place, ...]]:
    """Places of groups of (devices, nodes): those over several nodes get empty ones, the others the first node with room."""
    used = [0] * nodes
    places: dict[int, tuple[Place, ...]] = {}
    for n in sorted(range(len(sizes)), key=lambda n: -sizes[n][1]):
        devices, over = sizes[n]
        each = devices // over
        room = [k for k in range(nodes) if (used[k] == 0 if over > 1 else used[k] + each <= per_node)][:over]
        if len(room) < over:
            raise NoAnswer(
                f"{len(sizes)} engines of {', '.join(str(size) for size, _ in sizes[:8])} devices do not pack into "
                f"{nodes} nodes of {per_node}.",
                field="candidate",
                hint="Use fewer replicas, or degrees that divide a node.",
            )
        places[n] = tuple(Place(k, tuple(range(used[k], used[k] + each))) for k in room)
        for k in room:
            used[k] = per_node if over > 1 else used[k] + each
    return [places[n] for n in range(len(sizes))]
