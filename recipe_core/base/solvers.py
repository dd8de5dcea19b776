"""The minimum of a function of a few numbers, without derivatives."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from recipe_core.base.arrays import Float

# Steps of every search; nearly all are then within 1e-9 of the zero.
ROUNDS = 10
# Steps of the longest search: a zero may lie at a millionth of the interval.
MOST_ROUNDS = 60
# Where a longer search ends, as a share of the value at the low end.
CLOSE = 1e-9


def find_root(value: Callable[[Float], Float], low: Float, at_low: Float, high: Float) -> Float:
    """Zero of a growing function between ``low`` and ``high``; ``high`` where it stays negative.

    ``at_low`` is its value at ``low``. False position that scales the value at a retained end by
    what the other end gained: N. Anderson, Å. Björck (1973), "A new high order method of regula
    falsi type", BIT 13. All rows take ``ROUNDS`` steps, then each until it is close, so a row ends
    alike alone and among others.
    """
    end, at_end, x, at_x = low, at_low, high, value(high)
    beyond = at_x <= 0
    for step in range(MOST_ROUNDS):
        searching = (np.abs(at_x) > CLOSE * np.abs(at_low)) & ~beyond | (step < ROUNDS)
        if not searching.any():
            break
        rise = at_x - at_end
        new = x - at_x * (x - end) / np.where(rise == 0, 1.0, rise)
        new = np.where(searching, new, x)
        at_new = value(new)
        stays = at_new * at_x > 0  # the other end: the zero lies between it and the new point
        shrink = 1 - at_new / np.where(stays, at_x, 1.0)
        end = np.where(stays, end, x)
        at_end = np.where(stays, at_end * np.where(shrink > 0, shrink, 0.5), at_x)
        x, at_x = new, at_new
    return np.where(beyond, high, x)


Array = NDArray[np.float64]


def minimise(
    cost: Callable[[Array], float], start: Array, rounds: int = 400
) -> tuple[Array, float]:
    """The lowest point found by Nelder and Mead's simplex (1965), and its cost.

    ``rounds``: replacements of the worst corner.
    """
    size = len(start)
    simplex = [start, *(start + 0.6 * np.eye(size)[i] for i in range(size))]
    costs = [cost(x) for x in simplex]
    for _ in range(rounds):
        order = np.argsort(costs)
        simplex, costs = [simplex[i] for i in order], [costs[i] for i in order]
        centre = np.mean(simplex[:-1], axis=0)
        reflected = 2.0 * centre - simplex[-1]
        value = cost(reflected)
        if value < costs[0]:
            further = 3.0 * centre - 2.0 * simplex[-1]
            beyond = cost(further)
            simplex[-1], costs[-1] = (further, beyond) if beyond < value else (reflected, value)
        elif value < costs[-2]:
            simplex[-1], costs[-1] = reflected, value
        else:
            inside = 0.5 * (centre + simplex[-1])
            value = cost(inside)
            if value < costs[-1]:
                simplex[-1], costs[-1] = inside, value
            else:
                simplex = [simplex[0], *(0.5 * (simplex[0] + x) for x in simplex[1:])]
                costs = [costs[0], *(cost(x) for x in simplex[1:])]
    best = int(np.argmin(costs))
    return simplex[best], costs[best]
