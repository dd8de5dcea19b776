"""Caches of layers on a rank: bytes of a token, of a state, and the blocks that layers share.

Models that mix full attention with windows or with states of fixed size draw all caches from one
pool of equal blocks, by vLLM's rule. Layers of a kind form groups of equally many layers, and a
block holds one page of each layer of a group: a request holds blocks of every group, so a state or
a window costs whole pages. The compressed caches of DeepSeek-V4 are packed; SGLang keeps them in
pools of its own. Models whose layers all cache alike need none of this.

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

from recipe_core.base.arrays import Float, Int
from recipe_core.engines.memory import CompressedPools
from recipe_core.engines.release import release_key
from recipe_core.estimates.columns.serving import Cases, Setting
from recipe_core.models.attention import STATE_VALUE_BYTES, GroupedAttention
from recipe_core.models.spec import Attention, CompressedAttention, LatentAttention, Layer
from recipe_core.models.tensors import bytes_per_value

# Layers and how many of each.
Counted = tuple[tuple[Layer, int | Float], ...]
Compressed = tuple[tuple[CompressedAttention, int], ...]

# What pages of SGLang's fp8 layout are padded to.
POOL_ALIGNMENT_BYTES = 576
# States that a page of windows has of entries that overlap.
OVERLAPPING_ROWS = 8
# Requests more that states are reserved for: one, a ring, and a row that is rounded up.
SPARE = 3
# How many requests a server runs that is not told: so many times its tokens over the longest
# context, between these.
LEAST_REQUESTS, MOST_REQUESTS, REQUESTS_PER_CONTEXT = 2048, 4096, 512
# Tokens of a block of packed caches, by what it holds, and what its pages are padded to.
ENTRY_BLOCK_TOKENS, WINDOW_BLOCK_TOKENS = 256, 64
OVERLAPPING_STATE_BLOCK_TOKENS, STATE_BLOCK_TOKENS = 4, 8
FP8_ALIGNMENT_BYTES, ALIGNMENT_BYTES = 576, 512


def kv_token_bytes(setting: Setting, attention: Attention | None, tp: Int | Float) -> Float:
    """Cached bytes per token and layer on one rank (one per case).

    Tensor parallelism splits KV heads until one is left; it never splits a latent or compressed
    past.
    """
    if attention is None or attention.kv_values_per_head == 0 or not setting.caches:
        return np.zeros(len(tp))
    if isinstance(attention, CompressedAttention):
        return np.full(len(tp), attention.token_bytes(bytes_per_value(setting.kv_dtype)))
    heads = np.ceil(attention.kv_heads / np.minimum(tp, attention.kv_heads))
    index = 0.0
    if isinstance(attention, LatentAttention | GroupedAttention):
        index = attention.index_bytes_per_token
    return heads * attention.kv_values_per_head * bytes_per_value(setting.kv_dtype) + index


def request_state_bytes(setting: Setting, attention: Attention | None, tp: Int | Float) -> Float:
    """Bytes per request and layer on one rank whatever the context (one per case).

    States of linear attention, and the window beside a compressed past.
    """
    if attention is None or attention.state_values == 0:
        return np.zeros(len(tp))
    if isinstance(attention, CompressedAttention):
        return np.full(len(tp), attention.sequence_bytes(bytes_per_value(setting.kv_dtype)))
    return (
        attention.state_values * (attention.state_bytes_per_value or setting.activation_bytes) / tp
    )


@dataclass(frozen=True, slots=True)
class CacheGroup:
    """Layers that draw equal blocks from a pool, ``count`` times.

    ``tokens``: of a block (one per case where an array). ``window``: the last tokens that are kept;
    None: all.
    """

    tokens: Float | int
    window: int | None
    count: int

    def blocks(self, context: Float, in_flight: Float | float) -> Float:
        """Blocks of one request whose newest ``in_flight`` tokens are still being computed."""
        if self.window is None:
            return np.asarray(self.count * np.ceil(context / self.tokens))
        # one block more: a window may start inside a block
        window_tokens = np.minimum(self.window - 1 + in_flight, context)
        return np.asarray(self.count * (np.ceil(window_tokens / self.tokens) + 1))


@dataclass(frozen=True, slots=True)
class SharedBlocks:
    """A pool that layers share: blocks of ``block_bytes`` (one per case where arrays).

    ``state_blocks``: that a request holds whatever its context; ``least_bytes``: that it takes at
    least. ``fixed_bytes``: reserved beside the blocks for all requests; None where blocks hold
    everything. ``layer_groups``: of all layers, and ``page_tokens`` the fewest tokens of a page: 0
    of both where caches are packed, so that no page is of one kind.
    """

    block_bytes: Float | float
    groups: tuple[CacheGroup, ...]
    state_blocks: Float | float = 0.0
    least_bytes: float = 0.0
    fixed_bytes: Float | None = None
    layer_groups: int = 0
    page_tokens: Float | float = 0.0

    def request_bytes(self, context: Float, in_flight: Float | float = 1.0) -> Float:
        """Bytes of one request whose newest ``in_flight`` tokens are still being computed."""
        blocks = self.state_blocks + np.zeros_like(context)
        for group in self.groups:
            blocks = blocks + group.blocks(context, in_flight)
        return np.asarray(np.maximum(blocks * self.block_bytes, self.least_bytes))


def shares_blocks(setting: Setting) -> bool:
    """Return whether layers of this model that cache in different ways share blocks of one pool."""
    mixers = [layer.attention for layer, _ in setting.model.kinds]
    if any(isinstance(mixer, CompressedAttention) for mixer in mixers):
        return True
    windows = {kind[1] for mixer in mixers if (kind := _cache_kind(mixer)) is not None}
    return setting.engine.memory.groups is not None and len(windows) > 1


def _cache_kind(a: Attention | None) -> tuple[object, int | None] | None:
    """Return what layers that cache alike have in common; None for one that caches nothing."""
    if a is None or not (a.kv_values_per_head or a.state_values):
        return None
    if not a.kv_values_per_head:
        return a.state_values, -1
    return (a.kv_heads, a.kv_values_per_head), a.window


def shared_blocks(
    setting: Setting, layers: Counted, cases: Cases, pool_bytes: Float | None = None
) -> SharedBlocks | None:
    """The blocks that these layers share; None where each caches by itself.

    Draft layers, whose number differs by case, share none. ``pool_bytes``: what a rank has for
    caches, where it is known already; left out, its whole share of the device.
    """
    counted = [(layer.attention, n) for layer, n in layers if isinstance(n, int)]
    if not counted or not shares_blocks(setting):
        return None
    counts: Counter[CompressedAttention] = Counter()
    for attention, n in counted:
        if isinstance(attention, CompressedAttention):
            counts[attention] += n
    if not counts:
        return _group_layers(setting, counted, cases)
    compressed, rules = tuple(counts.items()), pool_rules(setting)
    if rules is None:
        return pack_caches(compressed, bytes_per_value(setting.kv_dtype))
    if pool_bytes is None:
        share = setting.cluster.device.usable_memory_bytes * cases.memory_fraction
        pool_bytes = np.asarray(share, dtype=np.float64)
    return _compressed_pools(setting, compressed, cases, rules, pool_bytes)


def pool_rules(setting: Setting) -> CompressedPools | None:
    """Return the rules of the engine's release for pools of compressed caches, if it has any."""
    rules, engine = setting.engine.memory.compressed_pools, setting.engine
    if rules is None or (engine.as_of or engine.version) != rules.release:
        return None
    return rules if setting.cluster.device.runtime in rules.runtimes else None


def assumed_layout(setting: Setting) -> str | None:
    """Say why the engine's layout of caches of several kinds is unknown; None where it is not."""
    engine, groups = setting.engine, setting.engine.memory.groups
    if not setting.caches or not shares_blocks(setting):
        return None
    if groups is None:
        if pool_rules(setting) is not None:
            return None
        return (
            f"{engine.title} keeps windows, compressed parts and states in pools of its own; they "
            "are counted as vLLM packs them, and the cache may be several times smaller."
        )
    if groups.since and engine.as_of and release_key(engine.as_of) < release_key(groups.since):
        return (
            f"How {engine.title} {engine.as_of} lays out caches of several kinds is not known "
            f"(counted as from {groups.since} on): the cache may be several times smaller."
        )
    return None


def _compressed_pools(
    setting: Setting, layers: Compressed, cases: Cases, rules: CompressedPools, pool_bytes: Float
) -> SharedBlocks:
    """The pools of an engine that reserves windows and states apart from entries."""
    value_bytes = bytes_per_value(setting.kv_dtype)
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
    groups = (CacheGroup(page, None, 1),)
    if not setting.effects.sequences_open:  # the server is told how many requests run
        requests = cases.max_num_seqs
        window_slots = rules.kept_windows * requests * (window + page)
        steps = rules.steps * cases.max_batched_tokens
        slots = per_request * requests + steps + page + window_slots
        fixed = slots * window_bytes + (requests + SPARE) * state_bytes
        return SharedBlocks(page * growing, groups, fixed_bytes=fixed)
    # a request may want more of its windows than of its entries
    token_bytes = growing + rules.window_share * window_bytes
    least_bytes = per_request / rules.window_share * token_bytes
    contexts = np.maximum(pool_bytes, 0.0) / token_bytes / cases.max_context * REQUESTS_PER_CONTEXT
    requests = np.clip(np.floor(contexts), LEAST_REQUESTS, MOST_REQUESTS)
    fixed = (requests + SPARE) * state_bytes
    return SharedBlocks(page * token_bytes, groups, least_bytes=least_bytes, fixed_bytes=fixed)


def _padded_row_bytes(rows: int, row_bytes: float, value_bytes: float) -> float:
    """Bytes of a row with its part of the padding of a page."""
    if value_bytes >= 2:
        return row_bytes
    return math.ceil(rows * row_bytes / POOL_ALIGNMENT_BYTES) * POOL_ALIGNMENT_BYTES / rows


@cache
def pack_caches(layers: Compressed, value_bytes: float) -> SharedBlocks:
    """Packs the caches of ``layers`` (each with its count) at ``value_bytes`` a cached value."""
    pages: dict[tuple[int, int | None], Counter[int]] = {}
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
    return SharedBlocks(
        float(widest), tuple(CacheGroup(*group, count) for group, count in splits.items())
    )


def _layer_caches(
    a: CompressedAttention, value_bytes: float
) -> Iterable[tuple[tuple[int, int | None], int]]:
    """The caches of one layer: tokens of a block, window, and bytes of a page."""
    alignment = ALIGNMENT_BYTES if value_bytes >= 2 else FP8_ALIGNMENT_BYTES

    def page(rows: float, row_bytes: float) -> int:
        return math.ceil(rows * row_bytes / alignment) * alignment

    entry_bytes = a.entry_bytes(value_bytes)
    yield (WINDOW_BLOCK_TOKENS, a.local), page(WINDOW_BLOCK_TOKENS, entry_bytes)
    if not a.ratio:
        return
    entries = ENTRY_BLOCK_TOKENS / a.ratio
    tokens = OVERLAPPING_STATE_BLOCK_TOKENS if a.series > 1 else STATE_BLOCK_TOKENS
    states = tokens, a.state_tokens
    yield (ENTRY_BLOCK_TOKENS, None), page(entries, entry_bytes)
    yield states, page(tokens, a.state_values_per_token * STATE_VALUE_BYTES)
    if a.index_heads:
        yield (ENTRY_BLOCK_TOKENS, None), page(entries, a.index_entry_bytes)
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


def layers_per_group(layers: Sequence[int]) -> int:
    """Layers of a group: those of the rarest kind, or of the commonest if it has few more."""
    fewest, largest = min(layers), max(layers)
    return largest if largest < 1.5 * fewest else fewest


def _group_layers(
    setting: Setting, layers: Sequence[tuple[Attention | None, int]], cases: Cases
) -> SharedBlocks | None:
    """The blocks of groups of equally many layers, each group of one kind."""
    rules = setting.engine.memory.groups
    if rules is None:
        return None
    in_model = [(layer.attention, n) for layer, n in setting.model.kinds]
    kinds = {key: a for a, _ in in_model if a and (key := _cache_kind(a)) is not None}
    model_layers, rank_layers = _count_kinds(in_model), _count_kinds(layers)
    size = layers_per_group([model_layers[key] for key in kinds])
    counts = {key: -(-model_layers[key] // size) for key in kinds}
    # layers of a kind are dealt out to its groups, so that stages of a pipeline get equally many
    deepest = max(-(-rank_layers[key] // counts[key]) for key in kinds)
    token_bytes = {key: kv_token_bytes(setting, a, cases.tp) for key, a in kinds.items()}
    state = np.max([request_state_bytes(setting, a, cases.tp) for a in kinds.values()], axis=0)
    # tokens of a page: a block's, or as many as a state fits into
    latent = any(isinstance(a, LatentAttention) for a in kinds.values())
    page_tokens = rules.latent_page_tokens if latent else rules.page_tokens
    step = np.maximum(page_tokens, cases.block_tokens)
    widest = np.max([*token_bytes.values()], axis=0)
    tokens = np.maximum(cases.block_tokens, step * np.ceil(state / np.maximum(step * widest, 1.0)))
    page = np.maximum(tokens * widest, state)
    groups, states = [], np.zeros_like(page)
    fewest, layer_groups = np.full_like(page, np.inf), 0
    for key, a in kinds.items():
        if not rank_layers[key]:
            continue
        layer_groups += counts[key]
        if not token_bytes[key].any():
            states = states + counts[key] * (rules.state_blocks + cases.draft_tokens)
            continue
        page_bytes = tokens * token_bytes[key]
        # a smaller page holds more tokens where it goes into the largest, else it is padded
        tokens_held = tokens * np.where(page % page_bytes == 0, page // page_bytes, 1.0)
        fewest = np.minimum(fewest, tokens_held)
        # ranks share the tokens of a block that keeps everything
        tokens_held = tokens_held * cases.cp if a.window is None else tokens_held
        groups.append(CacheGroup(tokens_held, a.window, counts[key]))
    return SharedBlocks(
        deepest * page,
        tuple(groups),
        states,
        layer_groups=layer_groups,
        page_tokens=fewest,
    )


def _count_kinds(layers: Iterable[tuple[Attention | None, int]]) -> Counter[object]:
    counts: Counter[object] = Counter()
    for attention, n in layers:
        if (key := _cache_kind(attention)) is not None:
            counts[key] += n
    return counts
