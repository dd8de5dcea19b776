"""The minimum of a function of a few numbers, without derivatives."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

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
