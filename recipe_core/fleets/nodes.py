"""The nodes that replicas stand on: spread over racks and nodes, whole nodes last.

A picture of the busiest period and a check that what the program placed fits: the sizes of a pool's
replicas divide each other, so that filling the largest first leaves no rest.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from recipe_core.base.arrays import Int
from recipe_core.fleets.answer import NodeShare
from recipe_core.fleets.instance import Solution
from recipe_core.fleets.placing import FleetProblem

_ROUNDING = 1e-9


@dataclass(eq=False)
class _Node:
    """A node: devices (None) and slices by name that are free, and how many each owner has."""

    number: int
    rack: int
    room: Counter[str | None]
    owners: Counter[str] = field(default_factory=Counter)


@dataclass(eq=False)
class _Stand:
    """What stands on one node: a replica or a part of one, or a device that is cut.

    ``options``: whose replica it is, several of sleeping models. ``size``: of the node's devices or
    slices. ``opens``: slices of a device that is cut.
    """

    options: tuple[int, ...]
    owner: str
    slice: str | None
    size: float
    devices: float
    opens: Mapping[str, int] = field(default_factory=dict)
    node: _Node | None = None

    def fits(self, node: _Node) -> bool:
        return node.room[self.slice] >= self.size - _ROUNDING

    def move(self, node: _Node) -> None:
        for place, sign in ((self.node, -1), (node, 1)):
            if place is not None:
                place.owners[self.owner] += sign
                place.room[self.slice] -= sign * self.size  # type: ignore[assignment]
        self.node = node


def fill_nodes(
    problem: FleetProblem, solution: Solution, periods: int
) -> dict[int, list[NodeShare]]:
    """Return where the replicas of each option stand in the busiest period, spread by owner."""
    out: defaultdict[int, list[NodeShare]] = defaultdict(list)
    options = problem.instance.options
    for p, (pool, supply) in enumerate(zip(problem.pools, problem.instance.supplies, strict=True)):
        devices = [
            sum(o.devices * n for o, n in zip(options, counts, strict=True) if o.pool == p)
            for counts in solution.replicas[:, :periods].T.tolist()
        ]
        t = devices.index(max(devices))
        machines = int(solution.machines[p, t]) if supply.paid == "nodes" else 0
        nodes = [
            _Node(number, number % supply.racks, Counter({None: pool.per_node}))
            for number in range(machines or pool.pool.nodes)
        ]
        here: defaultdict[tuple[int, int, int], list[float]] = defaultdict(list)
        for stand in _place(_list_stands(problem, solution, p, solution.replicas[:, t]), nodes):
            if stand.node is not None:
                for k in stand.options:
                    here[k, stand.node.number, stand.node.rack].append(stand.devices)
        for (k, number, rack), taken in here.items():
            name = pool.pool.name
            out[k].append(NodeShare(f"{name}-{number}", f"{name}-r{rack}", len(taken), sum(taken)))
    return out


def _list_stands(problem: FleetProblem, solution: Solution, p: int, counts: Int) -> list[_Stand]:
    """What is to stand on a pool's nodes: the largest first, and slices when devices are cut."""
    per_node, supply = problem.pools[p].per_node, problem.instance.supplies[p]
    stands = [
        _Stand((), "", None, 1.0, 0.0, opens)
        for opens, number in zip(supply.cuts, solution.cuts[p], strict=True)
        for _ in range(int(number))
    ]
    stands += [
        _Stand(members, f"group {number}", None, size, float(size))
        for (where, size, number), members in solution.groups.items()
        if where == p
    ]
    for k, (option, choice) in enumerate(
        zip(problem.instance.options, problem.choices, strict=True)
    ):
        if option.pool != p or option.nap is not None:
            continue
        parts = max(int(-(-option.devices // per_node)), 1)
        devices = option.devices / parts
        size = 1.0 if option.slice else devices
        stands += [
            _Stand((k,), choice.owner, option.slice, size, devices)
            for _ in range(parts * int(counts[k]))
        ]
    return sorted(stands, key=lambda stand: (stand.slice is not None, -stand.size))


def _place(stands: list[_Stand], nodes: list[_Node]) -> list[_Stand]:
    """Let each stand on the node with the fewest of its owner, the fullest; then spread them."""
    for stand in stands:
        racks: Counter[int] = Counter()
        for node in nodes:
            racks[node.rack] += node.owners[stand.owner]
        fitting = [
            (node.owners[stand.owner], racks[node.rack], node.room[stand.slice], node.number)
            for node in nodes
            if stand.fits(node)
        ]
        if fitting:
            *_, number = min(fitting)
            stand.move(nodes[number])
            nodes[number].room.update(stand.opens)
    replicas = [stand for stand in stands if stand.node and stand.options]
    while sum(_spread(stand, replicas, nodes) for stand in replicas):
        pass  # the sum of squares of what nodes have of each owner falls, so that it ends
    return stands


def _spread(stand: _Stand, stands: Sequence[_Stand], nodes: Sequence[_Node]) -> bool:
    """Move a replica, or swap it with one alike, where that spreads owners over more nodes."""
    home, owner = stand.node, stand.owner
    assert home is not None  # noqa: S101 - only what has a node is spread
    fewer = [node for node in nodes if node.owners[owner] < home.owners[owner] - 1]
    for node in sorted(fewer, key=lambda node: node.owners[owner]):
        if stand.fits(node):
            stand.move(node)
            return True
        for beside in stands:
            if beside.node is node and _gains(stand, beside, home, node):
                stand.move(node)
                beside.move(home)
                return True
    return False


def _gains(stand: _Stand, beside: _Stand, home: _Node, node: _Node) -> bool:
    """Return whether two replicas of one size spread their owners more where they change places."""
    if (beside.size, beside.slice) != (stand.size, stand.slice) or beside.owner == stand.owner:
        return False
    gain = home.owners[stand.owner] - node.owners[stand.owner] - 1
    return gain + node.owners[beside.owner] - home.owners[beside.owner] - 1 > 0
