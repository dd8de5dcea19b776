"""Hashes of prompt blocks as a column of lists, and how many tokens a block has."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recipe_core.base.arrays import Int
from recipe_core.scaling.traces.formats.content import quote_value, wrong
from recipe_core.scaling.traces.trace import Blocks

MOST_BLOCKS = 100_000_000
# Tokens of a block that are tried: 1 to 8,192.
SIZES = tuple(1 << power for power in range(0, 14))


def blocks_of(lists: Any, input_tokens: Int, tokens: int | None = None) -> Blocks | None:
    """Blocks from a pyarrow column of lists of whole numbers or text; None where all are empty.

    tokens: of a block; left out, the size at which most prompts have as many blocks as listed.
    """
    lists = lists.combine_chunks() if isinstance(lists, pa.ChunkedArray) else lists
    counts = np.asarray(
        pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False), dtype=np.int64
    )
    total = int(counts.sum())
    if not total:
        return None
    if total > MOST_BLOCKS:
        raise wrong(
            f"the trace has {total:,} block hashes; the limit is {MOST_BLOCKS:,}.",
            "Give a part of it.",
        )
    values = lists.flatten()
    if values.null_count:
        raise wrong("a list of block hashes holds an empty value.", "Remove it.")
    if pa.types.is_integer(values.type):
        ids = values.to_numpy(zero_copy_only=False).astype(np.int64)
    else:
        encoded = pc.dictionary_encode(values)
        ids = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    starts = np.concatenate(([0], np.cumsum(counts)))
    return Blocks(ids, starts, tokens or block_tokens(counts, input_tokens))


def text_lists(cells: Any) -> Any:
    bare = pc.replace_substring_regex(pc.fill_null(cells, ""), r"[\[\](){}\"',;|]+", " ")
    words = pc.split_pattern_regex(pc.utf8_trim_whitespace(bare), r"\s+")
    words = words.combine_chunks() if isinstance(words, pa.ChunkedArray) else words
    empty = pc.equal(pc.utf8_trim_whitespace(bare), "")
    empty = empty.combine_chunks() if isinstance(empty, pa.ChunkedArray) else empty
    return pc.if_else(empty, pa.scalar([], words.type), words)


def block_tokens(counts: Int, input_tokens: Int) -> int:
    """Tokens of a block: the size at which most prompts have as many blocks as they list.

    Whole blocks only, or the last one begun: both ways of counting are tried.

    Raises:
        InputError: when no size fits half of the prompts.
    """
    some = counts > 0
    listed, lengths = counts[some], input_tokens[some]
    fits = {
        size: max(
            float(np.mean(listed == -(-lengths // size))), float(np.mean(listed == lengths // size))
        )
        for size in SIZES
    }
    best = max(SIZES, key=lambda size: (fits[size], size))
    if fits[best] < 0.5:
        row = int(np.argmax(some))
        raise wrong(
            f"the size of a block is not clear: a prompt of {quote_value(input_tokens[row])} "
            f"tokens lists {counts[row]:,} blocks.",
            "Add a column block_size with the tokens of a block.",
        )
    return best
