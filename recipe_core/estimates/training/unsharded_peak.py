"""Activations and loss of frameworks that keep whole parameters, at the larger of two moments.

When the loss is computed all that was saved waits; when the first layer goes back the loss is over,
and that layer is at work (`layer_work`). Where the loss is eager, what a recomputed layer saves
counts beside it all the same: so much is reserved in the published peaks of
https://github.com/AnswerDotAI/fsdp_qlora/blob/main/benchmarks_03_2024.md, which a moment alone
misses by a quarter.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from recipe_core.base.arrays import Float, add
from recipe_core.estimates.columns.training import TrainingCases, TrainingSetting
from recipe_core.estimates.training.activations import (
    BYTES,
    MLP_PARTS,
    boundary_bytes,
    head_gradient_bytes,
    hidden_gradient_bytes,
    in_flight,
    is_eager,
    kept_bytes,
    layer_bytes,
    logit_bytes,
    mlp_bytes,
    on_device,
    saved_bytes,
)
from recipe_core.estimates.training.stages import stage_layer_counts
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


# Bytes a token of a layer, one per case.
LayerBytes = Callable[[TrainingSetting, TrainingCases, Layer], Float]


def loss_or_layer(
    setting: TrainingSetting, cases: TrainingCases, logits: Float
) -> tuple[Float, Float]:
    """Bytes of the loss and of activations at the larger moment, each of shape (cases, stages).

    ``logits``: that exist at once, of that shape.
    """
    count, first, last = stage_layer_counts(setting, cases)
    beside = hidden_gradient_bytes(setting, cases) + head_gradient_bytes(setting, cases)
    loss = logit_bytes(setting, cases)[:, None] * logits + last * beside[:, None]
    # a stage that holds the head alone has no layer
    again, working = (
        np.where(
            count == 0, 0.0, (cases.tokens * _bytes_beyond_saved(setting, cases, size))[:, None]
        )
        for size in (layer_bytes, working_bytes)
    )
    again = np.where(is_eager(setting, cases)[:, None], again, 0.0)
    ends = loss + again > working
    activations = _waiting_activation_bytes(setting, cases, count, first) + np.where(
        ends, again, working
    )
    return np.where(ends, loss, 0.0 * loss), activations


def _bytes_beyond_saved(setting: TrainingSetting, cases: TrainingCases, size: LayerBytes) -> Float:
    """Bytes a token of the largest layer beyond what it saved (one per case)."""
    kinds = [kind for kind, _ in setting.model.kinds]
    more = [size(setting, cases, kind) - saved_bytes(setting, cases, kind) for kind in kinds]
    largest: Float = np.max(more, axis=0)
    return np.maximum(largest, 0.0)


def _waiting_activation_bytes(
    setting: TrainingSetting, cases: TrainingCases, count: Float, first: Float
) -> Float:
    """Bytes that wait for the backward pass in each stage."""
    kinds, layers = setting.model.kinds, len(setting.model.layers)
    saved = add(saved_bytes(setting, cases, kind) * (n / layers) for kind, n in kinds)[:, None]
    per_layer = saved * count + first * boundary_bytes(setting, cases)[:, None]
    per_layer = _of_both_ways(cases, per_layer)
    return cases.tokens[:, None] * on_device(cases, in_flight(cases) * per_layer, saved)


def _of_both_ways(cases: TrainingCases, stage_bytes: Float) -> Float:
    """Bytes of a mean micro-batch in flight, where a pipeline may be fed from both ends.

    Of the p + 1 in flight in stage i p - i belong to it, and i + 1 to the mirrored stage
    (arXiv:2412.19437, figure 5).
    """
    p, stage = cases.pp[:, None], np.arange(stage_bytes.shape[1])[None, :]
    mixed = ((p - stage) * stage_bytes + (stage + 1) * stage_bytes[:, ::-1]) / (p + 1)
    return np.where(cases.has("dualpipe")[:, None], mixed, stage_bytes)


def offloaded_activations(setting: TrainingSetting, cases: TrainingCases) -> Float:
    """Bytes of a micro-batch's layer that travel to the host and back (one per case)."""
    kinds, layers = setting.model.kinds, len(setting.model.layers)
    saved = add(saved_bytes(setting, cases, kind) * (n / layers) for kind, n in kinds)
    return np.where(cases.activation_offload > 0, cases.tokens * saved, 0.0)
