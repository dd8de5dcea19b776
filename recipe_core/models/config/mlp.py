"""Feed-forward blocks from config fields: which layers have experts, and how wide everything is."""

from __future__ import annotations

from recipe_core.models.config.fields import MAX_EXPERTS, MAX_LAYERS, MAX_WIDTH, Reader
from recipe_core.models.config.layer_plan import routed_letters
from recipe_core.models.mlp import DenseMlp, Mlp, MoeMlp

FFN = ("intermediate_size", "ffn_dim", "n_inner", "ffn_hidden_size")
_DENSE_FFN = ("dense_intermediate_size", "intermediate_size_mlp", *FFN)
EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
TOP_K = (
    "num_experts_per_tok",
    "num_experts_per_token",
    "experts_per_token",
    "top_k_experts",
    "moe_topk",
    "moe_top_k",
    "moe_k",
    "num_selected_experts",
)
_EXPERT_FFN = ("moe_intermediate_size", "expert_intermediate_size", "moe_ffn_hidden_size")
_SHARED_FFN = (
    "shared_expert_intermediate_size",
    "moe_shared_expert_intermediate_size",
    "shared_intermediate_size",
    "share_expert_dim",
)
_SHARED_COUNT = (
    "n_shared_experts",
    "num_shared_experts",
    "num_shared_expert",
    "moe_num_shared_experts",
)
# Which layers have experts, counted from one: every n-th.
_EVERY = (
    "decoder_sparse_step",
    "interleave_moe_layer_step",
    "moe_layer_interval",
    "moe_layer_frequency",
)
# hash_moe: a hash of the token chooses the experts, whose weights are those of the other layers.
_ROUTED = ("sparse", "moe", "hash_moe")
_TWO_MATRIX_ACTIVATIONS = ("relu", "relu2", "gelu_new", "gelu_fast", "gelu", "quick_gelu", "xielu")


def mlp_layers(read: Reader, hidden: int, layers: int) -> list[Mlp]:
    """The feed-forward block of each layer: dense, or experts where the config puts them."""
    gated = _has_gate_matrix(read)
    if not read.has(*EXPERTS) or read.whole(EXPERTS, MAX_EXPERTS) == 1:
        return _dense_layers(read, hidden, layers, gated)
    moe = _expert_mlp(read, hidden, gated)
    sparse = _expert_layers(read, layers)
    if all(sparse):
        return [moe] * layers
    dense = DenseMlp(read.whole(_DENSE_FFN, MAX_WIDTH), gated)
    return [moe if routed else dense for routed in sparse]


def _dense_layers(read: Reader, hidden: int, layers: int, gated: bool) -> list[Mlp]:
    names: tuple[str, ...] = FFN
    # A mixture family configured without experts keeps its shared block (dense Granite 4).
    if any(name in read.config for name in EXPERTS) and read.has(_SHARED_FFN[2]):
        names = ("shared_intermediate_size", *FFN)
    width = read.whole(names, MAX_WIDTH, default=None if gated else 4 * hidden)
    # LFM2 states the width of an ungated block: its own is two thirds, rounded up to a multiple.
    if read.has("block_auto_adjust_ff_dim"):
        step = read.whole(("block_multiple_of",), MAX_WIDTH, default=256)
        width = -(-int(2 * width / 3) // step) * step
    if not read.has("use_double_wide_mlp"):
        return [DenseMlp(width, gated)] * layers
    borrowing = read.whole(("num_kv_shared_layers",), layers, default=0, minimum=0)
    return [DenseMlp(2 * width if i >= layers - borrowing else width, gated) for i in range(layers)]


def _expert_mlp(read: Reader, hidden: int, gated: bool) -> MoeMlp:
    experts, top_k = read.whole(EXPERTS, MAX_EXPERTS), read.whole(TOP_K, MAX_EXPERTS)
    if top_k > experts:
        raise read.error(TOP_K[0], f"{top_k} experts per token exceed the {experts} experts.")
    width = read.whole((*_EXPERT_FFN, *FFN), MAX_WIDTH)
    beside = _width_beside_experts(read, hidden, width)
    latent = read.whole(("moe_latent_size", "routed_expert_hidden_size"), MAX_WIDTH, default=0)
    return MoeMlp(experts, top_k, width, beside, gated, latent, read.has("expert_bias"))


def _width_beside_experts(read: Reader, hidden: int, expert: int) -> int:
    """Width of what every token uses next to the routed experts.

    A dense block (Gemma 4, Grok-2; Arctic's is square) or shared experts.
    """
    if read.has("enable_moe_block", "residual_moe"):
        return read.whole(FFN, MAX_WIDTH)
    return hidden if read.has("use_residual") else _shared_width(read, expert)


def _has_gate_matrix(read: Reader) -> bool:
    """Whether the block has a gate matrix: by the family, else by the activation.

    GELU and ReLU blocks have none.
    """
    gated = read.config.get("gated_mlp")
    if gated is not None:
        return bool(gated)
    names = (
        "mlp_hidden_act",
        "hidden_act",
        "hidden_activation",
        "activation_function",
        "activation",
    )
    activation = next((read.config[name] for name in names if read.config.get(name)), "silu")
    return str(activation) not in _TWO_MATRIX_ACTIVATIONS


def _shared_width(read: Reader, expert: int) -> int:
    if read.has(*_SHARED_FFN):
        return next(read.whole((name,), MAX_WIDTH) for name in _SHARED_FFN if read.has(name))
    if read.has(*_SHARED_COUNT):
        return expert * read.whole(_SHARED_COUNT, MAX_EXPERTS, minimum=0)
    return 0


def _expert_layers(read: Reader, layers: int) -> list[bool]:
    letters = routed_letters(read, layers)
    listed = letters if letters is not None else _listed_expert_layers(read, layers)
    if listed is not None:
        return listed
    if read.has("expert_layer_period"):
        period = read.whole(("expert_layer_period",), MAX_LAYERS)
        phase = read.whole(("expert_layer_offset",), MAX_LAYERS, default=0, minimum=0)
        return [i % period == phase for i in range(layers)]
    interval = read.whole((*_EVERY, "moe_layer_freq"), MAX_LAYERS, default=1)
    first = read.whole(
        ("first_k_dense_replace", "moe_layer_start_index", "num_dense_layers", "dense_mlp_idx"),
        MAX_LAYERS,
        default=0,
        minimum=0,
    )
    last = layers - 1
    if _has_last_expert_layer(read):
        last = read.whole(("moe_layer_end_index",), MAX_LAYERS, default=layers - 1, minimum=0)
    dense_only = set(read.wholes("mlp_only_layers", MAX_LAYERS))
    offset = 1 if read.has(*_EVERY) else 0
    return [
        first <= i <= last and (i + offset) % interval == 0 and i not in dense_only
        for i in range(layers)
    ]


def _has_last_expert_layer(read: Reader) -> bool:
    """Whether a last expert layer is named (-1 says there is none)."""
    return read.config.get("moe_layer_end_index") not in (None, -1)


def _listed_expert_layers(read: Reader, layers: int) -> list[bool] | None:
    if isinstance(read.config.get("moe_layer_freq"), list):
        return [bool(mark) for mark in read.wholes("moe_layer_freq", 1, length=layers)]
    if read.has("mlp_layer_types"):
        return [word in _ROUTED for word in read.words("mlp_layer_types", length=layers)]
    if read.has("moe_layers"):
        routed = set(read.wholes("moe_layers", MAX_LAYERS))
        return [i in routed for i in range(layers)]
    enumerated = read.config.get("moe_layers_enum")
    if isinstance(enumerated, str) and enumerated:
        numbers = {part.strip() for part in enumerated.split(",")}
        return [str(i) in numbers for i in range(layers)]
    return None
