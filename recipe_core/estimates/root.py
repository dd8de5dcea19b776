"""The zero of a growing function of every case at once."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

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
