"""Cache of one request on a rank: tokens of each kind of layer, and states of constant size."""

from __future__ import annotations

import numpy as np

from recipe_core.base.arrays import Float, Int, add
from recipe_core.model.dtypes import bytes_per_value
from recipe_core.model.spec import Attention, CompressedAttention, LatentAttention, Layer
from recipe_core.physics.serving.cache_pages import Packing, packing
from recipe_core.space.serving import Cases, Setting

Counted = tuple[tuple[Layer, int | Float], ...]
"""Layers and how many of each."""


def kv_token_bytes(setting: Setting, attention: Attention | None, tp: Int | Float) -> Float:
    """Cached bytes per token and layer on one rank (one per case).

    Tensor parallelism splits KV heads until one is left; it never splits a latent or compressed
    past.
    """
    if attention is None or attention.kv_values_per_head == 0:
        return np.zeros(len(tp))
    if isinstance(attention, CompressedAttention):
        return np.full(len(tp), attention.token_bytes(bytes_per_value(setting.kv_dtype)))
    heads = np.ceil(attention.kv_heads / np.minimum(tp, attention.kv_heads))
    index = attention.index_bytes_per_token if isinstance(attention, LatentAttention) else 0.0
    return heads * attention.kv_values_per_head * bytes_per_value(setting.kv_dtype) + index


def state_bytes(setting: Setting, attention: Attention | None, tp: Int | Float) -> Float:
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
    tp, packed = cases.tp, packed_blocks(setting, layers)
    parts = [
        n
        * (
            kv_token_bytes(setting, layer.attention, tp)
            * cached_tokens(layer, context, cases.block_tokens)
            / cases.cp
            + state_bytes(setting, layer.attention, tp)
        )
        for layer, n in layers
        if packed is None or not _in_blocks(layer, n)
    ]
    if packed is not None:
        parts.append(packed.request_bytes(context))
    return add(parts) if parts else np.zeros(len(cases))


def _in_blocks(layer: Layer, count: int | Float) -> bool:
    """Whether a layer's cache shares blocks. Draft layers, whose number differs by case, do not."""
    return isinstance(layer.attention, CompressedAttention) and isinstance(count, int)


def packed_blocks(setting: Setting, layers: Counted) -> Packing | None:
    """The shared blocks of the compressed caches among these layers; None where there are none."""
    counts: dict[CompressedAttention, int] = {}
    for layer, n in layers:
        if isinstance(layer.attention, CompressedAttention) and isinstance(n, int):
            counts[layer.attention] = counts.get(layer.attention, 0) + n
    return packing(tuple(counts.items()), bytes_per_value(setting.kv_dtype)) if counts else None


def in_flight_bytes(setting: Setting, layers: Counted, cases: Cases, context: Float) -> Float:
    """Bytes that a step in progress adds to the windows of a compressed cache, for all requests.

    vLLM frees what slides out of a window after a step, and overlaps ``pp + 1`` steps. Source:
    ``max_in_flight_tokens`` in vLLM's ``config/vllm.py``. Zero for other engines and caches.
    """
    packed = packed_blocks(setting, layers)
    if packed is None or not setting.engine.memory.needs_longest:
        return np.zeros(len(cases))
    in_flight = (cases.pp + 1) * cases.max_batched_tokens
    return packed.request_bytes(context, in_flight) - packed.request_bytes(context)
