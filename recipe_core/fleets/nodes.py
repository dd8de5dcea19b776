"""The nodes that replicas stand on: spread over racks and nodes, whole nodes last.

A picture of the busiest period and a check that what the program placed fits: the sizes of a pool's
replicas divide each other, so that filling the largest first leaves no rest.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from recipe_core.base.arrays import Int
from recipe_core.fleets.answer import NodeShare
from recipe_core.fleets.instance import Solution
from recipe_core.fleets.placing import FleetProblem


@dataclass
class _Node:
    """A node with the devices that are free, and how many replicas of each owner it has."""

    number: int
    rack: int
    free: float
    owners: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    slices: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))


@dataclass
class _Stand:
    """A replica on whole devices of one node."""

    option: int
    owner: str
    devices: float
    node: _Node


def fill_nodes(
    problem: FleetProblem, solution: Solution, periods: int
) -> dict[int, list[NodeShare]]:
    """Return where the replicas of each option stand in the busiest period, spread by owner."""
    out: dict[int, list[NodeShare]] = {}
    instance = problem.instance
    for p, pool in enumerate(problem.pools):
        options = [k for k, option in enumerate(instance.options) if option.pool == p]
        counts = solution.replicas[:, :periods]
        if not options or not counts[options].any():
            continue
        devices = [
            sum(instance.options[k].devices * counts[k, t] for k in options) for t in range(periods)
        ]
        t = max(range(periods), key=devices.__getitem__)
        racks = instance.supplies[p].racks
        nodes = [_Node(k, k % racks, float(pool.per_node)) for k in range(pool.pool.nodes)]
        if (machines := int(solution.machines[p, t])) and instance.supplies[p].paid == "nodes":
            nodes = nodes[:machines]
        _cut_devices(nodes, instance.supplies[p].cuts, solution.cuts[p])
        for k, node, devices_here in _stand_replicas(problem, options, counts[:, t], nodes):
            _add(out.setdefault(k, []), pool.pool.name, node, devices_here)
        for (where, size, _), members in solution.groups.items():
            if where == p:
                for node, devices_here in _place(nodes, size, None, "", pool.per_node):
                    for k in members:
                        _add(out.setdefault(k, []), pool.pool.name, node, devices_here)
    return out


def _stand_replicas(
    problem: FleetProblem, options: list[int], counts: Int, nodes: list[_Node]
) -> Iterator[tuple[int, _Node, float]]:
    """Every replica of a pool's options that stands alone: its option, a node, devices there."""
    stands: list[_Stand] = []
    for k in sorted(options, key=lambda k: -problem.instance.options[k].devices):
        option, owner = problem.instance.options[k], problem.choices[k].owner
        per_node = problem.pools[option.pool].per_node
        for _ in range(int(counts[k]) if option.nap is None else 0):
            parts = _place(nodes, option.devices, option.slice, owner, per_node)
            if option.slice is None and len(parts) == 1:
                stands.append(_Stand(k, owner, option.devices, parts[0][0]))
                continue
            yield from ((k, node, devices_here) for node, devices_here in parts)
    _spread_evenly(stands, nodes)
    yield from ((stand.option, stand.node, stand.devices) for stand in stands)


def _spread_evenly(stands: list[_Stand], nodes: list[_Node]) -> None:
    """Move replicas, or swap those of one size, while that spreads their owners over more nodes.

    Each step makes the sum of squares of what nodes have of each owner smaller, so that it ends.
    """
    moved = True
    while moved:
        moved = False
        for stand in stands:
            crowded = stand.node
            if crowded.owners[stand.owner] < 2:
                continue
            fewer = [n for n in nodes if n.owners[stand.owner] < crowded.owners[stand.owner] - 1]
            for node in sorted(fewer, key=lambda node: node.owners[stand.owner]):
                if node.free >= stand.devices - 1e-9:
                    _move(stand, node)
                    moved = True
                    break
                swap = next((o for o in stands if o.node is node and _gains(stand, o)), None)
                if swap is not None:
                    _move(stand, node)
                    _move(swap, crowded)
                    moved = True
                    break


def _gains(stand: _Stand, swap: _Stand) -> bool:
    """Return whether two replicas of one size spread their owners more where they change places."""
    if swap.devices != stand.devices or swap.owner == stand.owner:
        return False
    own_node, swap_node = stand.node.owners, swap.node.owners
    gain = own_node[stand.owner] - swap_node[stand.owner] - 1
    return gain + swap_node[swap.owner] - own_node[swap.owner] - 1 > 0


def _move(stand: _Stand, node: _Node) -> None:
    """Let a replica stand on another node."""
    for place, sign in ((stand.node, -1), (node, 1)):
        place.owners[stand.owner] += sign
        place.free -= sign * stand.devices
    stand.node = node


def _cut_devices(nodes: list[_Node], cuts: object, numbers: object) -> None:
    """Cut devices, evenly over nodes."""
    for counts, number in zip(cuts, numbers, strict=True):  # type: ignore[call-overload]
        for _ in range(int(number)):
            node = max(nodes, key=lambda node: node.free)
            node.free -= 1.0
            for name, n in counts.items():
                node.slices[name] += n


def _place(
    nodes: list[_Node], devices: float, part: str | None, owner: str, per_node: int
) -> list[tuple[_Node, float]]:
    """Take the devices of one replica: on the node with the fewest of its owner, the fullest."""
    if part is not None:
        node = min(
            (node for node in nodes if node.slices[part] > 0),
            key=lambda node: (node.owners[owner], node.number),
        )
        node.slices[part] -= 1
        node.owners[owner] += 1
        return [(node, devices)]
    node_count = max(int(-(-devices // per_node)), 1)
    node_devices = devices / node_count
    racks: defaultdict[int, int] = defaultdict(int)
    for node in nodes:
        racks[node.rack] += node.owners[owner]
    free = sorted(
        (node for node in nodes if node.free >= node_devices - 1e-9),
        key=lambda node: (node.owners[owner], racks[node.rack], node.free, node.number),
    )
    out = []
    for node in free[:node_count]:
        node.free -= node_devices
        node.owners[owner] += 1
        out.append((node, node_devices))
    return out


def _add(shares: list[NodeShare], pool: str, node: _Node, devices: float) -> None:
    """Add a replica to a node's share, or a new share."""
    name = f"{pool}-{node.number}"
    for k, share in enumerate(shares):
        if share.node == name:
            shares[k] = NodeShare(name, share.rack, share.replicas + 1, share.devices + devices)
            return
    shares.append(NodeShare(name, f"{pool}-r{node.rack}", 1, devices))
