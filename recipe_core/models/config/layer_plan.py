"""Which kind of token mixing each layer has, from whichever field tells.

Configs name this in a dozen ways (a list of layer types, a pattern string, every n-th layer, index
lists); all end as one word a layer.
"""

from __future__ import annotations

from typing import Literal

from recipe_core.models.config.fields import MAX_LAYERS, MAX_WIDTH, Reader

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
    """Whether each layer is a mixer or a feed-forward block alone (Nemotron-H, Mamba)."""
    return "mlp" in words or (
        all(word == "linear" for word in words) and not read.has("num_attention_heads")
    )


def routed_letters(read: Reader, layers: int) -> list[bool] | None:
    """Which layers a one-letter or one-word pattern gives experts (None: it does not say)."""
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
