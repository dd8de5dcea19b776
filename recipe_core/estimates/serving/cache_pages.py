"""Blocks of a compressed cache (DeepSeek-V4), by vLLM's rule.

A layer has up to five caches: its window, its entries, the indexer's entries, and the states of
unfinished entries of both, each in pages of its own size. Caches with equally many pages form a
group; groups with more layers than others are split. All draw from one pool of equal blocks, as
large as the pages of the widest group together. Tensor parallelism divides none of it.

Source: vLLM 0.32.0, ``v1/core/kv_cache_utils.py`` (``_get_packed_kv_cache_groups``),
``v1/kv_cache_interface.py`` and ``models/deepseek_v4/{attention,compressor}.py``. A boot that needs
6.66 GiB for 30,000 tokens with 0.22 (which padded every page to the largest of its group) needs
6.35 GiB by this rule.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

import numpy as np

from recipe_core.base.arrays import Float
from recipe_core.models.compressed import STATE_VALUE_BYTES, CompressedAttention

ENTRY_BLOCK_TOKENS, WINDOW_BLOCK_TOKENS = 256, 64
OVERLAPPING_STATE_BLOCK_TOKENS, STATE_BLOCK_TOKENS = 4, 8
FP8_ALIGNMENT_BYTES, ALIGNMENT_BYTES = 576, 512

Layers = tuple[tuple[CompressedAttention, int], ...]


@dataclass(frozen=True, slots=True)
class Group:
    """Caches of equally many blocks of ``block_tokens``, over the last ``window`` tokens or all."""

    block_tokens: int
    window: int | None

    def blocks(self, context: Float, in_flight: Float | float) -> Float:
        """Blocks of one request whose newest ``in_flight`` tokens are still being computed."""
        if self.window is None:
            return np.ceil(context / self.block_tokens) + 0
        # one block more: a window may start inside a block
        tokens = np.minimum(self.window - 1 + in_flight, context)
        return np.ceil(tokens / self.block_tokens) + 1


@dataclass(frozen=True, slots=True)
class Packing:
    """The block pool of some layers: bytes of a block, and how many of each group draw from it."""

    block_bytes: float
    groups: tuple[tuple[Group, int], ...]

    def request_bytes(self, context: Float, in_flight: Float | float = 1.0) -> Float:
        """Bytes that one request holds (one per case)."""
        blocks = np.zeros_like(context)
        for group, count in self.groups:
            blocks = blocks + count * group.blocks(context, in_flight)
        return blocks * self.block_bytes


@cache
def pack_caches(layers: Layers, value_bytes: float) -> Packing:
    """Packs the caches of ``layers`` (each with its count) at ``value_bytes`` a cached value."""
    pages: dict[Group, Counter[int]] = {}
    for attention, count in layers:
        for group, page_bytes in _layer_caches(attention, value_bytes):
            pages.setdefault(group, Counter())[page_bytes] += count
    repeats = _group_repeats([sizes for sizes in pages.values() if _has_equal_counts(sizes)])
    splits = {
        group: -(-max(sizes.values()) // repeats) if repeats and _has_equal_counts(sizes) else 1
        for group, sizes in pages.items()
    }
    widest = max(
        sum(page * -(-count // splits[group]) for page, count in sizes.items())
        for group, sizes in pages.items()
    )
    return Packing(float(widest), tuple(splits.items()))


def _layer_caches(a: CompressedAttention, value_bytes: float) -> Iterable[tuple[Group, int]]:
    """The caches of one layer: the group each belongs to, and bytes of a page."""
    alignment = ALIGNMENT_BYTES if value_bytes >= 2 else FP8_ALIGNMENT_BYTES

    def page(rows: float, row_bytes: float) -> int:
        return math.ceil(rows * row_bytes / alignment) * alignment

    entry_bytes = a.entry_bytes(value_bytes)
    yield Group(WINDOW_BLOCK_TOKENS, a.local), page(WINDOW_BLOCK_TOKENS, entry_bytes)
    if not a.ratio:
        return
    entries = ENTRY_BLOCK_TOKENS / a.ratio
    tokens = OVERLAPPING_STATE_BLOCK_TOKENS if a.series > 1 else STATE_BLOCK_TOKENS
    states = Group(tokens, a.state_tokens)
    yield Group(ENTRY_BLOCK_TOKENS, None), page(entries, entry_bytes)
    yield states, page(tokens, a.state_values_per_token * STATE_VALUE_BYTES)
    if a.index_heads:
        yield Group(ENTRY_BLOCK_TOKENS, None), page(entries, a.index_entry_bytes)
        yield states, page(tokens, a.index_state_values_per_token * STATE_VALUE_BYTES)


def _has_equal_counts(sizes: Counter[int]) -> bool:
    return len(set(sizes.values())) == 1


def _group_repeats(balanced: list[Counter[int]]) -> int:
    """Layers that a group is split into; 0: none is split.

    At least those of the largest group that mixes page sizes, with the least padding.
    """
    layers = [max(sizes.values()) for sizes in balanced]
    mixed = [count for sizes, count in zip(balanced, layers, strict=True) if len(sizes) > 1]
    if not mixed:
        return 0
    return min(
        range(max(mixed), max(layers) + 1),
        key=lambda n: (sum(-count % n for count in layers), -n),
    )
