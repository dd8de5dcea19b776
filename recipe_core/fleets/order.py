"""The order in which replicas start and stop, by a search over how many of each run.

A replica that starts has its devices before it serves; one that drains has them until it has ended.
A search looks for the fewest moves, with temporary replicas where needed ones have no order.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any

# Moves that a search tries, and numbers of replicas that it may keep: a small fleet has fewer, a
# large one is not searched whole.
MAX_TRIES, _MAX_NUMBERS = 100_000, 5_000_000
_TRIES_WITH_MORE = 2_000
_EPSILON = 1e-9
Counts = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Spot:
    """A way to run a replica of a model: in one pool, on whole devices or a slice.

    Two are the same where one launch serves for both, whatever they are said to hold.
    """

    model: str
    pool: str
    layout: str
    slice: str | None
    capacity: float = field(compare=False)
    """Load that a replica holds within the model's limits."""
    devices: float = field(compare=False)
    """Devices of a replica; of a slice its part of one."""
    launch: str = ""
    """Its layout with all that is launched, as one text."""
    request: Mapping[str, Any] = field(default_factory=dict, compare=False)
    """A plan's request of a replica, where one is known."""


class Board:
    """Spots with how many replicas run on each today and in the end, and what bounds them.

    ``devices``: of each pool, that serving may take; ``loads``: of each model. ``floors``: what of
    them is held at every moment: all, or what today and the end hold.
    """

    def __init__(
        self,
        spots: Sequence[Spot],
        first: Sequence[int],
        last: Sequence[int],
        devices: Mapping[str, float],
        loads: Mapping[str, float],
    ) -> None:
        self.spots, self.first, self.last = tuple(spots), tuple(first), tuple(last)
        self._members: dict[tuple[str, str], list[int]] = defaultdict(list)
        for k, spot in enumerate(spots):
            self._members["pool", spot.pool].append(k)
            self._members["model", spot.model].append(k)
        self.floors = {}
        for model in dict.fromkeys(spot.model for spot in spots):
            ends = (self.capacity(model, end) for end in (self.first, self.last))
            self.floors[model] = min(loads.get(model, 0.0), *ends)
        self.devices = {}
        # today fits, whatever an inventory says
        for pool in dict.fromkeys(spot.pool for spot in spots):
            parts = self._parts(pool, self.first)
            packed = parts.pop(None, 0.0) + math.ceil(sum(parts.values()) - _EPSILON)
            self.devices[pool] = max(devices.get(pool, 0.0), packed)

    def with_more(self, more: Mapping[str, float]) -> Board:
        """Return the same with more devices in pools."""
        devices = {pool: count + more.get(pool, 0) for pool, count in self.devices.items()}
        return Board(self.spots, self.first, self.last, devices, self.floors)

    def capacity(self, model: str, counts: Counts) -> float:
        """Return the load that what serves of a model holds."""
        return sum(self.spots[k].capacity * counts[k] for k in self._members["model", model])

    def _parts(self, pool: str, counts: Counts) -> dict[str | None, float]:
        """Devices of a pool in use: whole ones (None), and parts of them by slice."""
        parts: dict[str | None, float] = defaultdict(float)
        for k in self._members["pool", pool]:
            if counts[k]:
                parts[self.spots[k].slice] += counts[k] * self.spots[k].devices
        return parts

    def cut(self, pool: str, counts: Counts) -> int:
        """Return how many devices of a pool are cut: replicas fill those of a slice one by one.

        As few slices as today, or as in the end, are on no more devices than then.
        """
        parts = self._parts(pool, counts)
        parts.pop(None, None)
        needed = sum(math.ceil(part - _EPSILON) for part in parts.values())
        for end in (self.first, self.last) if needed else ():
            of_end = self._parts(pool, end)
            if all(part <= of_end.get(name, 0.0) + 1e-6 for name, part in parts.items()):
                not_whole = math.floor(self.devices[pool] - of_end.get(None, 0.0) + _EPSILON)
                needed = min(needed, max(not_whole, 0))
        return needed

    def move(self, counts: Counts, k: int, change: int) -> Counts | None:
        """Return the state with more or fewer replicas on a spot.

        None where its pool lacks devices for more, or its model capacity with fewer.
        """
        spot, after = self.spots[k], (*counts[:k], counts[k] + change, *counts[k + 1 :])
        if change > 0:
            used = self._parts(spot.pool, after).get(None, 0.0) + self.cut(spot.pool, after)
            allowed = used <= self.devices[spot.pool] + _EPSILON
        else:
            capacity = self.capacity(spot.model, after)
            allowed = after[k] >= 0 and capacity >= self.floors[spot.model] - _EPSILON
        return after if allowed else None

    def move_most(self, counts: Counts, k: int, change: int) -> Counts | None:
        """Return the state after the largest change up to ``change`` that is allowed."""
        sign = 1 if change > 0 else -1
        allowed = bisect_left(
            range(1, abs(change) + 1),
            True,
            key=lambda several: self.move(counts, k, sign * several) is None,
        )
        return self.move(counts, k, sign * allowed) if allowed else None

    def neighbours(self, counts: Counts, *, detours: bool) -> Iterator[Counts]:
        """Yield states one move away: of one replica, or of as many as are needed and may move.

        Without ``detours`` only moves towards the end.
        """
        for k, (count, goal) in enumerate(zip(counts, self.last, strict=True)):
            sign = (goal > count) - (goal < count)
            singles = {sign} if sign else set[int]()
            after = [self.move(counts, k, turn) for turn in ({1, -1} if detours else singles)]
            if abs(goal - count) > 1:
                after.append(self.move_most(counts, k, goal - count))
            yield from filter(None, after)


def find_order(board: Board, *, detours: bool, most_tries: int = MAX_TRIES) -> list[Counts] | None:
    """Return states from today to the end, each one move from the one before.

    None where none are found. A* by replicas moved; of equal states the nearest to the end comes
    first. A small board is searched whole, so that there is no order where none is found.

    Args:
        board: where replicas may run, and what bounds them.
        detours: whether replicas may run for a while that neither today nor the end has.
        most_tries: moves that are tried.
    """
    if not detours and (path := _take_turns(board)):
        return path
    to_go = _distance(board.first, board.last)
    heap, tries = [(to_go, to_go, 0, board.first)], 0
    cost, came = {board.first: 0}, {board.first: board.first}
    most_tries = min(most_tries, _MAX_NUMBERS // max(len(board.spots), 1))
    while heap and tries < most_tries:
        total, to_go, _, counts = heappop(heap)
        if not to_go:
            path = [counts]
            while path[-1] != board.first:
                path.append(came[path[-1]])
            return path[::-1]
        if total > cost[counts] + to_go:  # a shorter way was found since
            continue
        for after in board.neighbours(counts, detours=detours):
            tries += 1
            total = cost[counts] + _distance(counts, after)
            if total < cost.get(after, math.inf):
                cost[after], came[after] = total, counts
                to_go = _distance(after, board.last)
                heappush(heap, (total + to_go, to_go, tries, after))
    return None


def _take_turns(board: Board) -> list[Counts] | None:
    """States where all that may starts, then all that may stops, and again: few long waves.

    None where this comes to no end.
    """
    path = [board.first]
    while path[-1] != board.last:
        reached = len(path)
        for sign in (1, -1):
            for k, goal in enumerate(board.last):
                change = goal - path[-1][k]
                if change * sign > 0 and (after := board.move_most(path[-1], k, change)):
                    path.append(after)
        if len(path) == reached:
            return None
    return path


def _distance(first: Counts, last: Counts) -> int:
    return sum(abs(a - b) for a, b in zip(first, last, strict=True))


def find_lacking(board: Board) -> tuple[dict[str, float], list[Counts]]:
    """Return the fewest devices more in one pool with which needed moves have an order, and that.

    Where more in no single pool help, as many in each as its starts take: then everything starts
    before anything stops.
    """
    needs: dict[str, float] = defaultdict(float)
    for spot, before, after in zip(board.spots, board.first, board.last, strict=True):
        needs[spot.pool] += math.ceil(max(after - before, 0) * spot.devices)
    lacking = {pool: need for pool, need in needs.items() if need}
    path, fewest = _order_with(board, lacking), math.inf
    for pool, need in needs.items():
        low, high = 1, int(min(need, fewest - 1))
        while low <= high:
            middle = (low + high) // 2
            if steps := _order_with(board, {pool: middle}):
                lacking, path, fewest, high = {pool: float(middle)}, steps, middle, middle - 1
            else:
                low = middle + 1
    assert path is not None  # noqa: S101 - with all that starts take, they come first
    return lacking, path


def _order_with(board: Board, more: Mapping[str, float]) -> list[Counts] | None:
    return find_order(board.with_more(more), detours=False, most_tries=_TRIES_WITH_MORE)
