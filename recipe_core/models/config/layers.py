"""Layers by config fields: the kind of token mixing, the feed-forward block.

Configs name this in a dozen ways (a list of layer types, a pattern string, every n-th layer, index
lists); all end as one word a layer.
"""

from __future__ import annotations

from typing import Literal

from recipe_core.models.config.fields import MAX_EXPERTS, MAX_LAYERS, MAX_WIDTH, Reader
from recipe_core.models.mlp import DenseMlp, Mlp, MoeMlp

Mixer = Literal["full", "sliding", "chunked", "linear", "compressed_sparse", "compressed"]
Half = Literal["mlp"]
# A mixer, or ``mlp`` for a layer that is only a feed-forward block.
LayerWord = Mixer | Half

_WORDS: dict[str, LayerWord] = {
    "full_attention": "full",
    "deepseek_sparse_attention": "full",
    "indexed_attention": "full",
    "attention": "full",
    "sliding_attention": "sliding",
    "chunked_attention": "chunked",
    "compressed_sparse_attention": "compressed_sparse",
    "heavily_compressed_attention": "compressed",
    "linear_attention": "linear",
    "mamba": "linear",
    "mamba2": "linear",
    "conv": "linear",
    "mlp": "mlp",
    "moe": "mlp",
}
# What ``compress_ratios`` mean: transformers and vLLM know these three, and each means more than
# its ratio.
_RATIOS: dict[int, LayerWord] = {0: "sliding", 4: "compressed_sparse", 128: "compressed"}
_LETTERS: dict[str, LayerWord] = {"M": "linear", "*": "full", "-": "mlp", "E": "mlp"}

# Fields of which one is present whenever some layers keep a state instead of a cache.
STATE_FIELDS = (
    "linear_num_value_heads",
    "linear_attn_config",
    "mamba_num_heads",
    "mamba_n_heads",
    "mamba_d_state",
    "ssm_state_size",
    "state_size",
    "conv_L_cache",
    "attn_type_list",
)


def layer_mixers(read: Reader, layers: int) -> list[LayerWord]:
    for rule in (
        _words_by_pattern,
        _words_by_type_list,
        _words_by_ratio,
        _words_by_index,
        _words_by_interval,
        _words_by_window_fields,
    ):
        words = rule(read, layers)
        if words is not None:
            return words
    if read.has(*STATE_FIELDS):
        if read.has("num_attention_heads"):
            raise read.error(
                "layer_types", "is missing, but the config has state-space fields for some layers."
            )
        return ["linear"] * layers
    return ["full"] * layers


def halves_apart(read: Reader, words: list[LayerWord]) -> bool:
    """Return whether each layer is a mixer or a feed-forward block alone (Nemotron-H, Mamba)."""
    return "mlp" in words or (
        all(word == "linear" for word in words) and not read.has("num_attention_heads")
    )


def routed_letters(read: Reader, layers: int) -> list[bool] | None:
    """Mark layers to which a pattern of letters or words gives experts (None: it says nothing)."""
    pattern = read.config.get("hybrid_override_pattern")
    if isinstance(pattern, str) and pattern:
        return [letter == "E" for letter in pattern]
    words = read.words("layers_block_type", length=layers)
    return [word == "moe" for word in words] if "mlp" in words or "moe" in words else None


def _words_by_pattern(read: Reader, layers: int) -> list[LayerWord] | None:
    pattern = read.config.get("hybrid_override_pattern")
    if not pattern:
        return None
    if not isinstance(pattern, str) or len(pattern) != layers:
        raise read.error(
            "hybrid_override_pattern", f"does not describe {layers} layers, one letter each."
        )
    strange = sorted(set(pattern) - set(_LETTERS))
    if strange:
        raise read.error(
            "hybrid_override_pattern",
            f"has layers {', '.join(map(repr, strange))} that are not modelled yet.",
        )
    return [_LETTERS[letter] for letter in pattern]


def _words_by_type_list(read: Reader, layers: int) -> list[LayerWord] | None:
    for name in ("layers_block_type", "layer_types"):
        words = read.words(name, length=layers)
        strange = sorted(set(words) - set(_WORDS))
        if strange:
            raise read.error(name, f"{', '.join(strange[:4])} layers are not modelled yet.")
        if words:
            return [_WORDS[word] for word in words]
    return None


def _words_by_ratio(read: Reader, layers: int) -> list[LayerWord] | None:
    """Tokens that an entry of each layer's past stands for (DeepSeek-V4)."""
    ratios = read.wholes("compress_ratios", MAX_WIDTH, length=layers)
    strange = sorted(set(ratios) - set(_RATIOS))
    if strange:
        raise read.error(
            "compress_ratios",
            f"{strange[0]} is not modelled yet.",
            f"Known: {', '.join(map(str, _RATIOS))}.",
        )
    return [_RATIOS[ratio] for ratio in ratios] or None


def _words_by_index(read: Reader, layers: int) -> list[LayerWord] | None:
    """Lists that name the attention layers, or mark each layer with 0 or 1."""
    if read.has("attn_layer_indices"):
        full = set(read.wholes("attn_layer_indices", MAX_LAYERS))
        return ["full" if i in full else "linear" for i in range(layers)]
    if read.has("attn_type_list"):
        return [
            "full" if kind else "linear" for kind in read.wholes("attn_type_list", 1, length=layers)
        ]
    if read.has("local_layer_ids"):
        local = set(read.wholes("local_layer_ids", MAX_LAYERS))
        return ["sliding" if i in local else "full" for i in range(layers)]
    if read.has("hybrid_layer_pattern"):
        return [
            "sliding" if kind else "full"
            for kind in read.wholes("hybrid_layer_pattern", 1, length=layers)
        ]
    if read.has("linear_attn_config"):
        full = set(read.inside("linear_attn_config").wholes("full_attn_layers", MAX_LAYERS))
        return ["full" if i + 1 in full else "linear" for i in range(layers)]
    return None


def _words_by_interval(read: Reader, layers: int) -> list[LayerWord] | None:
    if read.has("full_attention_interval", "layer_group_size"):
        interval = read.whole(("full_attention_interval", "layer_group_size"), MAX_LAYERS)
        return ["full" if (i + 1) % interval == 0 else "linear" for i in range(layers)]
    if read.has("mamba_step"):
        step = read.whole(("mamba_step",), MAX_LAYERS)
        return ["full" if i % step == step // 2 else "linear" for i in range(layers)]
    if read.has("attn_layer_period"):
        period = read.whole(("attn_layer_period",), MAX_LAYERS)
        offset = read.whole(("attn_layer_offset",), MAX_LAYERS, default=0, minimum=0)
        return ["full" if i % period == offset else "linear" for i in range(layers)]
    return None


def _words_by_window_fields(read: Reader, layers: int) -> list[LayerWord] | None:
    # Layers with rotary positions attend within chunks (Llama 4).
    if read.has("attention_chunk_size"):
        return _chunked_words(read, layers)
    if read.config.get("use_sliding_window") is False or not read.has("sliding_window"):
        return None
    if read.has("sliding_window_pattern"):
        return _window_pattern(read, layers)
    first = 0
    if read.config.get("use_sliding_window"):
        first = read.whole(("max_window_layers",), MAX_LAYERS, default=0, minimum=0)
    return ["full" if i < first else "sliding" for i in range(layers)]


def _chunked_words(read: Reader, layers: int) -> list[LayerWord]:
    rotary = read.wholes("no_rope_layers", 1, length=layers)
    if not rotary:
        interval = read.whole(("no_rope_layer_interval",), MAX_LAYERS, default=4)
        rotary = [int((i + 1) % interval != 0) for i in range(layers)]
    return ["chunked" if turns else "full" for turns in rotary]


def _window_pattern(read: Reader, layers: int) -> list[LayerWord]:
    pattern = read.config["sliding_window_pattern"]
    # EXAONE 4 repeats letters for local and global layers.
    if isinstance(pattern, str) and pattern and set(pattern) <= {"L", "G"}:
        return ["full" if pattern[i % len(pattern)] == "G" else "sliding" for i in range(layers)]
    interval = read.whole(("sliding_window_pattern",), MAX_LAYERS)
    return ["full" if (i + 1) % interval == 0 else "sliding" for i in range(layers)]


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
    """Return whether the block has a gate matrix: by the family, else by the activation.

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
    if read.config.get("moe_layer_end_index") not in (None, -1):  # -1 says that there is none
        last = read.whole(("moe_layer_end_index",), MAX_LAYERS, default=layers - 1, minimum=0)
    dense_only = set(read.wholes("mlp_only_layers", MAX_LAYERS))
    offset = 1 if read.has(*_EVERY) else 0
    return [
        first <= i <= last and (i + offset) % interval == 0 and i not in dense_only
        for i in range(layers)
    ]


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
