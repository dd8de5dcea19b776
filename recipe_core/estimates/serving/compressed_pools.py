"""Pools of a compressed cache (DeepSeek-V4), by SGLang's rule.

Windows, entries and the states of unfinished entries have a pool each. Entries grow with the tokens
of the cache. Windows and the states of entries with an indexer (which lie beside the pages of
windows) are reserved for so many requests where the server is told how many run, else as a tenth of
the cache's tokens. States of the heavily compressed entries are reserved for every request that may
run, 2 MiB a layer: gigabytes before a token is cached. Tensor parallelism divides none of it.

Source: SGLang 0.5.23, ``srt/model_executor/pool_configurator.py`` (``DSV4PoolConfigurator``,
``compute_swa_request_cap``), ``kernels/ops/attention/dsv4/kv_layout.py``, ``srt/environ.py``. ROCm
has another layout, which is not counted here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from recipe_core.base.arrays import Float
from recipe_core.engines.memory import CompressedPools
from recipe_core.models.compressed import STATE_VALUE_BYTES, CompressedAttention

# What pages of the fp8 layout are padded to.
ALIGNMENT_BYTES = 576
# States that a page of windows has of entries that overlap.
OVERLAPPING_ROWS = 8
# Requests more that states are reserved for: one, a ring, and a row that is rounded up.
SPARE = 3
# How many requests a server runs that is not told: so many times its tokens over the longest
# context, between these.
LEAST_REQUESTS, MOST_REQUESTS, REQUESTS_PER_CONTEXT = 2048, 4096, 512

Layers = tuple[tuple[CompressedAttention, int], ...]


@dataclass(frozen=True, slots=True)
class Load:
    """What sizes pools: requests of a rank, tokens of a step, the longest context; one per case.

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
    return math.ceil(rows * row_bytes / ALIGNMENT_BYTES) * ALIGNMENT_BYTES / rows
