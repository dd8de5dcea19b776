"""What a layer's backward pass holds beyond what its forward pass saved, in bytes a token.

The feed-forward block runs backward first: gradients of gate, up and their product stand beside
what the whole layer saved. Then attention's half: what the block saved is gone, and gradients of
attention's inputs and output are made. FlashAttention sums the gradient of queries in fp32, and of
grouped keys and values first for each query head (Dao, flash-attention 2, ``mha_bwd``). Torch's
context parallelism gathers keys and values of all ranks, and sums gradients in fp32
(``torch/distributed/tensor/experimental/_context_parallel/_attention.py`` of torch 2.13,
``_templated_ring_attention_backward``).
"""

from __future__ import annotations

import numpy as np

from recipe_core.base.arrays import Float, add
from recipe_core.estimates.columns.training import TrainingCases, TrainingSetting
from recipe_core.estimates.training.activations import (
    BYTES,
    MLP_PARTS,
    boundary_bytes,
    kept_bytes,
    layer_bytes,
    mlp_bytes,
)
from recipe_core.models.spec import Attention, GroupedAttention, Layer, LinearAttention

# Gradients inside a feed-forward block at the peak of its backward pass, as a share of what the
# block kept: 6f of 8f bytes a token.
MLP_WORK = 0.75
# Bytes of a value that is summed in fp32.
SUM_BYTES = 4.0
# Bytes of the gradients of a pair of tokens in unfused attention: of its share, of its score.
SCORE_GRADIENTS = 4.0
# Copies of the fp32 gradients of keys and values in a ring: summed, sent, and received.
RING_COPIES = 3.0
_MLP_HALF = MLP_PARTS | {"mlp_norm_input", "mlp_norm_output", "mlp_gathered"}


def working_bytes(setting: TrainingSetting, cases: TrainingCases, layer: Layer) -> Float:
    """Bytes a token of a layer at the peak of its backward pass (one per case).

    With all that it saved; without the gradients of its weights.
    """
    saved, beside = layer_bytes(setting, cases, layer), boundary_bytes(setting, cases)
    block = saved + MLP_WORK * mlp_bytes(setting, cases, layer)
    if setting.framework.mlp_in_place and setting.frozen:
        block = saved + 2 * beside  # the layer's output and its gradient
    if layer.attention is None or isinstance(layer.attention, LinearAttention):
        return block
    parts = kept_bytes(setting, cases, layer)
    half = add(part for name, part in parts.items() if name not in _MLP_HALF)
    # a gradient passes the half by
    return np.maximum(block, half + beside + attention_work(setting, cases, layer.attention))


def attention_work(setting: TrainingSetting, cases: TrainingCases, a: Attention) -> Float:
    """Bytes a token of gradients and buffers in attention's backward pass (one per case)."""
    queries, values = a.heads * a.head_dim / cases.tp, a.heads * a.v_head_dim / cases.tp
    projected = np.maximum(a.kv_heads / cases.tp, 1.0) * (a.head_dim + a.v_head_dim)
    # gradients of output, queries, keys and values
    outside: Float = BYTES * (values + queries + projected)
    if not setting.flash:
        positions = np.minimum(cases.sequence_length, a.window or np.inf)
        scores: Float = SCORE_GRADIENTS * a.heads * positions / cases.tp
        return outside + scores
    grouped = isinstance(a, GroupedAttention) and a.kv_heads < a.heads
    inside = SUM_BYTES * queries + (BYTES * (queries + values) if grouped else 0.0)
    exchange = setting.framework.context_exchange
    if exchange == "ring":
        return outside + inside
    if exchange == "gathered":  # with gradients of all ranks
        return outside + np.where(cases.cp > 1, 2 * BYTES * projected * cases.cp, inside)
    summed = SUM_BYTES * (2 * queries + RING_COPIES * projected)
    gathered = BYTES * projected * (cases.cp + 1)
    return outside + np.where(cases.cp > 1, summed + gathered, inside)
