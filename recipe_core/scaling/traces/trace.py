"""A trace: when requests came, how long they were, and what of their prefixes a cache would hold.

A cache holds whole blocks and drops the one that was used longest ago (LRU). A request looks up its
blocks in order, and stops at the first that is not there: what comes later would have to be
computed anyway. Then it uses all of its blocks, the last one first, so that the head of a prompt
outlives its tail, as in engines that drop leaves first. Requests come one after the other; that two
which run at once cannot share what neither has computed yet is left out, and so is that some token
of every prompt must be computed.

The rank of a block in the LRU stack does not depend on the cache's size (Mattson et al. 1970): one
pass gives the hits of all sizes. Ranks are counted for all blocks at once in O(n log n) by a
wavelet matrix (Claude and Navarro 2012).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from recipe_core.base.arrays import Bool, Float, Int


@dataclass(frozen=True, slots=True)
class Rates:
    """Requests per second in windows of ``interval_s``, one after the other.

    missing: windows that were not recorded; their rates are filled in from those around them.
    burstiness: coefficient of variation of gaps within a window, None where it is not known.
    source: format and name, for people. began_s: seconds since 1970 (UTC), where the table has
    dates.
    """

    rates: Float
    interval_s: float
    missing: Bool
    burstiness: float | None = None
    source: str = ""
    began_s: float | None = None

    def __len__(self) -> int:
        return len(self.rates)

    @property
    def span_s(self) -> float:
        """Seconds of all windows."""
        return len(self.rates) * self.interval_s


def fill_missing_rates(rates: Float, missing: Bool) -> Float:
    """Rates in which missing windows lie on the line between those beside them.

    Raises:
        ValueError: when all windows are missing.
    """
    if not missing.any():
        return rates
    if missing.all():
        raise ValueError("every window is missing")
    place = np.arange(len(rates))
    return np.asarray(np.interp(place, place[~missing], rates[~missing]), dtype=np.float64)


@dataclass(frozen=True, slots=True)
class Blocks:
    """Hashes of prompt blocks: those of request i are ``ids[starts[i]:starts[i + 1]]``, in order.

    ``tokens``: of a block; a prompt's last block may hold fewer.
    """

    ids: NDArray[np.int64]
    starts: NDArray[np.int64]
    tokens: int


@dataclass(frozen=True, slots=True)
class Trace:
    """Requests sorted by arrival; every array has one number a request.

    arrival_s: seconds since the first. blocks: where the trace has hashes of prefixes. sessions:
    number of the conversation or client, where it has one. failed: requests that it counts as
    failed, which are left out of the arrays. source: format and name, for people. began_s: seconds
    since 1970 (UTC) of the first request, where the trace has dates.
    """

    arrival_s: Float
    input_tokens: Int
    output_tokens: Int
    blocks: Blocks | None = None
    sessions: Int | None = None
    failed: int = 0
    source: str = ""
    began_s: float | None = None

    def __len__(self) -> int:
        return len(self.arrival_s)

    @property
    def span_s(self) -> float:
        """Seconds from the first request to the last."""
        return float(self.arrival_s[-1] - self.arrival_s[0]) if len(self) else 0.0

    @property
    def rate_per_s(self) -> float:
        """Requests per second over the span; 0 where it has none."""
        return len(self) / self.span_s if self.span_s > 0 else 0.0


# Rank of a block that was not seen before.
NEVER = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class Reuse:
    """Share of prompt tokens found in caches of several sizes.

    cache_tokens: sizes, rising. hit: share of all prompt tokens in each. block_hit: the same of
    blocks. unlimited, block_unlimited: in a cache that never drops any. blocks, distinct: block
    hashes asked for, and different ones. requests_hit: share of requests that find any block in the
    unlimited cache.
    """

    cache_tokens: Float
    hit: Float
    unlimited: float
    block_hit: Float
    block_unlimited: float
    blocks: int
    distinct: int
    requests_hit: float


def measure_prefix_reuse(trace: Trace, *, per_octave: int = 1) -> Reuse | None:
    """Hits of a trace by the size of the cache; None where it has no hashes of blocks.

    Sizes are powers of two from one block on, ``per_octave`` for each doubling, to the first that
    holds all there is.
    """
    blocks = trace.blocks
    if blocks is None or not len(blocks.ids):
        return None
    block_tokens = tokens_in_blocks(blocks, trace.input_tokens)
    needed = needed_blocks(blocks)
    reused = needed < NEVER
    distinct = len(np.unique(blocks.ids))
    steps = np.arange(int(np.ceil(np.log2(max(distinct, 1)))) * per_octave + 1)
    sizes = np.unique(np.floor(2.0 ** (steps / per_octave)).astype(np.int64))
    all_tokens = max(float(trace.input_tokens.sum()), 1.0)
    order = np.argsort(needed, kind="stable")
    within = np.searchsorted(needed[order], sizes, side="right")
    sums = np.concatenate(([0], np.cumsum(block_tokens[order])))
    counts = np.diff(blocks.starts)
    first = blocks.starts[:-1][counts > 0]
    return Reuse(
        cache_tokens=(sizes * blocks.tokens).astype(np.float64),
        hit=sums[within] / all_tokens,
        unlimited=float(block_tokens[reused].sum() / all_tokens),
        block_hit=within / len(needed),
        block_unlimited=float(reused.mean()),
        blocks=len(needed),
        distinct=distinct,
        requests_hit=float(reused[first].sum() / max(len(trace), 1)),
    )


def tokens_in_blocks(blocks: Blocks, input_tokens: Int) -> Int:
    """Tokens of each block of each request: full but for the last, whose prompt ends in it."""
    counts = np.diff(blocks.starts)
    before = (np.arange(len(blocks.ids)) - np.repeat(blocks.starts[:-1], counts)) * blocks.tokens
    tokens_left = np.repeat(input_tokens, counts) - before
    block_tokens: Int = np.clip(tokens_left, 0, blocks.tokens)
    return block_tokens


def needed_blocks(blocks: Blocks) -> Int:
    """The smallest cache, in blocks, in which each block is a hit; ``NEVER`` where none is enough.

    That is the largest rank in the LRU stack of the block and those before it in its request.
    """
    ids = np.unique(blocks.ids, return_inverse=True)[1].astype(np.int64)
    owner = np.repeat(np.arange(len(blocks.starts) - 1), np.diff(blocks.starts))
    again = _is_repeated_block(ids, owner)
    ranks = np.zeros(len(ids), dtype=np.int64)  # a block again in one request: as the first time
    ranks[~again] = _lru_ranks(ids[~again], owner[~again])
    return _running_maximum(ranks, owner)


def _is_repeated_block(ids: Int, owner: Int) -> Bool:
    order = np.lexsort((np.arange(len(ids)), ids, owner))
    same = (np.diff(ids[order]) == 0) & (np.diff(owner[order]) == 0)
    again = np.zeros(len(ids), dtype=np.bool_)
    again[order[1:][same]] = True
    return again


def _lru_ranks(ids: Int, owner: Int) -> Int:
    """Rank of each block in the LRU stack when its request comes; 1 is the one used last."""
    count = len(ids)
    if not count:
        return np.zeros(0, dtype=np.int64)
    starts = np.searchsorted(owner, owner, side="left")
    ends = np.searchsorted(owner, owner, side="right")
    place = starts + (ends - 1 - np.arange(count))  # used from its last block to its first
    used = np.empty(count, dtype=np.int64)
    used[place] = ids
    previous = _previous_uses(used)
    before = previous[place]  # when each block was used before its request
    reused = before >= 0
    # Different blocks used in [before, start) = uses there, less those whose block is used again
    # before start, which are the uses before start whose previous one is not before ``before``.
    repeats = np.flatnonzero(previous >= 0)
    until = np.searchsorted(repeats, starts[reused])
    less = _count_at_least(previous[repeats], until, before[reused], count)
    ranks = np.full(count, NEVER, dtype=np.int64)
    ranks[reused] = starts[reused] - before[reused] - less
    return ranks


def _previous_uses(used: Int) -> Int:
    """The place of the use before each use of the same block; -1 for the first."""
    order = np.argsort(used, kind="stable")
    previous = np.full(len(used), -1, dtype=np.int64)
    same = np.diff(used[order]) == 0
    previous[order[1:][same]] = order[:-1][same]
    return previous


def _count_at_least(values: Int, until: Int, threshold: Int, bound: int) -> Int:
    """Count ``values[:until]`` that are at least each ``threshold``; all below ``bound``."""
    low = np.zeros(len(until), dtype=np.int64)
    high = until.copy()
    count = np.zeros(len(until), dtype=np.int64)
    for bit in range(max(int(bound).bit_length() - 1, 0), -1, -1):
        ones = (values >> bit) & 1
        ones_before = np.concatenate(([0], np.cumsum(ones)))
        zeros = len(values) - int(ones_before[-1])
        low_ones, high_ones = ones_before[low], ones_before[high]
        bit_set = ((threshold >> bit) & 1) == 1
        count += np.where(bit_set, 0, high_ones - low_ones)
        low = np.where(bit_set, zeros + low_ones, low - low_ones)
        high = np.where(bit_set, zeros + high_ones, high - high_ones)
        values = np.concatenate((values[ones == 0], values[ones == 1]))
    return count + (high - low)


def _running_maximum(ranks: Int, owner: Int) -> Int:
    """The largest rank so far within each request."""
    if not len(ranks):
        return ranks
    # Ranks as places in their order, lifted by request: one running maximum serves all of them.
    levels, place = np.unique(ranks, return_inverse=True)
    lifted = place.astype(np.int64) + owner * len(levels)
    return levels[np.maximum.accumulate(lifted) - owner * len(levels)]
