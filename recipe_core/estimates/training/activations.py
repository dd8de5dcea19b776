"""Activations and logits: bytes that a layer saves for its backward pass, and what a loss holds.

Eager 16-bit layers with flash attention save, by saved-tensors hooks on Llama layers (equal to the
byte),

    8h + 4 n d + 4 k d + 4n + 8f   (+ 8h where norms are not fused and run in fp32)

bytes a token: both norms' inputs and outputs, q and attention's output, k and v, the log-sum of
each head, and gate, up, their product and the activation. Compiled layers save 6f of the 8f:
torch's partitioner recomputes the activation (counted in the forward graph of
``min_cut_rematerialization_partition``, torch 2.13). Tensor parallelism divides all but 8h,
sequence parallelism those too (Korthikanti et al., arXiv:2205.05198, section 4).

Whole logits are those of a micro-batch's tokens; in pieces those of one piece (`LossPieces`), a
share of the tokens or a tile of tokens and vocabulary of fixed size. While pieces run, gradients of
hidden states wait for all tokens, those of a trained head for all pieces.
"""

from __future__ import annotations

from statistics import NormalDist

import numpy as np

from recipe_core.base.arrays import Bool, Float, Int, add
from recipe_core.engines.frameworks import LossPieces
from recipe_core.estimates.columns.training import (
    RECOMPUTE,
    TrainingCases,
    TrainingSetting,
    modules_code,
)
from recipe_core.models.spec import (
    Attention,
    DenseMlp,
    GroupedAttention,
    LatentAttention,
    Layer,
    LinearAttention,
    MoeMlp,
)
from recipe_core.request.candidate import RecomputedModule

# Bytes per logit from which a loss is not one compiled kernel: an fp32 copy and its gradient.
FP32_LOSS = 8.0


def in_pieces(setting: TrainingSetting, cases: TrainingCases) -> Bool:
    """Mark where the loss is made in pieces, one per case."""
    always = setting.framework.pieces.use == "always"
    return np.asarray((cases.fused_loss > 0) | always)


def logits_at_once(setting: TrainingSetting, cases: TrainingCases) -> Float:
    """Logits that a rank of the last stage has at once (one per case)."""
    vocabulary = setting.model.vocabulary / cases.tp
    rows, columns = _piece_shape(setting, cases.tokens, vocabulary)
    chunked = in_pieces(setting, cases)
    # each layer of multi-token prediction has logits of its own
    all_logits = (1 + setting.mtp_layers) * cases.tokens * vocabulary
    return np.where(chunked, rows * columns, all_logits)


def _piece_shape(setting: TrainingSetting, tokens: Float, vocabulary: Float) -> tuple[Float, Float]:
    pieces = setting.framework.pieces
    rows = tokens / (pieces.count or 1.0)
    if pieces.as_hidden:
        share = np.ceil(tokens / np.ceil(vocabulary / setting.model.hidden))
        rows = 2.0 ** np.ceil(np.log2(np.maximum(share, 1.0)))
    rows = np.minimum(rows, tokens if pieces.tokens is None else pieces.tokens)
    rows = np.minimum(rows, tokens)
    columns = np.minimum(vocabulary, pieces.vocabulary or np.inf)
    return rows, columns


def logit_bytes(setting: TrainingSetting, cases: TrainingCases) -> Float:
    """Bytes of each logit that exists, with its gradient and copies (one per case)."""
    full_bytes, piece_bytes = (
        setting.framework.loss_bytes.value,
        setting.framework.pieces.logit_bytes,
    )
    return np.where(
        in_pieces(setting, cases), full_bytes if piece_bytes is None else piece_bytes, full_bytes
    )


def is_eager(setting: TrainingSetting, cases: TrainingCases) -> Bool:
    """Mark where fp32 copies of the logits are made one operator after the other, one per case."""
    return np.asarray(logit_bytes(setting, cases) >= FP32_LOSS)


def hidden_gradient_bytes(setting: TrainingSetting, cases: TrainingCases) -> Float:
    """Bytes of gradients and copies of hidden states that pieces keep for all tokens, by case."""
    size = setting.framework.pieces.hidden_bytes * setting.model.hidden
    return np.where(in_pieces(setting, cases), size * cases.tokens, 0.0)


def head_gradient_bytes(setting: TrainingSetting, cases: TrainingCases) -> Float:
    """Bytes of a rank's gradient of a trained head that pieces add to (one per case)."""
    pieces, model = setting.framework.pieces, setting.model
    size = 0.0 if setting.frozen else pieces.head_bytes * model.vocabulary * model.hidden
    return np.where(in_pieces(setting, cases), size / cases.tp, 0.0)


def head_products(setting: TrainingSetting, cases: TrainingCases) -> Float:
    """Products of the head's size in the backward pass (one per case).

    For the gradients of its inputs and of its weights, if they are trained, and to make the logits
    of a piece again.
    """
    trained = 1.0 if setting.frozen else 2.0
    again = in_pieces(setting, cases) & setting.framework.pieces.repeats_head
    return np.where(again, trained + 1.0, trained)


def pieces_text(pieces: LossPieces) -> str:
    """Says how large the pieces are, for a note."""
    if pieces.count is not None:
        return f"{pieces.count:.0f} chunks"
    if pieces.tokens is not None:
        return f"chunks of {pieces.tokens:,} tokens"
    return "chunks"


# Bytes of a 16-bit value.
BYTES = 2.0
# Bytes a value that an unfused norm saves beyond a fused one: its input in fp32 instead of 16 bits,
# and the normed value in 16 bits.
NORM_UPCAST = 4.0
# Bytes that unfused attention saves for a pair of tokens: scores, their softmax and the mask.
SCORE_BYTES = 5.0


def imbalance(setting: TrainingSetting, cases: TrainingCases, mlp: MoeMlp) -> Float:
    """Tokens of the fullest rank that shares experts, over the mean (one per case).

    1 where every rank has all experts. Pre-training balances its router by a loss. Without one
    experts' loads differ by ``router_spread`` of their mean; a rank adds up ``experts / ep`` of
    them, and the largest of ``ep`` such sums counts (Blom's approximation of a normal's largest).
    """
    figures = setting.calibration
    balanced = figures.imbalance.value
    if setting.method == "pretrain":
        return np.where(cases.ep > 1, balanced, 1.0)
    ranks = np.maximum(cases.ep, 1)
    counts, places = np.unique(ranks, return_inverse=True)
    normal = NormalDist()
    largest = np.array([normal.inv_cdf((n - 0.375) / (n + 0.25)) for n in counts.tolist()])[places]
    spread = figures.router_spread.value * np.sqrt(ranks / mlp.experts)
    return np.where(cases.ep > 1, np.maximum(1 + spread * largest, balanced), 1.0)


def boundary_bytes(setting: TrainingSetting, cases: TrainingCases) -> Float:
    """Bytes of a token's hidden state (one per case)."""
    return BYTES * setting.model.hidden / cases.norm_share


def kept_bytes(setting: TrainingSetting, cases: TrainingCases, layer: Layer) -> dict[str, Float]:
    """Bytes a token that a layer saves when nothing is recomputed, by part (one per case).

    A frozen matrix without an adapter has no gradient, so its input is not kept for it: that of a
    product after a norm or an activation is gone then, what norms, attention and activations need
    for the gradients of their own inputs stays.
    """
    out: dict[str, Float] = {}
    for half, name in ((layer.attention, "attention"), (layer.mlp, "mlp")):
        if half is not None:
            out |= _norm_saved_bytes(setting, cases, layer, adapted=setting.adapts(name), half=name)
    if layer.attention is not None:
        out |= _mixer_saved_bytes(setting, cases, layer.attention)
    return out | _feed_forward_saved_bytes(setting, cases, layer)


def _norm_saved_bytes(
    setting: TrainingSetting, cases: TrainingCases, layer: Layer, *, adapted: bool, half: str
) -> dict[str, Float]:
    """A half's norm: its input, its output (which the products after it need), gathered copies."""
    hidden, framework = setting.model.hidden * layer.streams, setting.framework
    upcast = 0.0 if framework.fused_norm or setting.fused else NORM_UPCAST
    output = 1.0 if setting.fused else BYTES
    gathered = np.zeros(len(cases))
    if framework.sharding == "fsdp":
        # DTensor saves gathered inputs of projections, for the gradients of their weights
        gathered = BYTES * hidden * (1 - 1 / cases.norm_share)
    more = framework.gathered_input_bytes.value * setting.model.hidden / 2
    if not setting.fused:
        gathered = gathered + np.where(cases.tp > 1, more, 0.0) / cases.tp
    return {
        f"{half}_norm_input": hidden * (BYTES + upcast) / cases.norm_share,
        f"{half}_norm_output": hidden * output * adapted / cases.norm_share,
        f"{half}_gathered": gathered * adapted,
    }


def _mixer_saved_bytes(
    setting: TrainingSetting, cases: TrainingCases, a: Attention
) -> dict[str, Float]:
    """Return what the mixer itself saves: inputs of attention, its scores, and its output."""
    if isinstance(a, LinearAttention):
        values = 2 * a.in_columns + a.conv_channels + 2 * a.heads * a.v_head_dim
        return {"state": np.full(len(cases), BYTES * values) / cases.tp}
    attended = BYTES * a.heads * (a.v_head_dim + 2) / cases.tp
    if isinstance(a, LatentAttention):
        # queries, expanded keys and values; latents, which are not divided, and their norms
        latents = a.kv_values_per_head + (a.q_lora_rank or 0)
        return {
            "expanded": BYTES * a.heads * (2 * a.head_dim + a.v_head_dim) / cases.tp,
            "latents": 2 * BYTES * latents / cases.norm_share,
            "attended": attended,
        }
    kv = np.full(len(cases), a.kv_heads)
    if a.kv_heads < int(cases.tp.max()):
        kv = np.maximum(kv, cases.tp)
    projected = BYTES * (a.heads * a.head_dim + kv * (a.head_dim + a.v_head_dim)) / cases.tp
    out = {"projected": projected, "attended": attended}
    if not setting.flash:
        positions = np.minimum(cases.sequence_length, a.window or np.inf)
        out["scores"] = SCORE_BYTES * a.heads * positions / cases.tp
    return out


def _feed_forward_saved_bytes(
    setting: TrainingSetting, cases: TrainingCases, layer: Layer
) -> dict[str, Float]:
    """Return what a feed-forward block saves: gate and up, and what its last product needs."""
    m, adapted = layer.mlp, setting.adapts("mlp")
    if m is None:
        return {}
    inner, product = _values_per_width(
        setting, gated=m.gated if not isinstance(m, MoeMlp) else True
    )
    if setting.activation_dtype == "fp8":
        inner = inner / BYTES
    if not isinstance(m, MoeMlp):
        return {
            "mlp_inner": BYTES * inner * m.intermediate / cases.tp,
            "mlp_product": BYTES * product * m.intermediate * adapted / cases.tp,
        }
    experts = 0.0 if setting.frozen else 1.0  # adapters sit beside shared experts only
    # a rank with every expert has its own tokens' rows
    rows = m.top_k * imbalance(setting, cases, m) / cases.tp
    copies = setting.framework.routed_copies.value * (0.5 if setting.fused else 1.0)
    inputs = BYTES * copies * m.expert_hidden(setting.model.hidden)
    return {
        "routed": rows * inputs * experts,
        "expert_inner": rows * BYTES * inner * m.intermediate,
        "expert_product": rows * BYTES * product * m.intermediate * experts,
        "shared_inner": BYTES * inner * m.shared_intermediate / cases.tp,
        "shared_product": BYTES * product * m.shared_intermediate * adapted / cases.tp,
        "router": 8.0 * m.experts / cases.norm_share,
    }


def _values_per_width(setting: TrainingSetting, *, gated: bool) -> tuple[float, float]:
    """16-bit values for each value of a block's width: kept for the activation, and its result."""
    if not gated:
        return 1.0, 0.5 if setting.fused else 1.0
    if setting.fused:
        return 2.0, 0.5
    return (2.0 if setting.framework.fused_gate else 3.0), 1.0


MLP_PARTS = frozenset(
    {
        "mlp_inner",
        "mlp_product",
        "routed",
        "expert_inner",
        "expert_product",
        "shared_inner",
        "shared_product",
        "router",
    }
)
_SHARED = frozenset({"shared_inner", "shared_product"})
# Parts of a layer that are not kept where a module is recomputed, in Megatron Core's words
# (``--recompute-modules``); a block that is recomputed keeps its input.
DROPS: dict[RecomputedModule, frozenset[str]] = {
    "core_attn": frozenset({"scores"}),
    "mla_up_proj": frozenset({"expanded"}),
    "moe_act": frozenset({"expert_product"}),
    "layernorm": frozenset({"attention_norm_output", "mlp_norm_output"}),
    "mlp": frozenset({"mlp_inner", "mlp_product"}),
    "moe": MLP_PARTS - {"mlp_inner", "mlp_product"},
    "shared_experts": _SHARED,
}


def layer_bytes(setting: TrainingSetting, cases: TrainingCases, layer: Layer) -> Float:
    """Bytes a token that a layer saves when nothing is recomputed (one per case)."""
    return add(kept_bytes(setting, cases, layer).values())


def mlp_bytes(setting: TrainingSetting, cases: TrainingCases, layer: Layer) -> Float:
    """Bytes a token that a layer's feed-forward block saves (one per case)."""
    parts = _feed_forward_saved_bytes(setting, cases, layer)
    return add(parts.values()) if parts else np.zeros(len(cases))


def recomputed_modules(setting: TrainingSetting, cases: TrainingCases) -> Int:
    """Bits of the modules that selective recomputation names: stated, else the framework's own.

    Those are for models with experts or latent attention.
    """
    model, framework_modules = setting.model, modules_code(setting.framework.recompute_modules)
    if not any(
        isinstance(kind.mlp, MoeMlp) or isinstance(kind.attention, LatentAttention)
        for kind, _ in model.kinds
    ):
        framework_modules = 0
    return np.where(cases.recompute_modules > 0, cases.recompute_modules, framework_modules)


def _dropped_bytes(setting: TrainingSetting, cases: TrainingCases, layer: Layer) -> Float:
    """Bytes a token of the parts that selective recomputation by modules does not keep."""
    parts, code = kept_bytes(setting, cases, layer), recomputed_modules(setting, cases)
    out = np.zeros(len(cases))
    for name, part in parts.items():
        bits = modules_code([module for module, drops in DROPS.items() if name in drops])
        out = out + np.where(code & bits > 0, part, 0.0)
    return out


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
    scores = kept_bytes(setting, cases, layer).get("scores", np.zeros(len(cases)))
    selective = np.minimum(selective, full - scores)
    has_modules = recomputed_modules(setting, cases) > 0
    selective = np.where(has_modules, full - _dropped_bytes(setting, cases, layer), selective)
    saved = np.select(
        [cases.recompute == RECOMPUTE.index("full"), cases.recompute == 1],
        [boundary_bytes(setting, cases), selective],
        full,
    )
    saved = full + recomputed_share(setting, cases) * (saved - full)
    # a graph reads a captured layer's input from a buffer of its own
    captured = setting.cuda_graphs != "none"
    return saved + (boundary_bytes(setting, cases) if captured else 0.0)


def recomputed_share(setting: TrainingSetting, cases: TrainingCases) -> Float:
    """Share of layers that are recomputed, the same in every stage (one per case)."""
    share = np.minimum(cases.recompute_layers / len(setting.model.layers), 1.0)
    return np.where(cases.recompute_layers > 0, share, 1.0)


def on_device(cases: TrainingCases, waiting: Float, layer: Float) -> Float:
    """Bytes of what waits for the backward pass, (cases, stages), that are on the device.

    All, or where it waits on the host two of its layers: the one at work and the one on its way.
    """
    return np.where(cases.activation_offload[:, None] > 0, np.minimum(2 * layer, waiting), waiting)


def in_flight(cases: TrainingCases) -> Float:
    """Micro-batches whose activations a stage holds at once, in units of the whole stage.

    Of shape (cases, stages), NaN past the last stage. 1F1B and ZB-H1: p - i in stage i;
    interleaved: ((p - i - 1) · 2 + (v - 1) · p + 1) / v, which is p + (p - 1)/v in the first;
    GPipe: all; ZB-V: p in every stage; DualPipe: p + 1 (arXiv:2412.19437, table 2). Never more than
    there are.
    """
    stages = np.arange(int(cases.pp.max()))[None, :]
    p, v, m = (
        column[:, None].astype(float)
        for column in (cases.pp, cases.virtual_stages, cases.micro_batches)
    )
    interleaved = (2 * (p - stages - 1) + (v - 1) * p + 1) / v
    shape = (len(cases), stages.shape[1])
    flights = np.select(
        [cases.has(name)[:, None] for name in ("interleaved", "gpipe", "zb-v", "dualpipe")],
        [interleaved, *(np.broadcast_to(n, shape) for n in (m, p, p + 1))],
        p - stages,
    )
    return np.where(stages < p, np.minimum(flights, m), np.nan)
