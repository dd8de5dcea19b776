"""Bytes per token that a layer saves for its backward pass, and micro-batches in flight in a stage.

Eager 16-bit layers with flash attention save, by saved-tensors hooks on Llama layers (equal to the
byte),

    8h + 4 n d + 4 k d + 4n + 8f   (+ 8h where norms are not fused and run in fp32)

bytes a token: both norms' inputs and outputs, q and attention's output, k and v, the log-sum of
each head, and gate, up, their product and the activation. Compiled layers save 6f of the 8f:
torch's partitioner recomputes the activation (counted in the forward graph of
``min_cut_rematerialization_partition``, torch 2.13). Tensor parallelism divides all but 8h,
sequence parallelism those too (Korthikanti et al., arXiv:2205.05198, section 4).
"""

from __future__ import annotations

import numpy as np

from recipe_core.base.arrays import Float
from recipe_core.model.spec import (
    Attention,
    DenseMlp,
    GroupedAttention,
    LatentAttention,
    Layer,
    LinearAttention,
    MoeMlp,
)
from recipe_core.space.training import RECOMPUTE, TrainingCases, TrainingSetting

BYTES = 2.0
"""Bytes of a 16-bit value."""
NORM_UPCAST = 4.0
"""Bytes a value that an unfused norm saves beyond a fused one: its input in fp32 instead of 16
bits, and the normed value in 16 bits."""
SCORE_BYTES = 5.0
"""Bytes that unfused attention saves for a pair of tokens: scores, their softmax and the mask."""


def boundary_bytes(setting: TrainingSetting, cases: TrainingCases) -> Float:
    """Bytes of a token's hidden state (one per case)."""
    return BYTES * setting.model.hidden / cases.norm_share


def _mixer(setting: TrainingSetting, cases: TrainingCases, a: Attention) -> Float:
    """Bytes a token that the mixer itself saves on one rank."""
    wide = float(a.heads * (a.head_dim + a.v_head_dim))
    if isinstance(a, LinearAttention):
        values = 2 * a.in_columns + a.conv_channels + 2 * a.heads * a.v_head_dim
        return np.full(len(cases), BYTES * values) / cases.tp
    if isinstance(a, LatentAttention):
        # queries, attention's output, expanded keys and values; and latents, which are not divided
        latents = a.kv_values_per_head + (a.q_lora_rank or 0)
        expanded = 2 * BYTES * (wide + 0.5 * a.heads * 2) / cases.tp
        return expanded + 2 * BYTES * latents / cases.norm_share
    kv = np.full(len(cases), a.kv_heads)
    if a.kv_heads < int(cases.tp.max()):
        kv = np.maximum(kv, cases.tp)
    saved: Float = BYTES * (wide + 2 * a.heads) + BYTES * kv * (a.head_dim + a.v_head_dim)
    if not setting.flash:
        attended = np.minimum(cases.sequence_length, a.window or np.inf)
        saved = saved + SCORE_BYTES * a.heads * attended
    return saved / cases.tp


def layer_bytes(setting: TrainingSetting, cases: TrainingCases, layer: Layer) -> Float:
    """Bytes a token that a layer saves when nothing is recomputed (one per case)."""
    hidden, framework = setting.model.hidden, setting.framework
    halves = (layer.attention is not None) + (layer.mlp is not None)
    upcast = 0.0 if framework.fused_norm or setting.fused else NORM_UPCAST
    per_value = 2 * BYTES - (1.0 if setting.fused else 0.0) + upcast
    out: Float = hidden * per_value * halves * layer.streams / cases.norm_share
    if framework.sharding == "fsdp":
        # DTensor saves gathered inputs of projections, for the gradients of their weights
        out = out + BYTES * hidden * halves * layer.streams * (1 - 1 / cases.norm_share)
    gathered = framework.gathered_input_bytes.value * hidden * halves / 2
    out = out + np.where((cases.tp > 1) & (not setting.fused), gathered, 0.0) / cases.tp
    if layer.attention is not None:
        out = out + _mixer(setting, cases, layer.attention)
    return out + mlp_bytes(setting, cases, layer)


def mlp_bytes(setting: TrainingSetting, cases: TrainingCases, layer: Layer) -> Float:
    """Bytes a token that a layer's feed-forward block saves (one per case)."""
    if layer.mlp is None:
        return np.zeros(len(cases))
    m = layer.mlp
    if not isinstance(m, MoeMlp):
        return _values(setting, m) * BYTES * m.intermediate * (1.0 if m.gated else 0.5) / cases.tp
    # a rank with every expert has its own tokens' rows
    rows = m.top_k * np.where(cases.ep > 1, setting.calibration.imbalance.value, 1.0)
    out: Float = rows * (4 * m.expert_hidden(setting.model.hidden) + 8 * m.intermediate) / cases.tp
    return out + (8 * m.shared_intermediate / cases.tp) + 8.0 * m.experts / cases.norm_share


def _values(setting: TrainingSetting, mlp: DenseMlp) -> float:
    """16-bit values that a gated block saves for each value of its width."""
    if setting.fused:  # gate and up, and their product in 8 bits
        return 2.5
    return 3.0 if setting.framework.fused_gate and mlp.gated else 4.0


def _every_second_product(
    setting: TrainingSetting, cases: TrainingCases, a: GroupedAttention, mlp: DenseMlp | MoeMlp
) -> Float:
    """Bytes a token under selective recomputation by operator.

    The layer's input, attention's output with its log-sums, and every second product: q, v, gate,
    down (torchtitan's ``op`` policy). Of experts' grouped products none, but the router's.
    """
    hidden = setting.model.hidden
    kv = np.maximum(a.kv_heads, cases.tp) * a.v_head_dim
    divided = BYTES * (a.heads * (a.head_dim + a.v_head_dim + 2) + kv)
    entry = boundary_bytes(setting, cases)
    if isinstance(mlp, MoeMlp):
        return entry + divided / cases.tp + BYTES * mlp.experts
    sequence = (cases.tp > 1) & (cases.sequence_parallel > 0)
    reduced = np.where(sequence, 2 * BYTES * hidden / cases.norm_share, 0.0)
    down = BYTES * hidden if mlp.gated else 0.0
    return entry + (divided + BYTES * mlp.intermediate) / cases.tp + down + reduced


def saved_bytes(setting: TrainingSetting, cases: TrainingCases, layer: Layer) -> Float:
    """Bytes a token that a layer saves under each case's recomputation (one per case)."""
    full = layer_bytes(setting, cases, layer)
    selective, a = full * setting.framework.selective_keeps.value, layer.attention
    by_operator = setting.framework.sharding == "fsdp" and setting.flash
    if by_operator and isinstance(a, GroupedAttention) and layer.mlp is not None:
        selective = _every_second_product(setting, cases, a, layer.mlp)
    if not setting.flash and a is not None and not isinstance(a, LinearAttention):
        attended = np.minimum(cases.sequence_length, a.window or np.inf)
        scores = SCORE_BYTES * a.heads * attended / cases.tp
        selective = np.minimum(selective, full - scores)
    saved = np.select(
        [cases.recompute == RECOMPUTE.index("full"), cases.recompute == 1],
        [boundary_bytes(setting, cases), selective],
        full,
    )
    return full + recomputed_share(setting, cases) * (saved - full)


def recomputed_share(setting: TrainingSetting, cases: TrainingCases) -> Float:
    """Share of layers that are recomputed, the same in every stage (one per case)."""
    share = np.minimum(cases.recompute_layers / len(setting.model.layers), 1.0)
    return np.where(cases.recompute_layers > 0, share, 1.0)


def in_flight(cases: TrainingCases) -> Float:
    """Micro-batches whose activations a stage holds at once, in units of the whole stage.

    Of shape (cases, stages), NaN past the last stage. 1F1B and ZB-H1: p - i in stage i;
    interleaved: ((p - i - 1) · 2 + (v - 1) · p + 1) / v, which is p + (p - 1)/v in the first;
    GPipe: all; ZB-V: p in every stage. Never more than there are.
    """
    stages = np.arange(int(cases.pp.max()))[None, :]
    p, v, m = (
        column[:, None].astype(float)
        for column in (cases.pp, cases.virtual_stages, cases.micro_batches)
    )
    interleaved = (2 * (p - stages - 1) + (v - 1) * p + 1) / v
    shape = (len(cases), stages.shape[1])
    flights = np.select(
        [cases.has(name)[:, None] for name in ("interleaved", "gpipe", "zb-v")],
        [interleaved, np.broadcast_to(m, shape), np.broadcast_to(p, shape)],
        p - stages,
    )
    return np.where(stages < p, np.minimum(flights, m), np.nan)
