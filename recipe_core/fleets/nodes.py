"""The nodes that replicas stand on: spread over racks and nodes, whole nodes last.

A picture of the busiest period and a check that what the program placed fits: the sizes of a pool's
replicas divide each other, so that filling the largest first leaves no rest.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from recipe_core.base.arrays import Int
from recipe_core.fleets.answer import NodeShare
from recipe_core.fleets.instance import Solution
from recipe_core.fleets.placing import FleetProblem

_ROUNDING = 1e-9


@dataclass
class _Node:
    """A node: devices (None) and slices by name that are free, and how many each owner has."""

    number: int
    rack: int
    room: Counter[str | None]
    owners: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True)
class _Stand:
    """A stand on one node: a replica or a part of one, or a device that is cut.

    ``options``: whose replica it is, several of sleeping models. ``size``: of the node's devices or
    slices. ``opens``: slices of a device that is cut.
    """

    options: tuple[int, ...]
    owner: str
    slice: str | None
    size: float
    devices: float
    opens: Mapping[str, int] = field(default_factory=dict)


# Devices that a node has cut in one way, by the number of their pool, the way and the node's name.
Cuts = Mapping[tuple[int, int], Mapping[str, int]]


def fill_nodes(
    problem: FleetProblem, solution: Solution, periods: int
) -> tuple[Mapping[int, list[NodeShare]], Cuts]:
    """Return where the replicas of each option stand in the busiest period, spread by owner.

    And the nodes whose devices are cut, by pool and number of the cut.
    """
    out: defaultdict[int, list[NodeShare]] = defaultdict(list)
    cuts: defaultdict[tuple[int, int], Counter[str]] = defaultdict(Counter)
    options = problem.instance.options
    for p, (pool, supply) in enumerate(zip(problem.pools, problem.instance.supplies, strict=True)):
        devices = [
            sum(o.devices * n for o, n in zip(options, counts, strict=True) if o.pool == p)
            for counts in solution.replicas[:, :periods].T.tolist()
        ]
        t = devices.index(max(devices))
        stands = _list_stands(problem, solution, p, solution.replicas[:, t])
        machines = int(solution.machines[p, t]) if supply.paid == "nodes" else 0
        fills = []
        for packs in (True, False):
            nodes = [
                _Node(number, number % supply.racks, Counter({None: pool.per_node}))
                for number in range(machines or pool.pool.nodes)
            ]
            placed = _fill(stands, nodes, packs=packs)
            crowds = sum(count**2 for node in nodes for count in node.owners.values())
            fills.append((crowds, not packs, placed))
        footprints: defaultdict[tuple[int, int, int], list[float]] = defaultdict(list)
        for stand, node in min(fills)[-1]:
            if stand.opens:
                cuts[p, supply.cuts.index(stand.opens)][f"{pool.pool.name}-{node.number}"] += 1
            for k in stand.options:
                footprints[k, node.number, node.rack].append(stand.devices)
        for (k, number, rack), devices in footprints.items():
            name = pool.pool.name
            out[k].append(
                NodeShare(f"{name}-{number}", f"{name}-r{rack}", len(devices), sum(devices))
            )
    return out, cuts


def _list_stands(problem: FleetProblem, solution: Solution, p: int, counts: Int) -> list[_Stand]:
    """Stands of a pool's nodes: the largest first, and slices when devices are cut."""
    per_node, supply = problem.pools[p].per_node, problem.instance.supplies[p]
    stands = [
        (1.0, int(number), _Stand((), "", None, 1.0, 0.0, opens))
        for opens, number in zip(supply.cuts, solution.cuts[p], strict=True)
    ]
    stands += [
        (size, 1, _Stand(members, f"group {number}", None, float(size), float(size)))
        for (where, size, number), members in solution.groups.items()
        if where == p
    ]
    for k, option in enumerate(problem.instance.options):
        if option.pool == p and option.nap is None:
            parts = max(int(-(-option.devices // per_node)), 1)
            devices = option.devices / parts
            owner, size = problem.choices[k].owner, 1.0 if option.slice else devices
            stand = _Stand((k,), owner, option.slice, size, devices)
            stands.append((0.0 if option.slice else size, parts * int(counts[k]), stand))
    stands.sort(key=lambda row: row[:2], reverse=True)
    return [stand for _, number, stand in stands for _ in range(number)]


def _fill(
    stands: Iterable[_Stand], nodes: list[_Node], *, packs: bool
) -> list[tuple[_Stand, _Node]]:
    """Let each stand on a node with the fewest of its owner: the fullest, or the emptiest.

    The fullest leave whole nodes free. The emptiest spread replicas of one size as well as can be
    (D. Gale 1957, "A theorem on flows in networks", Pacific Journal of Mathematics 7).
    """
    placed = []
    for stand in stands:
        racks: Counter[int] = Counter()
        for node in nodes:
            racks[node.rack] += node.owners[stand.owner]
        fitting = []
        for node in nodes:
            if (room := node.room[stand.slice]) >= stand.size - _ROUNDING:
                order = (racks[node.rack], room) if packs else (-room, racks[node.rack])
                fitting.append((node.owners[stand.owner], *order, node.number))
        if fitting:
            node = nodes[min(fitting)[-1]]
            node.room[stand.slice] -= stand.size  # type: ignore[assignment]
            node.owners[stand.owner] += 1
            node.room.update(stand.opens)
            placed.append((stand, node))
    return placed
