"""Bytes that a layer keeps for its backward pass, by token, and how many micro-batches wait in a stage.

Eager 16-bit layers with flash attention keep, by saved-tensors hooks on Llama layers (equal to the byte),

    8h + 4 n d + 4 k d + 4n + 8f   (+ 8h where norms are not fused and run in fp32)

bytes a token: both norms' inputs and outputs, q and what attention gives, k and v, the log-sum of each head, and gate, up, their product
and the activation. Compiled layers keep 6f of the 8f: torch's partitioner makes the activation again (counted in the forward graph of
``min_cut_rematerialization_partition``, torch 2.13). Tensor parallelism cuts all but 8h, sequence parallelism those too (Korthikanti et
al., arXiv:2205.05198, section 4).
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
NORM_UPCAST = 4.0
"""Bytes a value that an unfused norm keeps more than a fused one: in place of its input that in fp32, and normed in 16 bits."""


def boundary_bytes(setting: TrainingSetting, cases: TrainingCases) -> Float:
    """A token's hidden state."""
    return BYTES * setting.model.hidden / cases.norm_share


def _mixer(setting: TrainingSetting, cases: TrainingCases, a: Attention) -> Float:
    """What the mixer itself keeps on one rank."""
    kept: Float
    wide = float(a.heads * (a.head_dim + a.v_head_dim))
    if isinstance(a, LinearAttention):
        kept = np.full(
            len(cases), BYTES * (2 * a.in_columns + a.conv_channels + 2 * a.heads * a.v_head_dim)
        )
    elif isinstance(
        a, LatentAttention
    ):  # queries, what attention gives, expanded keys and values, and the latents, which are not cut
        latents = a.kv_values_per_head + (a.q_lora_rank or 0)
        return (
            2 * BYTES * (wide + 0.5 * a.heads * 2) / cases.tp
            + 2 * BYTES * latents / cases.norm_share
        )
    else:
        kv = (
            np.maximum(a.kv_heads, cases.tp)
            if a.kv_heads < int(cases.tp.max())
            else np.full(len(cases), a.kv_heads)
        )
        kept = BYTES * (wide + 2 * a.heads) + BYTES * kv * (a.head_dim + a.v_head_dim)
    if not setting.flash and not isinstance(
        a, LinearAttention
    ):  # scores, their softmax and the mask: 5 bytes a pair
        seen = np.minimum(cases.sequence_length, a.window or np.inf)
        kept = kept + 5.0 * a.heads * seen
    return kept / cases.tp


def layer_bytes(setting: TrainingSetting, cases: TrainingCases, layer: Layer) -> Float:
    """Bytes a token that a layer keeps when nothing is recomputed."""
    hidden, framework = setting.model.hidden, setting.framework
    halves = (layer.attention is not None) + (layer.mlp is not None)
    norms = (
        hidden
        * (
            2 * BYTES
            - (1.0 if setting.fused else 0.0)
            + (0.0 if framework.fused_norm or setting.fused else NORM_UPCAST)
        )
        * halves
        * layer.streams
    )
    out: Float = norms / cases.norm_share
    if (
        framework.sharding == "fsdp"
    ):  # DTensor keeps what projections take in as it was gathered, for the gradients of their weights
        out = out + BYTES * hidden * halves * layer.streams * (1 - 1 / cases.norm_share)
    out = (
        out
        + np.where(
            (cases.tp > 1) & (not setting.fused),
            framework.gathered_input_bytes.value * hidden * halves / 2,
            0.0,
        )
        / cases.tp
    )
    if layer.attention is not None:
        out = out + _mixer(setting, cases, layer.attention)
    return out + mlp_bytes(setting, cases, layer)


def mlp_bytes(setting: TrainingSetting, cases: TrainingCases, layer: Layer) -> Float:
    """Bytes a token that a layer's feed-forward block keeps."""
    nothing = np.zeros(len(cases))
    if layer.mlp is None:
        return nothing
    if not isinstance(layer.mlp, MoeMlp):
        gated, one_kernel = layer.mlp.gated, setting.framework.fused_gate and layer.mlp.gated
        values = (
            2.5 if setting.fused else 3.0 if one_kernel else 4.0
        )  # fused: gate and up, and their product in 8 bits
        return values * BYTES * layer.mlp.intermediate * (1.0 if gated else 0.5) / cases.tp
    m = layer.mlp
    rows = m.top_k * np.where(
        cases.ep > 1, setting.calibration.imbalance.value, 1.0
    )  # a rank with every expert has its own tokens' rows
    out: Float = rows * (4 * m.expert_hidden(setting.model.hidden) + 8 * m.intermediate) / cases.tp
    return out + (8 * m.shared_intermediate / cases.tp) + 8.0 * m.experts / cases.norm_share


def _every_second_product(
    setting: TrainingSetting, cases: TrainingCases, a: GroupedAttention, mlp: DenseMlp | MoeMlp
) -> Float:
    """The layer's input, attention's output with its log-sums, and every second product: q, v, gate, down (torchtitan's ``op`` policy).

    Of experts' grouped products none is kept; the router's is.
    """
    hidden = setting.model.hidden
    kv = np.maximum(a.kv_heads, cases.tp) * a.v_head_dim
    cut = BYTES * (a.heads * (a.head_dim + a.v_head_dim + 2) + kv)
    if isinstance(mlp, MoeMlp):
        return boundary_bytes(setting, cases) + cut / cases.tp + BYTES * mlp.experts
    reduced = np.where(
        (cases.tp > 1) & (cases.sequence_parallel > 0), 2 * BYTES * hidden / cases.norm_share, 0.0
    )
    down = BYTES * hidden if mlp.gated else 0.0
    return (
        boundary_bytes(setting, cases)
        + (cut + BYTES * mlp.intermediate) / cases.tp
        + down
        + reduced
    )


def kept_bytes(setting: TrainingSetting, cases: TrainingCases, layer: Layer) -> Float:
    """Bytes a token that a layer keeps under each case's recomputation: all, a share, or its input only."""
    whole = layer_bytes(setting, cases, layer)
    some = whole * setting.framework.selective_keeps.value
    if (
        setting.framework.sharding == "fsdp"
        and setting.flash
        and isinstance(layer.attention, GroupedAttention)
        and layer.mlp is not None
    ):
        some = _every_second_product(setting, cases, layer.attention, layer.mlp)
    if (
        not setting.flash
        and layer.attention is not None
        and not isinstance(layer.attention, LinearAttention)
    ):
        seen = np.minimum(cases.sequence_length, layer.attention.window or np.inf)
        some = np.minimum(some, whole - 5.0 * layer.attention.heads * seen / cases.tp)
    kept = np.select(
        [cases.recompute == RECOMPUTE.index("full"), cases.recompute == 1],
        [boundary_bytes(setting, cases), some],
        whole,
    )
    return whole + recomputed_share(setting, cases) * (kept - whole)


def recomputed_share(setting: TrainingSetting, cases: TrainingCases) -> Float:
    """Share of the layers that are recomputed, each stage having as many of them as its size asks for."""
    layers = len(setting.model.layers)
    return np.where(
        cases.recompute_layers > 0, np.minimum(cases.recompute_layers / layers, 1.0), 1.0
    )


def in_flight(cases: TrainingCases) -> Float:
    """Micro-batches whose activations a stage holds at once (cases × stages), in units of the whole stage.

    1F1B: p - i in stage i; interleaved: ((p - i - 1) · 2 + (v - 1) · p + 1) / v, p + (p - 1)/v in the first; GPipe: all of them; ZB-H1 as
    1F1B; ZB-V: p in every stage. None holds more than there are.
    """
    stages = np.arange(int(cases.pp.max()))[None, :]
    p, v, m = (
        column[:, None].astype(float)
        for column in (cases.pp, cases.virtual_stages, cases.micro_batches)
    )
    interleaved = (2 * (p - stages - 1) + (v - 1) * p + 1) / v
    held = np.select(
        [cases.has(name)[:, None] for name in ("interleaved", "gpipe", "zb-v")],
        [
            interleaved,
            np.broadcast_to(m, (len(cases), stages.shape[1])),
            np.broadcast_to(p, (len(cases), stages.shape[1])),
        ],
        p - stages,
    )
    return np.where(stages < p, np.minimum(held, m), np.nan)
