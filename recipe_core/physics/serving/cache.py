"""What a request keeps on a rank: cached tokens of each kind of layer, and states that do not grow with the context."""

from __future__ import annotations

import numpy as np

from recipe_core.base.arrays import Float, Int, add
from recipe_core.model.dtypes import bytes_per_value
from recipe_core.model.spec import Attention, CompressedAttention, LatentAttention, Layer
from recipe_core.physics.serving.cache_pages import Packing, packing
from recipe_core.space.serving import Cases, Setting

Counted = tuple[tuple[Layer, int | Float], ...]
"""Layers and how often each is there."""


def kv_token_bytes(setting: Setting, attention: Attention | None, tp: Int | Float) -> Float:
    """Cached bytes per token and layer on one rank: KV heads are cut by tp until one is left; a latent or compressed past never is."""
    if attention is None or attention.kv_values_per_head == 0:
        return np.zeros(len(tp))
    if isinstance(attention, CompressedAttention):
        return np.full(len(tp), attention.token_bytes(bytes_per_value(setting.kv_dtype)))
    heads = np.ceil(attention.kv_heads / np.minimum(tp, attention.kv_heads))
    index = attention.index_bytes_per_token if isinstance(attention, LatentAttention) else 0.0
    return heads * attention.kv_values_per_head * bytes_per_value(setting.kv_dtype) + index


def state_bytes(setting: Setting, attention: Attention | None, tp: Int | Float) -> Float:
    """Bytes per request and layer on one rank that do not grow with the context: states, the window beside a compressed past."""
    if attention is None or attention.state_values == 0:
        return np.zeros(len(tp))
    if isinstance(attention, CompressedAttention):
        return np.full(len(tp), attention.sequence_bytes(bytes_per_value(setting.kv_dtype)))
    return (
        attention.state_values * (attention.state_bytes_per_value or setting.activation_bytes) / tp
    )


def cached_tokens(layer: Layer, context: Float, block_tokens: Float) -> Float:
    """Tokens a layer keeps of a request: all, or its window (and the block that slides out), in whole blocks."""
    kept = np.ceil(context / block_tokens) * block_tokens
    window = layer.attention.window if layer.attention is not None else None
    if window is None:
        return kept
    return np.minimum(kept, (np.ceil((window - 1) / block_tokens) + 1) * block_tokens)


def context_bytes(setting: Setting, layers: Counted, cases: Cases, context: Float) -> Float:
    """Cache and state of one request with ``context`` tokens over the given layers on one rank."""
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
    """Whether a layer's cache is packed with others' (draft layers, of which cases differ in number, are counted by themselves)."""
    return isinstance(layer.attention, CompressedAttention) and isinstance(count, int)


def packed_blocks(setting: Setting, layers: Counted) -> Packing | None:
    """How the compressed caches among these layers are kept; None where there are none."""
    found: dict[CompressedAttention, int] = {}
    for layer, n in layers:
        if isinstance(layer.attention, CompressedAttention) and isinstance(n, int):
            found[layer.attention] = found.get(layer.attention, 0) + n
    return packing(tuple(found.items()), bytes_per_value(setting.kv_dtype)) if found else None


def in_flight_bytes(setting: Setting, layers: Counted, cases: Cases, context: Float) -> Float:
    """What the tokens of a step still being computed add to the windows of a compressed cache, once for all requests together.

    vLLM frees what slides out of a window when a step is done, and overlaps steps: one per pipeline stage and one more.
    Source: ``max_in_flight_tokens`` in vLLM's ``config/vllm.py``. Other engines and other caches: nothing is counted.
    """
    packed = packed_blocks(setting, layers)
    if packed is None or not setting.engine.memory.needs_longest:
        return np.zeros(len(cases))
    return packed.request_bytes(
        context, (cases.pp + 1) * cases.max_batched_tokens
    ) - packed.request_bytes(context)
