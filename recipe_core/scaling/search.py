"""The cheapest parameters of each policy at a wanted share of requests within the limits.

Round by round: first a grid over every policy's parameters, then points between those around the
best of each. All points of all policies are columns of one simulation by flows. Among those that
reach the wanted share the cheapest is the best; where none does, the one that is nearest to it. The
simulation is the same for every column (same arrivals, same starts), so that a difference between
two is one of the policies.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product

from recipe_core.base import budget
from recipe_core.request.scaling import Policy, Scaling
from recipe_core.scaling.outcome import Outcome
from recipe_core.scaling.parameter_spaces import Axis, Space

# The grid, and finer points.
ROUNDS = 2
# Points of a policy in the first round at most.
FIRST = 64
# Points of a policy in every other round at most.
FINER = 32
# Best points of a policy around which finer ones are tried.
AROUND = 2
# Best points of a policy that are simulated again.
FINALISTS = 2
# And the best of those that miss so many times the requests that may be missed: a busy part of the
# time, over which is searched, misses more of them than the rest.
MARGINS = (4.0, 2.5, 1.6, 0.7, 0.4)
# Of a share that equals the wanted one but for its bits.
SLACK = 1e-12

# The outcomes of policies, one a column.
Simulate = Callable[[Sequence[Scaling]], Sequence[Outcome]]


@dataclass(frozen=True, slots=True)
class Tried:
    """A policy that was simulated: what it reached, at what cost."""

    scaling: Scaling
    attainment: float
    rented_s: float

    def order(self, attainment: float) -> tuple[float, ...]:
        return rank_outcome(self.attainment, self.rented_s, attainment)


def rank_outcome(attainment: float, rented_s: float, share: float) -> tuple[float, ...]:
    """Return what sorts the better first: by cost where the share is reached, else by distance."""
    if attainment >= share - SLACK:
        return (0.0, rented_s, -attainment)
    return (1.0, -attainment, rented_s)


@dataclass(slots=True)
class _PolicySearch:
    """The search of one policy: values tried on each axis, and what came of each point."""

    space: Space
    values: dict[str, set[float]] = field(default_factory=dict)
    tried: dict[tuple[float, ...], Tried] = field(default_factory=dict)
    seen_keys: set[str] = field(default_factory=set)

    def new(self, points: Iterable[tuple[float, ...]]) -> dict[tuple[float, ...], Scaling]:
        """The policies at points that are not known yet, by point."""
        out: dict[tuple[float, ...], Scaling] = {}
        names = [axis.name for axis in self.space.axes]
        for point in points:
            scaling = self.space.at(dict(zip(names, point, strict=True)))
            if scaling is None:
                continue
            name = json.dumps(scaling.to_json(), sort_keys=True)
            if name not in self.seen_keys:
                self.seen_keys.add(name)
                out[point] = scaling
            for axis, value in zip(names, point, strict=True):
                self.values.setdefault(axis, set()).add(value)
        return out

    def best(self, attainment: float, count: int) -> list[tuple[float, ...]]:
        """The best points, the first one first; of equal ones the first tried."""
        return sorted(self.tried, key=lambda point: self.tried[point].order(attainment))[:count]

    def finalists(self, attainment: float) -> list[Tried]:
        """The best ones, and the best of those that miss fewer requests by margins."""
        points = self.best(attainment, FINALISTS)
        for margin in MARGINS:
            points += self.best(max(1 - (1 - attainment) * margin, 0.0), 1)
        return [self.tried[point] for point in dict.fromkeys(points)]


def search_policies(
    spaces: Sequence[Space], simulate: Simulate, attainment: float, rounds: int = ROUNDS
) -> dict[Policy, list[Tried]]:
    """The best of each policy, the first one first; none where it is nothing of its own.

    With them come some that reach more than the wanted share, for whoever simulates them again
    under other chances.

    Args:
        spaces: of the policies.
        simulate: simulates policies, one a column.
        attainment: share of requests that must keep the limits.
        rounds: of the search.

    Raises:
        Cancelled, LimitError: where the request's budget ends it (``base/budget``).
    """
    searched = [_PolicySearch(space) for space in spaces]
    for number in range(rounds):
        if number == 0:
            batches = [search.new(first_points(search.space.axes)) for search in searched]
        else:
            batches = [search.new(_refine_points(search, attainment)) for search in searched]
        _simulate_batches(searched, batches, simulate)
        budget.count_step()
    return {search.space.policy: search.finalists(attainment) for search in searched}


def _simulate_batches(
    searched: Sequence[_PolicySearch],
    batches: Sequence[Mapping[tuple[float, ...], Scaling]],
    simulate: Simulate,
) -> None:
    """Simulate the batches of all policies together, and note what came of each point."""
    scalings = [scaling for batch in batches for scaling in batch.values()]
    outcomes = iter(simulate(scalings) if scalings else ())
    for search, batch in zip(searched, batches, strict=True):
        for point, scaling in batch.items():
            outcome = next(outcomes)
            search.tried[point] = Tried(scaling, outcome.attainment, outcome.rented_s)


def first_points(axes: Sequence[Axis], limit: int = FIRST) -> list[tuple[float, ...]]:
    """The grid over the axes' first values; where it is too large, evenly spread points of it.

    Points are then taken at steps of the golden section, so that every value of every axis is met.
    """
    grid = list(product(*(axis.values for axis in axes)))
    if len(grid) <= limit:
        return grid
    step = round(len(grid) * (math.sqrt(5) - 1) / 2)
    while math.gcd(step, len(grid)) != 1:
        step += 1
    return [grid[number * step % len(grid)] for number in range(limit)]


def _refine_points(search: _PolicySearch, attainment: float) -> list[tuple[float, ...]]:
    """Points between the best ones and their neighbours: on every axis, and on every two."""
    out: list[tuple[float, ...]] = []
    for point in search.best(attainment, AROUND):
        moves = [
            _neighbour_values(axis, value, search.values)
            for axis, value in zip_axes(search.space, point)
        ]
        singles = [
            _move_point(point, {number: value})
            for number, values in enumerate(moves)
            for value in values
        ]
        pairs = [
            _move_point(point, {first: a, second: b})
            for first in range(len(moves))
            for second in range(first + 1, len(moves))
            for a in moves[first]
            for b in moves[second]
        ]
        out += singles + pairs[: FINER // AROUND]
    return out[: FINER * AROUND]


def zip_axes(space: Space, point: tuple[float, ...]) -> Iterable[tuple[Axis, float]]:
    return zip(space.axes, point, strict=True)


def _neighbour_values(
    axis: Axis, value: float, values_by_axis: Mapping[str, set[float]]
) -> list[float]:
    """Values to try beside one: the neighbours among those tried, and those half way to them."""
    values = sorted(values_by_axis[axis.name])
    place = values.index(value)
    out = []
    for neighbour in values[max(place - 1, 0) : place] + values[place + 1 : place + 2]:
        middle = axis.between(min(value, neighbour), max(value, neighbour))
        out.append(neighbour if middle is None else middle)
    return out


def _move_point(point: tuple[float, ...], changes: Mapping[int, float]) -> tuple[float, ...]:
    return tuple(changes.get(number, value) for number, value in enumerate(point))
