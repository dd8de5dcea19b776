"""Cache of one request on a rank: tokens of each kind of layer, and states of constant size."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from recipe_core.base.arrays import Float, Int, add
from recipe_core.engines.memory import CompressedPools
from recipe_core.engines.release import release_key
from recipe_core.estimates.columns.serving import Cases, Setting
from recipe_core.estimates.serving.cache_blocks import (
    CacheKind,
    CachePools,
    Grouped,
    Load,
    Packing,
    PageRules,
    compressed_cache_pools,
    group_cache_blocks,
    pack_caches,
)
from recipe_core.models.attention import GroupedAttention
from recipe_core.models.spec import Attention, CompressedAttention, LatentAttention, Layer
from recipe_core.models.tensors import bytes_per_value

# Layers and how many of each.
Counted = tuple[tuple[Layer, int | Float], ...]


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


def cached_tokens(layer: Layer, context: Float, block_tokens: Float) -> Float:
    """Tokens of a request that a layer caches, in whole blocks (one per case).

    All of them, or its window and the block that slides out of it.
    """
    tokens = np.ceil(context / block_tokens) * block_tokens
    window = layer.attention.window if layer.attention is not None else None
    if window is None:
        return tokens
    return np.minimum(tokens, (np.ceil((window - 1) / block_tokens) + 1) * block_tokens)


def context_bytes(setting: Setting, layers: Counted, cases: Cases, context: Float) -> Float:
    """Bytes of cache and state of one request over these layers on one rank (one per case)."""
    tp, shared = cases.tp, shared_blocks(setting, layers, cases)
    parts = [
        n
        * (
            kv_token_bytes(setting, layer.attention, tp)
            * cached_tokens(layer, context, cases.block_tokens)
            / cases.cp
            + request_state_bytes(setting, layer.attention, tp)
        )
        for layer, n in layers
        if shared is None or not isinstance(n, int)
    ]
    if shared is not None:
        parts.append(shared.request_bytes(context))
    return add(parts) if parts else np.zeros(len(cases))


Shared = Packing | Grouped | CachePools


def shares_blocks(setting: Setting) -> bool:
    """Return whether layers of this model that cache in different ways share blocks of one pool."""
    kinds = {
        kind for layer, _ in setting.model.kinds if (kind := _layer_cache_kind(layer)) is not None
    }
    if any(isinstance(layer.attention, CompressedAttention) for layer, _ in setting.model.kinds):
        return True
    windows = {window for _, window, _ in kinds}
    return setting.engine.memory.groups is not None and len(windows) > 1


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


def _layer_cache_kind(layer: Layer) -> tuple[object, int | None, bool] | None:
    """Return what layers that cache alike have in common; None for one that caches nothing."""
    a = layer.attention
    if a is None or not (a.kv_values_per_head or a.state_values):
        return None
    if not a.kv_values_per_head:
        return a.state_values, -1, True
    return (a.kv_heads, a.kv_values_per_head), a.window, False


def shared_blocks(
    setting: Setting, layers: Counted, cases: Cases, pool_bytes: Float | None = None
) -> Shared | None:
    """The blocks that these layers share; None where each caches by itself.

    Draft layers, whose number differs by case, share none. ``pool_bytes``: what a rank has for
    caches, where it is known already; left out, its whole share of the device.
    """
    counted = tuple((layer, n) for layer, n in layers if isinstance(n, int))
    if not counted or not shares_blocks(setting):
        return None
    compressed = [
        (layer.attention, n)
        for layer, n in counted
        if isinstance(layer.attention, CompressedAttention)
    ]
    if compressed:
        counts: dict[CompressedAttention, int] = {}
        for attention, n in compressed:
            counts[attention] = counts.get(attention, 0) + n
        value_bytes, layer_counts = bytes_per_value(setting.kv_dtype), tuple(counts.items())
        if (rules := pool_rules(setting)) is not None:
            return compressed_cache_pools(
                layer_counts, value_bytes, rules, _pool_load(setting, cases, pool_bytes)
            )
        return pack_caches(layer_counts, value_bytes)
    return _grouped_blocks(setting, counted, cases)


def pool_rules(setting: Setting) -> CompressedPools | None:
    """Return the rules of the engine's release for pools of compressed caches, if it has any."""
    rules, engine = setting.engine.memory.compressed_pools, setting.engine
    if rules is None or (engine.as_of or engine.version) != rules.release:
        return None
    return rules if setting.cluster.device.runtime in rules.runtimes else None


def _pool_load(setting: Setting, cases: Cases, pool_bytes: Float | None) -> Load:
    share = setting.cluster.device.usable_memory_bytes * cases.memory_fraction
    return Load(
        cases.max_num_seqs,
        cases.max_batched_tokens,
        cases.max_context,
        np.asarray(share, dtype=np.float64) if pool_bytes is None else pool_bytes,
        not setting.effects.sequences_open,
    )


def _grouped_blocks(
    setting: Setting, layers: Sequence[tuple[Layer, int]], cases: Cases
) -> Grouped | None:
    rules = setting.engine.memory.groups
    if rules is None:
        return None
    first: dict[object, Layer] = {}
    model_counts: Counter[object] = Counter()
    rank_counts: Counter[object] = Counter()
    for layer, n in setting.model.kinds:
        if (key := _layer_cache_kind(layer)) is not None:
            first.setdefault(key, layer)
            model_counts[key] += n
    for layer, n in layers:
        if (key := _layer_cache_kind(layer)) is not None:
            rank_counts[key] += n
    kinds = [
        CacheKind(
            model_counts[key],
            rank_counts[key],
            kv_token_bytes(setting, layer.attention, cases.tp),
            request_state_bytes(setting, layer.attention, cases.tp),
            layer.attention.window if layer.attention else None,
        )
        for key, layer in first.items()
    ]
    latent = any(isinstance(layer.attention, LatentAttention) for layer in first.values())
    sizes = PageRules(
        cases.block_tokens,
        rules.latent_page_tokens if latent else rules.page_tokens,
        rules.state_blocks + cases.draft_tokens,
        cases.cp.astype(float),
    )
    return group_cache_blocks(kinds, sizes)


def in_flight_bytes(
    setting: Setting,
    layers: Counted,
    cases: Cases,
    context: Float,
    pool_bytes: Float | None = None,
) -> Float:
    """Bytes that steps in progress add to the windows of shared blocks, for all requests.

    Blocks that slide out of a window are freed after their step, and ``pp + 1`` steps overlap: each
    may hold a chunk of ``max_batched_tokens``. Until 0.25 they were freed when the step was
    scheduled, so one chunk counted. Source: ``max_in_flight_tokens`` in vLLM's ``config/vllm.py``,
    charged by ``SlidingWindowSpec.max_admission_blocks_per_request`` (vllm#47728, in 0.26). The
    compressed caches of DeepSeek-V4 have blocks of four tokens, so that a chunk costs gigabytes
    (vllm#54703, vllm#51041). SGLang's pools of DeepSeek-V4 that hold no tokens of the cache count
    here too. Zero for other engines and caches.
    """
    shared = shared_blocks(setting, layers, cases, pool_bytes)
    rules = setting.engine.memory.groups
    if isinstance(shared, CachePools):
        return shared.fixed_bytes
    if shared is None or rules is None:
        return np.zeros(len(cases))
    steps = cases.pp + 1 if rules.overlaps_steps else 1
    in_flight = np.asarray(steps * cases.max_batched_tokens, dtype=np.float64)
    return shared.request_bytes(context, in_flight) - shared.request_bytes(context)


def block_bytes(setting: Setting, layers: Counted, cases: Cases) -> Float:
    """Bytes of a block of the pool over these layers: shared, or of all layers (one per case)."""
    shared = shared_blocks(setting, layers, cases)
    if shared is not None:
        return np.zeros(len(cases)) + shared.block_bytes
    token_bytes = np.zeros(len(cases))
    for layer, n in layers:
        token_bytes = token_bytes + n * kv_token_bytes(setting, layer.attention, cases.tp)
    return token_bytes * cases.block_tokens
