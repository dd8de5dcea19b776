"""A queue of answers of many lengths, worked off: the last and longest run almost alone.

Requests that one replica holds at once, ``R`` of ``n``, are slots that are filled again while the
queue lasts. In units of the mean answer and per slot, ``H(u)`` requests have ended by ``u``: the
renewal function of their lengths, ``h = f + f * h`` [Cox 1962]. The queue is empty at ``u1``, where
``1 + H(u1) = n/R``; after that the share

    S(u) = P(L > u) + integral of h(v)·P(L > u - v) for v up to u1

of the slots still decodes, until the last one ends: where ``R·S`` is ``LAST``. Lengths alone decide
it, so a table by ``n/R`` is made once for each shape; beyond the last ``RATIOS`` it only moves.
Steps follow from how many decode at each time, with the mean context; prompts come on top.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from recipe_core.base.arrays import Float

# Places of a mean answer at which the table is computed.
PLACES = 64
# Requests over those held at once; shares of slots that still decode.
RATIOS = (1.0, 1.1, 1.25, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0)
LEVELS = np.geomspace(1.0, 2.0**-16, 49)
# Of n values the largest is about where the share LAST/n of them is larger (exponential tails:
# exp(-0.577)).
LAST = 0.56


@dataclass(frozen=True, slots=True)
class Drain:
    """Work of a burst in units of the mean answer, a row a level (the first: the full phase).

    ``spans``: how long it lasts; ``decoding``: sequences that decode.
    """

    spans: Float
    decoding: Float


@lru_cache(32)
def _drain_table(answers: tuple[float, ...]) -> tuple[Float, Float]:
    """Ends of the queue by ratio, and times at which slots fall to each level, less the ratio."""
    lengths = np.maximum(np.rint(np.asarray(answers) * PLACES).astype(np.int64), 1)
    longest, horizon = int(lengths[-1]), int((RATIOS[-1] + 2) * PLACES)
    ended = np.bincount(lengths, minlength=horizon + 1) / len(lengths)
    longer = 1 - np.cumsum(np.bincount(lengths, minlength=longest + 1)) / len(lengths)
    renewals = np.zeros(horizon + 1)
    for place in range(1, horizon + 1):
        before = renewals[place - 1 :: -1][:place]
        renewals[place] = ended[place] + ended[1 : place + 1][: len(before)] @ before
    begun = 1 + np.cumsum(renewals)
    queue, falls = np.zeros(len(RATIOS)), np.zeros((len(RATIOS), len(LEVELS)))
    for row, ratio in enumerate(RATIOS):
        last = int(np.searchsorted(begun, ratio - 1e-9))
        starts = np.concatenate([[1.0], renewals[1 : last + 1]])
        if last:  # as many of the last place as there are left
            starts[-1] -= begun[last] - ratio
        left = np.convolve(starts, longer)[last:]
        times = np.interp(-LEVELS, -left, np.arange(len(left))) + last
        queue[row], falls[row] = last / PLACES - ratio, times / PLACES - ratio
    return queue, falls


def drain_of(answers: tuple[float, ...], requests: Float, slots: Float) -> Drain:
    """Run a burst of ``requests`` in ``slots`` of a replica, one column a case."""
    slots = np.minimum(requests, slots)
    ratio = requests / slots
    queue, falls = _drain_table(answers)
    full = np.interp(ratio, RATIOS, queue) + ratio
    times = np.stack([np.interp(ratio, RATIOS, column) for column in falls.T]) + ratio
    times = np.maximum(times, full)
    apart = np.log(LEVELS[:-1] / LEVELS[1:])[:, None]
    kept_share = np.clip(np.log(LEVELS[:-1, None] * slots / LAST) / apart, 0.0, 1.0)
    spans = np.diff(times, axis=0) * kept_share
    middles = np.sqrt(LEVELS[:-1] * LEVELS[1:])[:, None] * slots
    first = np.maximum(times[0], 0.0)
    return Drain(np.concatenate([first[None], spans]), np.concatenate([slots[None], middles]))
