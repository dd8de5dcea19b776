"""The largest batch of a server that is told a number of requests, not of tokens."""

from __future__ import annotations

import numpy as np

from recipe_core.base.arrays import Int


def largest_batch(
    max_num_seqs: float | np.ndarray[tuple[int, ...], np.dtype[np.float64]],
    max_batched_tokens: float | np.ndarray[tuple[int, ...], np.dtype[np.float64]],
    longest_tokens: float | np.ndarray[tuple[int, ...], np.dtype[np.float64]],
) -> Int:
    """Requests of a batch whose texts may all be of the longest length, 1 at least.

    So that no batch takes more memory than ``max_batched_tokens`` do.
    """
    within = np.floor(np.asarray(max_batched_tokens) / np.maximum(longest_tokens, 1))
    return np.maximum(np.minimum(max_num_seqs, within), 1).astype(np.int64)
