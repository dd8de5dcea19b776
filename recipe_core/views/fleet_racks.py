"""The racks of a placed fleet: which part of which device has whose replica, period by period.

An answer says on which nodes replicas stand in the busiest period. Others have some of these
replicas, and those that only they have stand where there is room, the largest first.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from string import ascii_uppercase
from typing import Any, Literal

from recipe_core.fleets.answer import FleetAnswer, Placement, PoolUse
from recipe_core.views.fleets import layout_text

# ``idle``: paid for, and nothing runs on it; ``unrented``: not rented in this period.
State = Literal["runs", "idle", "free", "unrented"]
# Free nodes of a pool that are looked at one by one, beside those that have something.
MOST_FREE = 64
# Nodes of a pool up to which each is drawn by itself.
MOST_SINGLE = 16


@dataclass(frozen=True, slots=True)
class Piece:
    """A device, or the part of one that is a slice."""

    state: State
    owners: tuple[str, ...] = ()
    """Models and jobs that have it; several where they share it by sleeping."""
    text: str = ""
    slice: str | None = None
    goes_on: bool = False
    """Whether it is of the same replica as the device before."""


Device = tuple[Piece, ...]
IDLE = Piece("idle", text="paid for, and idle")
FREE = Piece("free", text="free")
UNRENTED = Piece("unrented", text="not rented")


@dataclass(frozen=True, slots=True)
class Node:
    """Nodes of a rack that are filled alike: the first and last name, and how many they are."""

    rack: int
    name: str
    last: str
    count: int
    devices: tuple[Device, ...]


@dataclass(frozen=True, slots=True)
class Racks:
    """A pool in one period, with nodes that are not drawn: they are free, or not rented."""

    use: PoolUse
    nodes: tuple[Node, ...]
    undrawn: int


@dataclass
class _Spot:
    """A node in the making."""

    number: int
    free: float
    promised: float = 0.0
    """Devices of it that replicas have by the answer and do not stand on yet."""
    owners: Counter[tuple[str, ...]] = field(default_factory=Counter)
    replicas: list[tuple[Piece, ...]] = field(default_factory=list)
    cut: list[list[Piece]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Unit:
    """The part of a node that one replica has; ``node``: where the answer says that it stands."""

    size: float
    drawn: int
    node: int | None
    piece: Piece


def fill_racks(answer: FleetAnswer, use: PoolUse, period: str) -> Racks:
    """Return the nodes of a pool with what runs on each device in a period."""
    runs = [
        (name, placed)
        for name, placed in answer.placements()
        if placed.pool == use.name and placed.replicas.get(period, 0) > 0
    ]
    spots = {k: _Spot(k, float(use.per_node)) for k in _node_numbers(answer, use, period)}
    _cut(spots.values(), use)
    units = _whole_units(runs, use, period)
    for unit in units:
        if unit.node in spots:
            spots[unit.node].promised += unit.size
    for unit in units:
        _stand(unit, spots)
    for name, placed in runs:
        if placed.slice is not None:
            _fill_slices(spots, name, placed, placed.replicas[period])
    idle = use.paid.get(period, 0.0) - sum(use.per_node - spot.free for spot in spots.values())
    nodes = tuple(_nodes(spots.values(), use, idle))
    return Racks(use, nodes, use.nodes - len(spots))


def letter_owners(answer: FleetAnswer) -> dict[str, tuple[str, int]]:
    """Return a letter, or two, and a number for the colour of each model and job that runs."""
    names = list(dict.fromkeys(name for name, _ in answer.placements()))
    letters = [*ascii_uppercase, *(a + b for a in ascii_uppercase for b in ascii_uppercase)]
    return {name: (letters[k % len(letters)], k) for k, name in enumerate(names)}


def _node_numbers(answer: FleetAnswer, use: PoolUse, period: str) -> list[int]:
    """Nodes that are drawn: those in use, those that are paid for, and some that are free."""
    numbers = {
        _number(share.node)
        for _, placed in answer.placements()
        if placed.pool == use.name
        for share in placed.nodes
    }
    if use.term not in ("on-demand", "spot"):
        return sorted(numbers | set(range(min(use.nodes, MOST_FREE))))
    paid = {name: -int(-value // use.per_node) for name, value in use.paid.items()}
    if len(numbers) <= max(paid.values(), default=0):  # whole machines: the first are rented
        return list(range(min(paid.get(period, 0), use.nodes)))
    return sorted(numbers)


def _number(node: str) -> int:
    return int(node.rpartition("-")[2])


def _cut(spots: Iterable[_Spot], use: PoolUse) -> None:
    """Cut devices, evenly over nodes, as the answer does."""
    listed = list(spots)
    for cut in use.cuts:
        for _ in range(cut.devices if listed else 0):
            spot = max(listed, key=lambda spot: spot.free)
            spot.free -= 1.0
            slices = [name for name, number in cut.counts.items() for _ in range(number)]
            spot.cut.append([Piece("idle", slice=name, text=f"{name}: free") for name in slices])


def _whole_units(runs: list[tuple[str, Placement]], use: PoolUse, period: str) -> list[_Unit]:
    """Return what replicas on whole devices take, the largest first."""
    units = []
    sharing: dict[int, list[tuple[str, Placement]]] = defaultdict(list)
    for name, placed in runs:
        if placed.shared:
            sharing[_number(placed.nodes[0].node) if placed.nodes else 0].append((name, placed))
        elif placed.slice is None:
            units += _units_of(name, placed, use, placed.replicas[period])
    units += _shared_units(sharing, use.used.get(period, 0.0) - sum(unit.size for unit in units))
    return sorted(units, key=lambda unit: -unit.size)


def _units_of(name: str, placed: Placement, use: PoolUse, replicas: int) -> list[_Unit]:
    standing = _stated_places(placed)
    nodes = max(-int(-placed.devices_each // use.per_node), 1)
    drawn = max(round(placed.devices_each / nodes), 1)
    shares = [share.devices / share.replicas for share in placed.nodes]
    size = shares[0] if shares else placed.devices_each / nodes
    places: list[int | None] = [*standing]
    places += [None] * (replicas * nodes - len(places))
    over = f", a part of a replica on {nodes} nodes" if nodes > 1 else ""
    piece = Piece("runs", (name,), f"{name}: {layout_text(placed)}{over}")
    return [_Unit(size, drawn, place, piece) for place in places[: replicas * nodes]]


def _stated_places(placed: Placement) -> list[int]:
    """Nodes of its replicas, one of each node first: fewer replicas are spread as all of them."""
    turns = [
        (turn, _number(share.node)) for share in placed.nodes for turn in range(share.replicas)
    ]
    return [node for _, node in sorted(turns)]


def _shared_units(
    sharing: dict[int, list[tuple[str, Placement]]], devices: float
) -> Iterator[_Unit]:
    """Return what models that sleep share: those of a node that have devices of it together.

    The answer does not say which of them share which, where a node has several such groups; then
    each is drawn with all of their names.
    """
    rest = devices - sum(placed[0][1].devices_each for placed in sharing.values())
    for node, members in sorted(sharing.items(), key=lambda item: -len(item[1])):
        size = members[0][1].devices_each
        groups = 1 + (max(round(rest / size), 0) if len(members) > 3 else 0)
        rest -= (groups - 1) * size
        names = tuple(name for name, _ in members)
        text = f"{', '.join(names)}: they sleep and wake in turn"
        for _ in range(groups):
            yield _Unit(size, max(round(size), 1), node, Piece("runs", names, text))


def _stand(unit: _Unit, spots: dict[int, _Spot]) -> None:
    """Put a replica where the answer says, else where fewest of its model are, in little room."""
    spot = spots.get(unit.node) if unit.node is not None else None
    if spot is not None:
        spot.promised -= unit.size
    if spot is None or spot.free < unit.size - 1e-9:
        room = [spot for spot in spots.values() if spot.free >= unit.size - 1e-9]
        if not room:
            return
        spot = min(room, key=lambda spot: _order(spot, unit))
    piece = unit.piece
    spot.free -= unit.size
    spot.owners[piece.owners] += 1
    following = Piece(piece.state, piece.owners, piece.text, goes_on=True)
    spot.replicas.append((piece, *[following] * (unit.drawn - 1)))


def _order(spot: _Spot, unit: _Unit) -> tuple[bool, int, float, int]:
    """Nodes whose replicas can all stay first, then those with fewest of its model, the fullest."""
    crowds_out = spot.free - spot.promised < unit.size - 1e-9
    return (crowds_out, spot.owners[unit.piece.owners], spot.free, spot.number)


def _fill_slices(spots: dict[int, _Spot], name: str, placed: Placement, count: int) -> None:
    """Put replicas on free slices of their kind, those of the stated nodes first."""
    places = _stated_places(placed)
    text = f"{name}: {layout_text(placed)}"
    for k in range(count):
        first = [spots[places[k]]] if k < len(places) and places[k] in spots else []
        _take_slice([*first, *spots.values()], Piece("runs", (name,), text, placed.slice))


def _take_slice(spots: list[_Spot], piece: Piece) -> None:
    for spot in spots:
        for device in spot.cut:
            for k, free in enumerate(device):
                if not free.owners and free.slice == piece.slice:
                    device[k] = piece
                    return


def _nodes(spots: Iterable[_Spot], use: PoolUse, idle: float) -> Iterator[Node]:
    """Nodes rack by rack; in a large pool those that are filled alike are one."""
    filled, is_rented = [], use.term in ("on-demand", "spot")
    for spot in sorted(spots, key=lambda spot: (not (spot.replicas or spot.cut), spot.number)):
        devices: list[Device] = [tuple(device) for device in spot.cut]
        devices += [(piece,) for unit in spot.replicas for piece in unit]
        # a replica may take more of a node than it uses, so that others still fit beside it
        blocked = max(round(use.per_node - spot.free) - len(devices), 0)
        more = min(max(round(idle), 0), max(round(spot.free), 0))
        idle -= more
        devices += [(IDLE,)] * (blocked + more)
        devices += [(UNRENTED if is_rented else FREE,)] * (use.per_node - len(devices))
        filled.append((spot.number % max(use.racks, 1), spot.number, tuple(devices)))
    filled.sort(key=lambda row: row[:2])
    single = len(filled) <= MOST_SINGLE

    def alike(row: tuple[int, int, tuple[Device, ...]]) -> Any:
        return (row[0], row[1] if single else row[2])

    for _, rows in groupby(filled, key=alike):
        group = list(rows)
        first, last = (f"{use.name}-{row[1]}" for row in (group[0], group[-1]))
        yield Node(group[0][0], first, last, len(group), group[0][2])
