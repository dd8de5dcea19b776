"""The nodes that replicas stand on: spread over racks and nodes, whole nodes last.

A picture of the busiest period and a check that what the program placed fits: the sizes of a pool's
replicas divide each other, so that filling the largest first leaves no rest.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

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
        for k in sorted(options, key=lambda k: -instance.options[k].devices):
            option, owner = instance.options[k], problem.choices[k].owner
            if option.nap is not None:
                continue
            for _ in range(int(counts[k, t])):
                for node, devices_here in _place(
                    nodes, option.devices, option.slice, owner, pool.per_node
                ):
                    _add(out.setdefault(k, []), pool.pool.name, node, devices_here)
        for (where, size, _), members in solution.groups.items():
            if where == p:
                for node, devices_here in _place(nodes, size, None, "", pool.per_node):
                    for k in members:
                        _add(out.setdefault(k, []), pool.pool.name, node, devices_here)
    return out


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
