"""Equal blocks shared by layers that cache in different ways, by vLLM's rule.

Models that mix full attention with windows or with states of fixed size draw all caches from one
pool. Layers of a kind form groups of equally many layers, and a block holds one page of each layer
of a group: a request holds blocks of every group, so a state or a window costs whole pages. Models
whose layers all cache alike need none of this; DeepSeek-V4's compressed caches are packed
(``cache_pages``).

Source: vLLM 0.32.0, ``v1/core/kv_cache_utils.py`` (``_get_kv_cache_groups_uniform_page_size``,
``unify_kv_cache_spec_page_size``), ``v1/kv_cache_interface.py`` and ``platforms/interface.py``
(``_align_hybrid_block_size``). Checked with what engines logged: Qwen3.8-27B holds 1,568 tokens a
block (one device, fp8); its token counts on one and two RTX 5090 are whole numbers of these blocks;
Gemma 4 31B with 32,768 tokens a step needs 70.79 GiB for 262,144 tokens, and 45.79 before 0.26
(vllm#49878).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from recipe_core.base.arrays import Float
from recipe_core.engines.memory import CompressedPools
from recipe_core.models.attention import STATE_VALUE_BYTES, CompressedAttention

# What pages of the fp8 layout are padded to.
POOL_ALIGNMENT_BYTES = 576
# States that a page of windows has of entries that overlap.
OVERLAPPING_ROWS = 8
# Requests more that states are reserved for: one, a ring, and a row that is rounded up.
SPARE = 3
# How many requests a server runs that is not told: so many times its tokens over the longest
# context, between these.
LEAST_REQUESTS, MOST_REQUESTS, REQUESTS_PER_CONTEXT = 2048, 4096, 512


@dataclass(frozen=True, slots=True)
class Load:
    """The load that sizes pools: requests of a rank, tokens of a step, longest context, per case.

    ``knows_requests``: whether the server is told how many requests run. ``cache_bytes``: what a
    rank has for caches.
    """

    requests: Float
    step_tokens: Float
    context: Float
    cache_bytes: Float
    knows_requests: bool


@dataclass(frozen=True, slots=True)
class CachePools:
    """Bytes of a token of the cache over some layers, and of what is reserved; one per case.

    ``window_tokens``: of the window's pool that a request takes, 0 where that pool is reserved for
    every request; ``window_share``: of the cache's tokens that the window's pool has.
    """

    page_tokens: int
    token_bytes: float
    fixed_bytes: Float
    window_tokens: int
    window_share: float

    @property
    def block_bytes(self) -> float:
        """Bytes of a page."""
        return self.page_tokens * self.token_bytes

    def request_bytes(self, context: Float, _in_flight: Float | float = 1.0) -> Float:
        """Bytes that one request takes of what grows with the cache (one per case)."""
        tokens = np.ceil(context / self.page_tokens) * self.page_tokens
        if self.window_tokens:  # it may want more of its windows than of its entries
            tokens = np.maximum(tokens, self.window_tokens / self.window_share)
        return np.asarray(tokens * self.token_bytes)


def compressed_cache_pools(
    layers: Layers, value_bytes: float, rules: CompressedPools, load: Load
) -> CachePools:
    """The pools of ``layers``, each with its count, at ``value_bytes`` a cached value."""
    page, window = rules.page_tokens, max(attention.local for attention, _ in layers)
    growing, window_bytes, state_bytes = 0.0, 0.0, 0.0
    for attention, count in layers:
        entry_bytes = attention.entry_bytes(value_bytes)
        window_bytes += count * _padded_row_bytes(page, entry_bytes, value_bytes)
        if not attention.ratio:
            continue
        entries = page // attention.ratio
        growing += count * _padded_row_bytes(entries, entry_bytes, value_bytes) / attention.ratio
        if attention.index_heads:
            growing += count * attention.index_entry_bytes / attention.ratio
            values = attention.state_values_per_token + attention.index_state_values_per_token
            window_bytes += count * OVERLAPPING_ROWS / page * values * STATE_VALUE_BYTES
        else:
            values = attention.state_tokens * attention.state_values_per_token
            state_bytes += count * values * STATE_VALUE_BYTES
    # a window, what is freed late, a page to be freed at, and one to write to
    per_request = window + rules.freed_after_tokens + 2 * page
    if load.knows_requests:
        window_slots = rules.kept_windows * load.requests * (window + page)
        slots = per_request * load.requests + rules.steps * load.step_tokens + page + window_slots
        fixed = slots * window_bytes + (load.requests + SPARE) * state_bytes
        return CachePools(page, growing, fixed, 0, 1.0)
    token_bytes = growing + rules.window_share * window_bytes
    contexts = np.maximum(load.cache_bytes, 0.0) / token_bytes / load.context * REQUESTS_PER_CONTEXT
    requests = np.clip(np.floor(contexts), LEAST_REQUESTS, MOST_REQUESTS)
    return CachePools(
        page, token_bytes, (requests + SPARE) * state_bytes, per_request, rules.window_share
    )


def _padded_row_bytes(rows: int, row_bytes: float, value_bytes: float) -> float:
    """Bytes of a row with its part of the padding of a page."""
    if value_bytes >= 2:
        return row_bytes
    return math.ceil(rows * row_bytes / POOL_ALIGNMENT_BYTES) * POOL_ALIGNMENT_BYTES / rows


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


@dataclass(frozen=True, slots=True)
class CacheKind:
    """Layers that cache alike: ``layers`` of the model, of which a rank has ``rank_layers``.

    token_bytes: per layer and token on a rank (0 for states); window: tokens that a layer sees
    (None: all); state_bytes: per layer and request on a rank. One number per case.
    """

    layers: int
    rank_layers: int
    token_bytes: Float
    state_bytes: Float
    window: int | None = None


@dataclass(frozen=True, slots=True)
class PageRules:
    """The rules that size pages: as ``engines.memory.CacheGroups``, and tokens of a plain block.

    shards: ranks that share the tokens of a block (context parallelism).
    """

    block_tokens: Float
    page_tokens: int
    state_blocks: Float
    shards: Float


@dataclass(frozen=True, slots=True)
class Grouped:
    """Blocks that a request holds of a shared pool: ``block_bytes`` each; one number per case.

    ``full``: tokens of a page and groups of layers that see everything; ``windows``: with their
    window; ``states``: blocks of states. ``groups``: of all layers; ``page_tokens``: the fewest
    tokens of a page.
    """

    block_bytes: Float
    full: tuple[tuple[Float, int], ...]
    windows: tuple[tuple[Float, int, int], ...]
    states: Float
    groups: int
    page_tokens: Float

    def evenly_tokens(self, pool_bytes: Float | float) -> Float:
        """Tokens of a pool whose blocks were shared out evenly to the groups, window or not."""
        blocks = np.floor(pool_bytes / self.block_bytes)
        return np.asarray(np.floor(blocks / self.groups) * self.page_tokens, dtype=np.float64)

    def request_bytes(self, context: Float, in_flight: Float | float = 1.0) -> Float:
        """Bytes of one request whose newest ``in_flight`` tokens are still being computed."""
        blocks = self.states + np.zeros_like(context)
        for tokens, groups in self.full:
            blocks = blocks + groups * np.ceil(context / tokens)
        for tokens, groups, window in self.windows:
            # one block more: a window may start inside a block
            window_tokens = np.minimum(window - 1 + in_flight, context)
            blocks = blocks + groups * (np.ceil(window_tokens / tokens) + 1)
        return blocks * self.block_bytes


def layers_per_group(layers: Sequence[int]) -> int:
    """Layers of a group: those of the rarest kind, or of the commonest if it has few more."""
    fewest, largest = min(layers), max(layers)
    return largest if largest < 1.5 * fewest else fewest


def group_cache_blocks(kinds: Sequence[CacheKind], rules: PageRules) -> Grouped:
    """The shared blocks of several kinds of layers on a rank."""
    size = layers_per_group([kind.layers for kind in kinds])
    counts = [-(-kind.layers // size) for kind in kinds]
    # layers of a kind are dealt out to its groups, so that stages of a pipeline get equally many
    deepest = max(-(-kind.rank_layers // count) for kind, count in zip(kinds, counts, strict=True))
    tokens = _page_tokens(kinds, rules)
    page = np.max([tokens * kind.token_bytes for kind in kinds], axis=0)
    page = np.maximum(page, np.max([kind.state_bytes for kind in kinds], axis=0))
    full, windows, states = [], [], np.zeros_like(page)
    fewest, groups = np.full_like(page, np.inf), 0
    for kind, count in zip(kinds, counts, strict=True):
        if not kind.rank_layers:
            continue
        groups += count
        if not kind.token_bytes.any():
            states = states + count * rules.state_blocks
            continue
        page_bytes = tokens * kind.token_bytes
        # a smaller page holds more tokens where it goes into the largest, else it is padded
        fits = np.where(page % page_bytes == 0, page // page_bytes, 1.0)
        fewest = np.minimum(fewest, tokens * fits)
        if kind.window is None:
            full.append((tokens * fits * rules.shards, count))
        else:
            windows.append((tokens * fits, count, kind.window))
    return Grouped(deepest * page, tuple(full), tuple(windows), states, groups, fewest)


def _page_tokens(kinds: Sequence[CacheKind], rules: PageRules) -> Float:
    """Tokens of a page: a block's, or as many as a state fits into."""
    state = np.max([kind.state_bytes for kind in kinds], axis=0)
    token = np.max([kind.token_bytes for kind in kinds], axis=0)
    step = np.maximum(rules.page_tokens, rules.block_tokens)
    pages = np.ceil(state / np.maximum(step * token, 1.0))
    tokens: Float = np.maximum(rules.block_tokens, step * pages)
    return tokens
