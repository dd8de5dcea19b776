"""The racks of a placed fleet: which part of which device has whose replica, period by period.

An answer says on which nodes replicas stand in the busiest period. Others have some of these
replicas, and those that only they have stand where there is room, the largest first.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import groupby, repeat
from math import ceil
from string import ascii_uppercase
from typing import Literal

from recipe_core.fleets.answer import FleetAnswer, Placement, PoolUse
from recipe_core.hardware.slices import list_slices
from recipe_core.views.fleets import RENTED, layout_text

# ``idle``: paid for, and nothing runs on it; ``unrented``: not rented in this period.
State = Literal["runs", "idle", "free", "unrented"]
# Free nodes of a pool that are looked at one by one, beside those that have something.
MOST_FREE = 64
# Nodes of a pool up to which each is drawn by itself.
MOST_SINGLE = 16


@dataclass(frozen=True, slots=True)
class Piece:
    """A device, the slice of one, or the part of one that a model has while others sleep.

    ``owner``: the model or job that has it; ``share``: of the device; ``goes_on``: whether it is of
    the same replica as the device before.
    """

    state: State
    owner: str = ""
    text: str = ""
    slice: str | None = None
    share: float = 1.0
    goes_on: bool = False


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
    """A node in the making; ``promised``: devices of replicas that are to stand on it."""

    number: int
    free: float
    promised: float = 0.0
    owners: Counter[str] = field(default_factory=Counter)
    cut: list[list[Piece]] = field(default_factory=list)
    running: list[Device] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Unit:
    """The part of a node that one replica has; ``node``: where the answer says that it stands."""

    size: float
    drawn: int
    node: int | None
    pieces: tuple[Piece, ...]
    """Of each device; several where models share it."""


def fill_racks(answer: FleetAnswer, use: PoolUse, period: str) -> Racks:
    """Return the nodes of a pool with what runs on each device in a period."""
    spots = {k: _Spot(k, float(use.per_node)) for k in _node_numbers(answer, use, period)}
    _cut_into_slices(spots, use)
    units = sorted(_units(answer, use, period), key=lambda unit: -unit.size)
    for unit in units:
        if unit.node in spots and unit.pieces[0].slice is None:
            spots[unit.node].promised += unit.size
    for unit in units:
        _stand(unit, spots)
    idle = use.paid.get(period, 0.0) - sum(use.per_node - spot.free for spot in spots.values())
    return Racks(use, tuple(_nodes(spots.values(), use, idle)), use.nodes - len(spots))


def letter_owners(answer: FleetAnswer) -> dict[str, tuple[str, int]]:
    """Return a letter, or two, and a number for the colour of each model and job that runs."""
    names = list(dict.fromkeys(name for name, _ in answer.placements()))
    letters = [*ascii_uppercase, *(a + b for a in ascii_uppercase for b in ascii_uppercase)]
    return {name: (letters[k % len(letters)], k) for k, name in enumerate(names)}


def _node_numbers(answer: FleetAnswer, use: PoolUse, period: str) -> list[int]:
    """Nodes that are drawn: those in use, those that are paid for, and some that are free."""
    placed = [placed for _, placed in answer.placements() if placed.pool == use.name]
    numbers = {number for part in placed for number in _stated_nodes(part)}
    if use.term not in RENTED:
        return sorted(numbers | set(range(min(use.nodes, MOST_FREE))))
    paid = {name: ceil(devices / use.per_node) for name, devices in use.paid.items()}
    if len(numbers) <= max(paid.values(), default=0):  # whole machines: the first are rented
        return list(range(min(paid.get(period, 0), use.nodes)))
    return sorted(numbers)


def _stated_nodes(placed: Placement) -> list[int]:
    """Nodes of its replicas, one of each node first: fewer replicas are spread as all of them."""
    turns = [
        (turn, int(share.node.rpartition("-")[2]))
        for share in placed.nodes
        for turn in range(share.replicas)
    ]
    return [node for _, node in sorted(turns)]


def _cut_into_slices(spots: Mapping[int, _Spot], use: PoolUse) -> None:
    """Cut devices of nodes as the answer does."""
    shares = {part.name: part.share for part in list_slices(use.device)} if use.cuts else {}
    for cut in use.cuts:
        names = [name for name, number in cut.counts.items() for _ in range(number)]
        pieces = [Piece("idle", "", f"{name}: free", name, shares[name]) for name in names]
        for node, count in cut.nodes.items():
            if spot := spots.get(int(node.rpartition("-")[2])):
                spot.free -= count
                spot.cut += [[*pieces] for _ in range(count)]


def _units(answer: FleetAnswer, use: PoolUse, period: str) -> Iterator[_Unit]:
    """Return what replicas take of nodes.

    The answer does not say which models that sleep share which device, where a node has several
    such groups; then each is drawn with all of their names.
    """
    sharing: dict[int, list[tuple[str, Placement]]] = defaultdict(list)
    devices = use.used.get(period, 0.0) - sum(cut.devices for cut in use.cuts)
    for name, placed in answer.placements():
        if placed.pool != use.name or not placed.replicas.get(period):
            continue
        if placed.shared:
            sharing[next(iter(_stated_nodes(placed)), 0)].append((name, placed))
            continue
        for unit in _units_of(name, placed, use.per_node, placed.replicas[period]):
            devices -= unit.size if placed.slice is None else 0.0
            yield unit
    devices -= sum(members[0][1].devices_each for members in sharing.values())
    for node, members in sorted(sharing.items(), key=lambda item: -len(item[1])):
        size = members[0][1].devices_each
        more = max(round(devices / size), 0) if len(members) > 3 else 0
        devices -= more * size
        names = [name for name, _ in members]
        text = f"{', '.join(names)}: they sleep and wake in turn"
        pieces = tuple(Piece("runs", name, text, share=1 / len(names)) for name in names)
        yield from [_Unit(size, max(round(size), 1), node, pieces)] * (1 + more)


def _units_of(name: str, placed: Placement, per_node: int, replicas: int) -> list[_Unit]:
    nodes = max(ceil(placed.devices_each / per_node), 1)
    size = placed.devices_each / nodes
    drawn = max(round(size), 1)
    if placed.nodes:  # of a node it may take more than it uses, so that others fit beside it
        size = placed.nodes[0].devices / placed.nodes[0].replicas
    over = f", a part of a replica on {nodes} nodes" if nodes > 1 else ""
    piece = Piece("runs", name, f"{name}: {layout_text(placed)}{over}", placed.slice)
    places = [*_stated_nodes(placed), *repeat(None, replicas * nodes)]
    return [_Unit(size, drawn, place, (piece,)) for place in places[: replicas * nodes]]


def _stand(unit: _Unit, spots: dict[int, _Spot]) -> None:
    """Put a replica where the answer says, else where fewest of its model are, in little room."""
    stated_spots, piece = [spots[unit.node]] if unit.node in spots else [], unit.pieces[0]
    if piece.slice is not None:
        _take_slice([*stated_spots, *spots.values()], piece)
        return
    for spot in stated_spots:
        spot.promised -= unit.size
    room = [spot for spot in stated_spots or spots.values() if spot.free >= unit.size - 1e-9]
    room = room or [spot for spot in spots.values() if spot.free >= unit.size - 1e-9]
    if not room:
        return
    # nodes whose replicas can all stay go first, then those with fewest of its model, the fullest
    spot = min(
        room,
        key=lambda spot: (
            spot.free - spot.promised < unit.size - 1e-9,
            spot.owners[piece.owner],
            spot.free,
            spot.number,
        ),
    )
    spot.free -= unit.size
    spot.owners[piece.owner] += 1
    following = tuple(replace(part, goes_on=True) for part in unit.pieces)
    spot.running += [unit.pieces, *[following] * (unit.drawn - 1)]


def _take_slice(spots: list[_Spot], piece: Piece) -> None:
    """Put a replica on the first free slice of its kind."""
    for device in (device for spot in spots for device in spot.cut):
        for k, part in enumerate(device):
            if not part.owner and part.slice == piece.slice:
                device[k] = replace(piece, share=part.share)
                return


def _nodes(spots: Iterable[_Spot], use: PoolUse, idle: float) -> Iterator[Node]:
    """Nodes rack by rack; in a large pool those that are filled alike are one."""
    filled, rest = [], UNRENTED if use.term in RENTED else FREE
    for spot in sorted(spots, key=lambda spot: (not (spot.running or spot.cut), spot.number)):
        devices: list[Device] = [*map(tuple, spot.cut), *spot.running]
        blocked = max(round(use.per_node - spot.free) - len(devices), 0)
        more = min(max(round(idle), 0), max(round(spot.free), 0))
        idle -= more
        devices += [(IDLE,)] * (blocked + more)
        devices += [(rest,)] * (use.per_node - len(devices))
        filled.append((spot.number % max(use.racks, 1), spot.number, tuple(devices)))
    filled.sort(key=lambda row: row[:2])
    single = len(filled) <= MOST_SINGLE
    for (rack, *_), rows in groupby(filled, key=lambda row: (row[0], row[1] if single else row[2])):
        numbers = [(number, devices) for _, number, devices in rows]
        first, last = (f"{use.name}-{number}" for number, _ in (numbers[0], numbers[-1]))
        yield Node(rack, first, last, len(numbers), numbers[0][1])
