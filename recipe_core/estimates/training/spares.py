"""Nodes that stand by for failed ones: how often none is left, and the wait for a repair.

Nodes fail at a rate λ while the run runs and are away for R on average; s spares stand by. With
j nodes away the run goes on for j ≤ s and stands still for j = s + 1, when nothing else fails:
that is Erlang's loss system with s + 1 places, whose distribution depends on R by its mean only.
A failure finds no spare with the probability B(s, λR), and waits R/(s + 1) then (repairs of an
exponential time). Without spares that is the wait of R after every failure. Left out: spares that
fail while they stand by, and failures of several nodes at once.
"""

from __future__ import annotations

import numpy as np

from recipe_core.base.arrays import Float


def erlang_b(places: int, load: Float) -> Float:
    """Probability that all of ``places`` are taken (one per ``load``, in erlangs).

    B(0) = 1, B(k) = a B(k - 1) / (k + a B(k - 1)) (Erlang 1917, in its stable recursion).
    """
    blocked = np.ones_like(load, dtype=float)
    for k in range(1, places + 1):
        blocked = load * blocked / (k + load * blocked)
    return blocked
