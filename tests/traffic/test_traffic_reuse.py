"""What a prefix cache holds of a trace, against a cache that is played block by block."""

from collections import OrderedDict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recipe_core.traffic.reuse import NEVER, needed_blocks, reuse_curve, tokens_in_blocks
from recipe_core.traffic.trace import Blocks, Trace
from tests.fixtures.sizes import examples

REQUESTS = st.lists(st.lists(st.integers(0, 12), max_size=7), min_size=1, max_size=25)


def blocks_of(requests: list[list[int]], tokens: int = 16) -> Blocks:
    ids = np.asarray([one for request in requests for one in request], dtype=np.int64)
    starts = np.concatenate(([0], np.cumsum([len(request) for request in requests])))
    return Blocks(ids, starts.astype(np.int64), tokens)


def played(requests: list[list[int]], size: int) -> list[bool]:
    """Hits of an LRU cache of ``size`` blocks that is looked up and then used, last block first."""
    cache: OrderedDict[int, None] = OrderedDict()
    hits = []
    for request in requests:
        found = True
        for block in request:
            found = found and block in cache
            hits.append(found)
        for block in reversed(list(dict.fromkeys(request))):
            cache.pop(block, None)
            cache[block] = None
            if len(cache) > size:
                cache.popitem(last=False)
    return hits


def trace_of(requests: list[list[int]], lengths: list[int]) -> Trace:
    count = len(requests)
    columns = np.asarray(lengths, dtype=np.int64), np.ones(count, dtype=np.int64)
    return Trace(np.arange(float(count)), *columns, blocks_of(requests))


@given(REQUESTS, st.sampled_from([1, 2, 3, 5, 8, 100]))
@settings(max_examples=examples(2000), deadline=None)
def test_hits_are_those_of_a_played_cache(requests: list[list[int]], size: int) -> None:
    needed = needed_blocks(blocks_of(requests))
    assert (needed <= size).tolist() == played(requests, size)


@given(REQUESTS)
@settings(max_examples=examples(500), deadline=None)
def test_a_larger_cache_never_holds_less(requests: list[list[int]]) -> None:
    curve = reuse_curve(trace_of(requests, [16 * len(one) + 1 for one in requests]), per_octave=2)
    if curve is None:
        assert not any(requests)
        return
    assert (np.diff(curve.hit) >= 0).all()
    assert curve.hit[-1] == pytest.approx(curve.unlimited)
    assert 0 <= curve.unlimited < 1
    assert (np.diff(curve.cache_tokens) > 0).all()


def test_a_hit_ends_at_the_first_missing_block_and_the_last_is_not_full() -> None:
    needed = needed_blocks(blocks_of([[1, 2, 3], [1, 9, 3], [1, 2, 3]]))
    assert needed[3:].tolist() == [1, NEVER, NEVER, 1, 4, 4]
    trace = trace_of([[1, 2], [1, 2, 3]], [20, 40])
    assert tokens_in_blocks(trace.blocks, trace.input_tokens).tolist() == [16, 4, 16, 16, 8]
    curve = reuse_curve(trace)
    assert curve.unlimited == pytest.approx(32 / 60)
    assert curve.block_unlimited == pytest.approx(2 / 5)
    ones = np.ones(3, dtype=np.int64)
    assert reuse_curve(Trace(np.arange(3.0), ones, ones)) is None
