"""The order in which replicas start and stop, by a search over how many of each run.

A replica that starts has its devices before it serves; one that drains has them until it has ended.
A search looks for the fewest moves, with temporary replicas where needed ones have no order.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

# Moves that a search tries, and numbers of replicas that it may keep: a small fleet has fewer, a
# large one is not searched whole.
MAX_TRIES = 100_000
_MAX_NUMBERS = 5_000_000
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


class Board:
    """Spots with how many replicas run on each today and in the end, and what bounds them.

    ``devices``: of each pool, that serving may take; ``floors``: load of each model that must be
    held at every moment.
    """

    def __init__(
        self,
        spots: Sequence[Spot],
        first: Sequence[int],
        last: Sequence[int],
        devices: Mapping[str, float],
        floors: Mapping[str, float],
    ) -> None:
        self.spots, self.first, self.last = tuple(spots), tuple(first), tuple(last)
        self.floors = floors
        self._of_pool: dict[str, list[int]] = defaultdict(list)
        self._of_model: dict[str, list[int]] = defaultdict(list)
        for k, spot in enumerate(spots):
            self._of_pool[spot.pool].append(k)
            self._of_model[spot.model].append(k)
        # Today fits, whatever an inventory says.
        used = {pool: self._packed(pool, self.first) for pool in self._of_pool}
        self.devices = {pool: max(devices.get(pool, 0.0), used[pool]) for pool in self._of_pool}

    def capacity(self, model: str, counts: Counts) -> float:
        """Load that what serves of a model holds."""
        return sum(self.spots[k].capacity * counts[k] for k in self._of_model[model])

    def cut(self, pool: str, counts: Counts) -> int:
        """Devices of a pool that are cut: replicas fill those of a slice one by one.

        As few slices as today, or as in the end, are on no more devices than then.
        """
        parts = self._slices(pool, counts)
        needed = sum(math.ceil(part - _EPSILON) for part in parts.values())
        for state in (self.first, self.last):
            end_parts = self._slices(pool, state)
            if needed and all(
                part <= end_parts.get(name, 0) + 1e-6 for name, part in parts.items()
            ):
                bound = math.floor(self.devices[pool] - self._whole(pool, state) + _EPSILON)
                needed = min(needed, max(bound, 0))
        return needed

    def _slices(self, pool: str, counts: Counts) -> dict[str, float]:
        """Parts of devices in use by slice."""
        parts: dict[str, float] = {}
        for k in self._of_pool[pool]:
            if (name := self.spots[k].slice) and counts[k]:
                parts[name] = parts.get(name, 0.0) + counts[k] * self.spots[k].devices
        return parts

    def _whole(self, pool: str, counts: Counts) -> float:
        spots = self._of_pool[pool]
        return sum(self.spots[k].devices * counts[k] for k in spots if not self.spots[k].slice)

    def _packed(self, pool: str, counts: Counts) -> float:
        parts = self._slices(pool, counts).values()
        return self._whole(pool, counts) + math.ceil(sum(parts) - _EPSILON)

    def with_more(self, more: Mapping[str, float]) -> Board:
        """The same with more devices in pools."""
        devices = {pool: count + more.get(pool, 0) for pool, count in self.devices.items()}
        return Board(self.spots, self.first, self.last, devices, self.floors)

    def used(self, pool: str, counts: Counts) -> float:
        """Devices of a pool in use."""
        return self._whole(pool, counts) + self.cut(pool, counts)

    def move(self, counts: Counts, k: int, change: int) -> Counts | None:
        """The state with more or fewer replicas on a spot.

        None where its pool lacks devices for more, or its model capacity with fewer.
        """
        spot, after = self.spots[k], (*counts[:k], counts[k] + change, *counts[k + 1 :])
        if change > 0:
            allowed = self.used(spot.pool, after) <= self.devices[spot.pool] + _EPSILON
        else:
            holds = self.capacity(spot.model, after) >= self.floors[spot.model] - _EPSILON
            allowed = after[k] >= 0 and holds
        return after if allowed else None

    def neighbours(self, counts: Counts, detours: bool) -> Iterator[Counts]:
        """States one move away: of one replica, or of as many as are needed and may move at once.

        Without ``detours`` only moves towards the end.
        """
        for k, (count, goal) in enumerate(zip(counts, self.last, strict=True)):
            sign = (goal > count) - (goal < count)
            if sign and (single := self.move(counts, k, sign)) is not None:
                yield single
                if (several := self.move_most(counts, k, goal - count)) != single:
                    yield several
            for turn in ({1, -1} - {sign}) if detours else ():
                if (after := self.move(counts, k, turn)) is not None:
                    yield after

    def move_most(self, counts: Counts, k: int, change: int) -> Counts:
        """The state after the largest change up to ``change`` that is allowed, at least of one."""
        sign, low, high = (1 if change > 0 else -1), 1, abs(change)
        while low < high:
            middle = (low + high + 1) // 2
            allowed = self.move(counts, k, sign * middle) is not None
            low, high = (middle, high) if allowed else (low, middle - 1)
        return (*counts[:k], counts[k] + sign * low, *counts[k + 1 :])


def find_order(board: Board, *, detours: bool, most_tries: int = MAX_TRIES) -> list[Counts] | None:
    """States from today to the end, each one move from the one before; None where none is found.

    A* by replicas moved; of equal states the nearest to the end comes first. A small board is
    searched whole, so that there is no order where none is found.

    Args:
        board: where replicas may run, and what bounds them.
        detours: whether replicas may run for a while that neither today nor the end has.
        most_tries: moves that are tried.
    """
    if not detours and (path := _take_turns(board)):
        return path
    left = _distance(board.first, board.last)
    heap = [(left, left, 0, board.first)]
    came: dict[Counts, Counts | None] = {board.first: None}
    cost, tries = {board.first: 0}, 0
    most_tries = min(most_tries, _MAX_NUMBERS // max(len(board.spots), 1))
    while heap and tries < most_tries:
        total, left, _, counts = heappop(heap)
        if not left:
            return _walk_back(came, counts)
        if total > cost[counts] + left:  # a shorter way was found since
            continue
        for after in board.neighbours(counts, detours):
            tries += 1
            total = cost[counts] + _distance(counts, after)
            if total < cost.get(after, math.inf):
                cost[after], came[after] = total, counts
                left = _distance(after, board.last)
                heappush(heap, (total + left, left, tries, after))
    return None


def _take_turns(board: Board) -> list[Counts] | None:
    """States where all that may starts, then all that may stops, and again: few long waves.

    None where this comes to no end.
    """
    path = [board.first]
    while path[-1] != board.last:
        reached = len(path)
        for starts in (True, False):
            for k, goal in enumerate(board.last):
                change = goal - path[-1][k]
                sign = 1 if starts else -1
                if change * sign > 0 and board.move(path[-1], k, sign) is not None:
                    path.append(board.move_most(path[-1], k, change))
        if len(path) == reached:
            return None
    return path


def _distance(first: Counts, last: Counts) -> int:
    return sum(abs(a - b) for a, b in zip(first, last, strict=True))


def _walk_back(came: Mapping[Counts, Counts | None], counts: Counts) -> list[Counts]:
    path: list[Counts] = [counts]
    while (before := came[path[-1]]) is not None:
        path.append(before)
    return path[::-1]


def find_lacking(board: Board) -> tuple[dict[str, float], list[Counts]]:
    """The fewest devices more in one pool with which needed moves have an order, and that order.

    Where more in no single pool help, as many in each as its starts take: then everything starts
    before anything stops.
    """
    needs: dict[str, float] = defaultdict(float)
    for k, (before, after) in enumerate(zip(board.first, board.last, strict=True)):
        needs[board.spots[k].pool] += math.ceil(max(after - before, 0) * board.spots[k].devices)
    best: tuple[int, str, list[Counts]] | None = None
    for pool, most_needed in needs.items():
        low, high = 1, int(min(most_needed, best[0] - 1) if best else most_needed)
        while low <= high:
            middle = (low + high) // 2
            more = board.with_more({pool: middle})
            if path := find_order(more, detours=False, most_tries=_TRIES_WITH_MORE):
                best, high = (middle, pool, path), middle - 1
            else:
                low = middle + 1
    if best:
        return {best[1]: float(best[0])}, best[2]
    return {pool: need for pool, need in needs.items() if need}, _start_all_first(board)


def _start_all_first(board: Board) -> list[Counts]:
    """States in which everything starts, one spot after the other, and then all else stops."""
    path = [board.first]
    for starts in (True, False):
        for k, goal in enumerate(board.last):
            counts = path[-1]
            if goal != counts[k] and (goal > counts[k]) == starts:
                path.append((*counts[:k], goal, *counts[k + 1 :]))
    return path
