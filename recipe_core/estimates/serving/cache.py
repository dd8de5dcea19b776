"""Cache of one request on a rank, and what an engine logs of its pool.

vLLM's "Maximum concurrency" divides its pool by a request of the longest context with the tokens
that steps in flight may hold in its windows: it charges every request for them, although they are
there once. "GPU KV cache size" is that number times the longest context (``get_kv_cache_capacity``
in ``v1/core/kv_cache_utils.py``). So both are less than what the cache holds where layers with
windows, states or compressed caches share its blocks; elsewhere they are the same. Before 0.21 the
size was that of blocks shared out evenly to the groups of layers (``_report_kv_cache_config`` of
0.20.0), far less: 55 thousand tokens of Gemma 4 31B where 0.21.0 logged 525 (vllm#43308).
"""

from __future__ import annotations

import numpy as np

from recipe_core.base.arrays import Float, add
from recipe_core.engines.release import release_key
from recipe_core.estimates.columns.serving import Cases, Setting
from recipe_core.estimates.serving.cache_blocks import (
    Counted,
    SharedBlocks,
    kv_token_bytes,
    request_state_bytes,
    shared_blocks,
    shares_blocks,
)
from recipe_core.models.spec import Layer

# The first release of vLLM whose size in tokens follows from its number of requests (vllm#40691).
COUNTED_RIGHT = "0.21.0"


def cached_tokens(layer: Layer, context: Float, block_tokens: Float) -> Float:
    """Tokens of a request that a layer caches, in whole blocks (one per case).

    All of them, or its window and the block that slides out of it.
    """
    tokens = np.ceil(context / block_tokens) * block_tokens
    window = layer.attention.window if layer.attention is not None else None
    if window is None:
        return tokens
    return np.minimum(tokens, (np.ceil((window - 1) / block_tokens) + 1) * block_tokens)


def context_bytes(
    setting: Setting,
    layers: Counted,
    cases: Cases,
    context: Float,
    shared: SharedBlocks | None = None,
) -> Float:
    """Bytes of cache and state of one request over these layers on one rank (one per case).

    ``shared``: the blocks that the layers share, where they are made already.
    """
    tp, shared = cases.tp, shared or shared_blocks(setting, layers, cases)
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


def in_flight_bytes(
    setting: Setting,
    layers: Counted,
    cases: Cases,
    context: Float,
    pool_bytes: Float | None = None,
    shared: SharedBlocks | None = None,
) -> Float:
    """Bytes that steps in progress add to the windows of shared blocks, for all requests.

    Blocks that slide out of a window are freed after their step, and ``pp + 1`` steps overlap: each
    may hold a chunk of ``max_batched_tokens``. Until 0.25 they were freed when the step was
    scheduled, so one chunk counted. Source: ``max_in_flight_tokens`` in vLLM's ``config/vllm.py``,
    charged by ``SlidingWindowSpec.max_admission_blocks_per_request`` (vllm#47728, in 0.26). The
    compressed caches of DeepSeek-V4 have blocks of four tokens, so that a chunk costs gigabytes
    (vllm#54703, vllm#51041). SGLang's pools of DeepSeek-V4 that hold no tokens of the cache count
    here too. Zero for other engines and caches. ``shared``: the blocks that the layers share, where
    they are made already.
    """
    shared = shared or shared_blocks(setting, layers, cases, pool_bytes)
    rules = setting.engine.memory.groups
    if shared is not None and shared.fixed_bytes is not None:
        return shared.fixed_bytes
    if shared is None or rules is None:
        return np.zeros(len(cases))
    steps = cases.pp + 1 if rules.overlaps_steps else 1
    in_flight = np.asarray(steps * cases.max_batched_tokens, dtype=np.float64)
    return shared.request_bytes(context, in_flight) - shared.request_bytes(context)


def reserved_tokens(setting: Setting, cases: Cases) -> Float:
    """Tokens of cache that a running request has: what it filled on average, or what it reserves.

    That is its own length, or the longest that the engine accepts; nothing in a static batch.
    """
    use, static = setting.engine.memory, setting.mode == "static"
    if use.whole_contexts and not static:
        return cases.accepted_tokens
    held_tokens = cases.held_tokens
    return cases.input_tokens + (2 * held_tokens if use.reserves and not static else held_tokens)


def block_bytes(setting: Setting, layers: Counted, cases: Cases) -> Float:
    """Bytes of a block of the pool over these layers: shared, or of all layers (one per case)."""
    shared = shared_blocks(setting, layers, cases)
    if shared is not None:
        return np.zeros(len(cases)) + shared.block_bytes
    token_bytes = np.zeros(len(cases))
    for layer, n in layers:
        token_bytes = token_bytes + n * kv_token_bytes(setting, layer.attention, cases.tp)
    return token_bytes * cases.block_tokens


def longest_bytes(setting: Setting, cases: Cases) -> Float:
    """Bytes that a request of the longest context is charged, with what its windows keep."""
    layers, context = setting.model.kinds, cases.accepted_tokens
    cache_bytes = context_bytes(setting, layers, cases, context)
    return cache_bytes + in_flight_bytes(setting, layers, cases, context)


def logged_requests(setting: Setting, cases: Cases, pool_bytes: Float | float) -> Float:
    """The "Maximum concurrency" of a pool: requests of the longest context that it holds."""
    longest, shared = (
        longest_bytes(setting, cases),
        shared_blocks(setting, setting.model.kinds, cases),
    )
    if shared is not None and shared.layer_groups:
        pool_bytes = np.floor(pool_bytes / shared.block_bytes) * shared.block_bytes
    return np.asarray(pool_bytes / longest, dtype=np.float64)


def logged_tokens(setting: Setting, cases: Cases, pool_bytes: Float | float) -> Float | None:
    """The "GPU KV cache size" of a pool, in tokens; None where the release's rule is not known."""
    release = setting.engine.as_of
    if release is None or release_key(release) >= release_key(COUNTED_RIGHT):
        return logged_requests(setting, cases, pool_bytes) * cases.accepted_tokens
    shared = shared_blocks(setting, setting.model.kinds, cases)
    if shared is None or not shared.layer_groups:
        return None
    blocks = np.floor(pool_bytes / shared.block_bytes)
    return np.asarray(np.floor(blocks / shared.layer_groups) * shared.page_tokens)


def logs_less(setting: Setting, cases: Cases) -> bool:
    """Return whether the engine logs other numbers than what its cache holds, and these are known.

    They are not of stages, which share out layers, and of drafts, whose cache is apart.
    """
    alike = bool(np.all(cases.pp == 1)) and not np.any(cases.draft_layers)
    logs_so = setting.engine.memory.groups is not None
    return setting.caches and alike and logs_so and shares_blocks(setting)
