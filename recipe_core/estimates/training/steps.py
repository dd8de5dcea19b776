"""Time of one micro-batch on one rank: layers forward and backward, communication, both ends.

Products and attention use the same roofline as serving's prompts. The backward pass runs every
product twice (for inputs and for weights), attention 2.5 times (flash attention recomputes its
scores: five products against two, arXiv:2307.08691). A device that is busy for long runs slower
than one measured alone (power): ``sustained``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from recipe_core.base.arrays import Bool, Float, add
from recipe_core.estimates.columns.training import (
    RECOMPUTE,
    TrainingCases,
    TrainingSetting,
    modules_code,
)
from recipe_core.estimates.ledger import fold_factors
from recipe_core.estimates.network import all_gather_s, rank_group
from recipe_core.estimates.roofline import operator_s
from recipe_core.estimates.training.activations import (
    BYTES,
    head_products,
    logit_bytes,
    recomputed_modules,
    recomputed_share,
)
from recipe_core.estimates.training.frozen_base import dequantize_s
from recipe_core.estimates.training.operators import (
    elementwise_s,
    expert_work,
    kernel_times,
    product_s,
)
from recipe_core.models.spec import (
    Attention,
    DenseMlp,
    LatentAttention,
    Layer,
    LinearAttention,
    MoeMlp,
)
from recipe_core.request.candidate import RecomputedModule

ATTENTION_BACKWARD = 2.5
# Bytes of a gradient of keys and values, which ranks of a sequence sum in fp32.
GRADIENT_BYTES = 4.0
# Bytes a loss moves at least for each 16-bit logit, in both passes: read for the maximum, the sum
# and the gradient, which is written and read again. Assumed.
LOSS_TRAFFIC = 10.0

Parts = dict[str, Float]


@dataclass(frozen=True, slots=True)
class Work:
    """Seconds of one micro-batch by part (one per case); backward without what is recomputed."""

    forward: Parts
    backward: Parts

    def scaled(self, by: Float | float) -> Work:
        """The work of ``by`` such layers."""
        return Work(
            {k: v * by for k, v in self.forward.items()},
            {k: v * by for k, v in self.backward.items()},
        )

    def plus(self, work: Work) -> Work:
        """Both, part by part."""
        return Work(
            _sum_parts(self.forward, work.forward), _sum_parts(self.backward, work.backward)
        )


def _sum_parts(a: Parts, b: Parts) -> Parts:
    nothing = np.zeros(1)
    return {name: a.get(name, nothing) + b.get(name, nothing) for name in {**a, **b}}


def _mixer_forward_s(
    setting: TrainingSetting, cases: TrainingCases, rows: Float, a: Attention
) -> Parts:
    """Forward seconds of projections and of attention."""
    hidden, heads = float(setting.model.hidden), a.heads / cases.tp
    if isinstance(a, LinearAttention):
        return _linear_attention(setting, cases, rows, a)
    if isinstance(a, LatentAttention):
        latent = float(a.kv_lora_rank + a.rope_head_dim + (a.q_lora_rank or 0))
        projected = product_s(setting, rows, hidden, latent, "Latents, down")
        projected = projected + _up_projections_s(setting, cases, rows, a)
    else:
        kv = np.maximum(a.kv_heads / cases.tp, 1.0) * (a.head_dim + a.v_head_dim)
        projected = product_s(setting, rows, hidden, heads * a.head_dim + kv, "Query, key, value")
    projected = projected + product_s(
        setting, rows, heads * a.v_head_dim, hidden, "Attention output"
    )
    return {"matmul": projected, "attention": _scores_s(setting, cases, rows, a)}


def _up_projections_s(
    setting: TrainingSetting, cases: TrainingCases, rows: Float, a: LatentAttention
) -> Float:
    """Forward seconds of what expands latents to queries, keys and values."""
    hidden, heads = float(setting.model.hidden), a.heads / cases.tp
    query = product_s(
        setting, rows, float(a.q_lora_rank or hidden), heads * a.head_dim, "Query, up"
    )
    width = heads * (a.nope_head_dim + a.v_head_dim)
    expand = product_s(setting, rows, float(a.kv_lora_rank), width, "Key and value, up")
    return query + expand


def _dense_s(setting: TrainingSetting, cases: TrainingCases, rows: Float, m: DenseMlp) -> Float:
    """Forward seconds of the products of a dense block."""
    width, hidden = m.intermediate / cases.tp, float(setting.model.hidden)
    up = product_s(setting, rows, hidden, (m.matrices - 1) * width, "Gate and up")
    return up + product_s(setting, rows, width, hidden, "Down")


def _linear_attention(
    setting: TrainingSetting, cases: TrainingCases, rows: Float, a: LinearAttention
) -> Parts:
    """Forward seconds of projections and of the update of a state."""
    hidden, heads = float(setting.model.hidden), a.heads / cases.tp
    values = rows * a.state_values / cases.tp
    moved = BYTES * 4 * rows * a.in_columns / cases.tp
    device = setting.cluster.device
    projected = product_s(setting, rows, hidden, a.in_columns / cases.tp, "Inputs of the state")
    out = product_s(setting, rows, heads * a.v_head_dim, hidden, "Output of the state")
    return {
        "matmul": projected + out,
        "attention": operator_s(
            device, "elementwise", "bf16", 4 * values, moved, 4.0, label="Update of the state"
        ),
    }


def _scores_s(setting: TrainingSetting, cases: TrainingCases, rows: Float, a: Attention) -> Float:
    """Forward seconds of softmax attention."""
    device, heads, depth = setting.cluster.device, a.heads / cases.tp, a.head_dim + a.v_head_dim
    wide = heads * depth
    moved = BYTES * rows * 2 * wide
    if setting.flash:
        attended = setting.seen(cases.sequence_length, a.window)
        flops = 2 * rows * attended * wide
        seconds = operator_s(device, "attention_prefill", "bf16", flops, moved, label="Attention")
        slowdown = setting.attention_slowdown * kernel_times(setting).forward
        seconds = seconds * slowdown / setting.pace("bf16")
        return fold_factors(
            seconds * (1 + setting.calibration.ring_slowdown.value * np.log2(cases.cp))
        )
    # all pairs, masked ones too; scores are written, read by the softmax, written, and read again
    pairs = rows * cases.sequence_length * heads
    moved = moved + 4 * BYTES * pairs
    flops = 2 * pairs * depth
    return operator_s(device, "gemm", "bf16", flops, moved, 4.0, label="Attention, unfused")


def _elementwise_work_s(
    setting: TrainingSetting, cases: TrainingCases, rows: Float, layer: Layer
) -> Float:
    """Seconds of norms and residuals (divided by sequence parallelism), rotary, activation."""
    hidden, a = setting.model.hidden, layer.attention
    halves = (a is not None) + (layer.mlp is not None)
    values = 5.0 * halves * hidden / cases.norm_share
    if a is not None:
        values = values + 2.0 * (a.heads * a.head_dim + a.kv_heads * a.head_dim) / cases.tp
    if layer.mlp is not None and not isinstance(layer.mlp, MoeMlp):
        values = values + (3.0 if layer.mlp.gated else 2.0) * layer.mlp.intermediate / cases.tp
    return elementwise_s(setting, rows, values)


def layer_work(setting: TrainingSetting, cases: TrainingCases, layer: Layer) -> Work:
    """One layer on one micro-batch."""
    rows, hidden, cluster = cases.tokens, setting.model.hidden, setting.cluster
    nothing = np.zeros(len(cases))
    forward: Parts = {
        "matmul": nothing,
        "attention": nothing,
        "elementwise": _elementwise_work_s(setting, cases, rows, layer),
        "experts": nothing,
        "dequantize": dequantize_s(setting, cases, layer),
    }
    if layer.attention is not None:
        forward |= _mixer_forward_s(setting, cases, rows, layer.attention)
    exchange, waits = nothing, nothing
    if isinstance(layer.mlp, MoeMlp):
        experts = expert_work(setting, cases, rows, layer.mlp)
        forward["experts"] = experts.routed + experts.shared
        exchange, waits = experts.exchange, experts.waits
    elif layer.mlp is not None:
        forward["matmul"] = forward["matmul"] + _dense_s(setting, cases, rows, layer.mlp)
    halves = (layer.attention is not None) + (layer.mlp is not None)
    tensor = rank_group(cluster, cases, cases.tp)
    gather_s = all_gather_s(cluster, tensor, BYTES * rows * hidden, "Gather or scatter (TP)")
    reduce_s = 2 * gather_s * setting.framework.tensor_exposed.value
    attention_s = forward["attention"]
    forward["tensor_parallel"] = np.where(cases.tp > 1, halves * reduce_s, 0.0)
    overlaps = (cases.overlap_experts > 0) & (cases.ep > 1) & isinstance(layer.mlp, MoeMlp)
    exchange = exchange * (1 - setting.calibration.exchange_overlap.value * overlaps)
    forward["expert_parallel"] = exchange + waits
    # what hides the exchange runs on the multiprocessors that the kernels of the exchange leave
    slower = 1 / (1 - setting.calibration.exchange_share.value * overlaps)
    for name in ("matmul", "attention", "elementwise", "experts", "dequantize"):
        forward[name] = forward[name] * slower
    attention_s = attention_s * slower
    forward["context_parallel"] = _ring(setting, cases, layer, BYTES, attention_s)
    trained = 1.0 if setting.frozen else 2.0  # frozen weights have no gradients
    ring_bytes = BYTES + GRADIENT_BYTES
    backward_s = _attention_backward(setting, layer) * attention_s
    backward = {
        "matmul": trained * forward["matmul"],
        "attention": backward_s,
        "elementwise": 2 * forward["elementwise"],
        "experts": trained * forward["experts"],
        "dequantize": forward["dequantize"],
        "tensor_parallel": forward["tensor_parallel"],
        "expert_parallel": exchange,
        "context_parallel": _ring(setting, cases, layer, ring_bytes, backward_s),
    }
    return Work(forward, backward)


def _attention_backward(setting: TrainingSetting, layer: Layer) -> float:
    """Time of the backward pass of a layer's mixer, of its forward pass."""
    if isinstance(layer.attention, LinearAttention):
        return ATTENTION_BACKWARD
    times = kernel_times(setting)
    return ATTENTION_BACKWARD * times.backward / times.forward


def _ring(
    setting: TrainingSetting, cases: TrainingCases, layer: Layer, value_bytes: float, hides: Float
) -> Float:
    """Seconds of keys and values sent round the ranks of a sequence, beyond what attention hides.

    Backward, with their gradients. The block of each of cp hops is computed while the next one
    travels, so attention hides what fits beside (cp - 1)/cp of it; nothing hides the last hop (ring
    attention, arXiv:2310.01889).
    """
    a = layer.attention
    if a is None or isinstance(a, LinearAttention) or not (cases.cp > 1).any():
        return np.zeros(len(cases))
    heads = np.maximum(a.kv_heads / cases.tp, 1.0)
    data = value_bytes * cases.tokens * cases.cp * heads * (a.head_dim + a.v_head_dim)
    group = rank_group(setting.cluster, cases, cases.cp, cases.tp)
    seconds = all_gather_s(setting.cluster, group, data, "Ring of keys and values (CP)")
    hops = np.maximum(cases.cp - 1, 1)
    exposed = np.maximum(seconds - hides * hops / cases.cp, 0.0) + seconds / hops
    return np.where(cases.cp > 1, exposed, 0.0)


def ends_work(setting: TrainingSetting, cases: TrainingCases) -> tuple[Work, Work]:
    """The embedding's lookup, on the first stage; head and loss, on the last.

    Multi-token prediction has a head and a loss for each of its layers, and projects hidden states
    with embeddings (2h × h).
    """
    rows, hidden, device = cases.tokens, float(setting.model.hidden), setting.cluster.device
    lookup = operator_s(
        device,
        "elementwise",
        "bf16",
        0 * rows,
        2 * BYTES * rows * hidden,
        label="Embedding lookup",
    )
    width = setting.model.vocabulary / cases.tp
    head = product_s(setting, rows, hidden, width, "Head", "bf16")
    moved = 0.5 * np.maximum(logit_bytes(setting, cases), LOSS_TRAFFIC) * rows * width
    loss = operator_s(device, "elementwise", "bf16", rows * width, moved, 3.0, label="Loss")
    predictions = 1.0 + setting.mtp_layers
    head, loss = predictions * head, predictions * loss
    if setting.mtp_layers:
        joined = product_s(setting, rows, 2 * hidden, hidden / cases.tp, "Join of predictions")
        head = head + setting.mtp_layers * joined
    backward = head_products(setting, cases) * head
    return Work({"embedding": lookup}, {"embedding": lookup}), Work(
        {"head": head, "loss": loss}, {"head": backward, "loss": loss}
    )


def recomputed_s(setting: TrainingSetting, cases: TrainingCases, work: Work) -> Float:
    """Seconds of the forward pass that the backward pass repeats (one per case)."""
    forward = add(work.forward.values())
    # torch's policies keep what collectives bring; only full recomputation exchanges tokens again
    selective = setting.framework.selective_recomputes.value * (
        forward - work.forward["expert_parallel"]
    )
    if not setting.flash:
        selective = np.maximum(selective, work.forward["attention"])
    kinds, layers = setting.model.kinds, len(setting.model.layers)
    module_s = add(modules_s(setting, cases, layer) * (n / layers) for layer, n in kinds)
    selective = np.where(recomputed_modules(setting, cases) > 0, module_s, selective)
    share, full = recomputed_share(setting, cases), cases.recompute == RECOMPUTE.index("full")
    return share * np.select([full, cases.recompute == 1], [forward, selective], 0.0)


def modules_s(setting: TrainingSetting, cases: TrainingCases, layer: Layer) -> Float:
    """Forward seconds of the modules of a layer that are recomputed (one per case).

    Norms and activations are elementwise: their share is that of the values they move.
    """
    rows, code, m, a = cases.tokens, recomputed_modules(setting, cases), layer.mlp, layer.attention
    out = np.zeros(len(cases))
    if not (code > 0).any():
        return out

    def again(*names: RecomputedModule) -> Bool:
        return np.asarray(code & modules_code(names) > 0)

    if a is not None and not isinstance(a, LinearAttention):
        out = out + again("core_attn") * _scores_s(setting, cases, rows, a)
        if isinstance(a, LatentAttention):
            out = out + again("mla_up_proj") * _up_projections_s(setting, cases, rows, a)
    norms = 2.0 * setting.model.hidden / cases.norm_share
    out = out + again("layernorm") * elementwise_s(setting, rows, norms)
    if isinstance(m, MoeMlp):
        experts = expert_work(setting, cases, rows, m)
        activation = 3.0 * m.top_k * m.intermediate / cases.tp
        out = out + again("moe") * (experts.routed + experts.exchange + experts.waits)
        out = out + again("moe", "shared_experts") * experts.shared
        out = out + (again("moe_act") & ~again("moe")) * elementwise_s(setting, rows, activation)
    elif m is not None:
        out = out + again("mlp") * _dense_s(setting, cases, rows, m)
    return out
