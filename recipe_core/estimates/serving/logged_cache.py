"""Caches in an estimate: what they hold and find, and what an engine logs of its own.

vLLM's "Maximum concurrency" divides its pool by a request of the longest context with the tokens
that steps in flight may hold in its windows: it charges every request for them, although they are
there once. "GPU KV cache size" is that number times the longest context (``get_kv_cache_capacity``
in ``v1/core/kv_cache_utils.py``). So both are less than what the cache holds where layers with
windows, states or compressed caches share its blocks; elsewhere they are the same. Before 0.21 the
size was that of blocks shared out evenly to the groups of layers (``_report_kv_cache_config`` of
0.20.0), far less: 55 thousand tokens of Gemma 4 31B where 0.21.0 logged 525 (vllm#43308).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from recipe_core.base.arrays import Float
from recipe_core.engines.release import release_key
from recipe_core.estimates.columns.serving import Cases, Setting
from recipe_core.estimates.serving.cache import (
    context_bytes,
    in_flight_bytes,
    shared_blocks,
    shares_blocks,
)
from recipe_core.estimates.serving.cache_blocks import Grouped
from recipe_core.estimates.serving.memory import Memory

if TYPE_CHECKING:
    from recipe_core.estimates.serving.estimates import Estimates


def held_notes(setting: Setting, cases: Cases) -> Iterator[list[str]]:
    """Yield how often each token's cache is held, where tp is more than there are KV heads."""
    cached = [
        a
        for layer, _ in setting.model.kinds
        if (a := layer.attention) is not None and a.kv_values_per_head
    ]
    heads = max((a.kv_heads for a in cached), default=0)
    heads_text = "1 KV head" if heads == 1 else f"{heads} KV heads"
    for tp in cases.tp.tolist():
        yield (
            [f"Each cached token is held {tp // heads} times: {heads_text} over tp {tp}."]
            if heads and tp // heads > 1
            else []
        )


def cache_notes(e: Estimates) -> Iterator[list[str]]:
    """Sentences on the share that each case finds, and where; none without reuse."""
    cached, offload = e.cached, e.setting.offload
    if cached is None:
        yield from ([] for _ in range(len(e)))
        return
    shared = _about_host(e)
    if e.setting.reuse is None:
        shared.append(
            "Without workload.prefix_reuse, tiers below the devices find nothing: only what they "
            "cost is counted."
        )
        yield from (list(shared) for _ in range(len(e)))
        return
    device = cached.device
    columns = (device.seen_tokens, device.hit, cached.hit)
    for free_tokens, device_hit, total_hit in zip(
        *(column.tolist() for column in columns), strict=True
    ):
        whose = "all replicas" if e.setting.reuse.affinity else "a replica"
        out = [
            f"The cache of {whose} has {free_tokens:,.0f} tokens free for reuse: "
            f"{device_hit:.0%} found."
        ]
        if offload is not None and cached.tiers:
            names = " and ".join(cached.tiers)
            out.append(f"With {names}, {total_hit:.0%} of the prompts' tokens are found.")
        yield [*out, *shared]


def _about_host(e: Estimates) -> list[str]:
    """That the host's memory is unknown, where blocks go there."""
    node = e.setting.cluster.device.node
    if e.setting.offload is None or node.host_memory_bytes is not None:
        return []
    return ["The profile does not state the host's memory: check that it holds the blocks."]


# The first release of vLLM whose size in tokens follows from its number of requests (vllm#40691).
COUNTED_RIGHT = "0.21.0"
# What the cache holds over what is logged, from which an estimate says both.
WORTH_SAYING = 1.05


def longest_bytes(setting: Setting, cases: Cases) -> Float:
    """Bytes that a request of the longest context is charged, with what its windows keep."""
    layers, context = setting.model.kinds, cases.max_context
    cache_bytes = context_bytes(setting, layers, cases, context)
    return cache_bytes + in_flight_bytes(setting, layers, cases, context)


def logged_requests(setting: Setting, cases: Cases, pool_bytes: Float | float) -> Float:
    """The "Maximum concurrency" of a pool: requests of the longest context that it holds."""
    longest = longest_bytes(setting, cases)
    shared = shared_blocks(setting, setting.model.kinds, cases)
    if isinstance(shared, Grouped):
        block = shared.block_bytes
        return np.asarray(np.floor(pool_bytes / block) / (longest / block), dtype=np.float64)
    return np.asarray(pool_bytes / longest, dtype=np.float64)


def logged_tokens(setting: Setting, cases: Cases, pool_bytes: Float | float) -> Float | None:
    """The "GPU KV cache size" of a pool, in tokens; None where the release's rule is not known."""
    release = setting.engine.as_of
    if release is None or release_key(release) >= release_key(COUNTED_RIGHT):
        return logged_requests(setting, cases, pool_bytes) * cases.max_context
    shared = shared_blocks(setting, setting.model.kinds, cases)
    return shared.evenly_tokens(pool_bytes) if isinstance(shared, Grouped) else None


def logs_less(setting: Setting, cases: Cases) -> bool:
    """Return whether the engine logs other numbers than what its cache holds, and these are known.

    They are not of stages, which share out layers, and of drafts, whose cache is apart.
    """
    alike = bool(np.all(cases.pp == 1)) and not np.any(cases.draft_layers)
    logs_so = setting.engine.memory.groups is not None
    return setting.caches and alike and logs_so and shares_blocks(setting)


def logged_notes(setting: Setting, cases: Cases, memory: Memory) -> Iterator[list[str]]:
    """Yield what the log of each case will say, where its cache holds clearly more."""
    if not logs_less(setting, cases):
        yield from ([] for _ in range(len(cases)))
        return
    requests = logged_requests(setting, cases, memory.kv_cache_bytes)
    counted = logged_tokens(setting, cases, memory.kv_cache_bytes)
    tokens = np.full(len(cases), np.nan) if counted is None else counted
    logged = np.fmin(tokens, requests * cases.max_context)
    columns = (requests, tokens, logged, memory.kv_cache_tokens, cases.max_context)
    for count, size, logged_size, pool_size, context in zip(
        *(column.tolist() for column in columns), strict=True
    ):
        if pool_size <= logged_size * WORTH_SAYING:
            yield []
            continue
        log_text = f'"Maximum concurrency for {context:,.0f} tokens per request: {count:.2f}x"'
        why = "it charges every request for the tokens in flight"
        if counted is not None:
            log_text = f'"GPU KV cache size: {size:,.0f} tokens" and {log_text}'
            if size < count * context:
                why = "the first shares blocks out evenly, to layers with windows too"
        yield [
            f"{setting.engine.title} will log {log_text}: {why}. "
            f"The cache holds {pool_size:,.0f} tokens."
        ]
