"""Reading a Hugging Face ``config.json`` by its fields, never by a list of class names.

Synonyms of a field are read in order. A field that changes the arithmetic and is not modelled is an error that names it,
or a note that stays visible on the model; nothing is guessed silently.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, cast

from recipe_core.documents import read_document
from recipe_core.errors import ModelError
from recipe_core.model.spec import Attention, DenseMlp, GroupedAttention, LatentAttention, Layer, Mlp, ModelSpec, MoeMlp, Quantization, Role

Config = Mapping[str, Any]

MAX_LAYERS, MAX_WIDTH, MAX_VOCABULARY, MAX_EXPERTS, MAX_CONTEXT = 1_000, 1 << 20, 1 << 24, 1 << 14, 1 << 30

_LAYERS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
_HIDDEN = ("hidden_size", "n_embd", "d_model")
_HEADS = ("num_attention_heads", "n_head", "n_heads")
_KV_HEADS = ("num_key_value_heads", "n_head_kv", "num_kv_heads", "multi_query_group_num")
_FFN = ("intermediate_size", "ffn_dim", "n_inner", "ffn_hidden_size")
_VOCABULARY = ("vocab_size", "padded_vocab_size")
_CONTEXT = ("max_position_embeddings", "max_sequence_length", "n_positions", "seq_length", "model_max_length")
_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
_TOP_K = ("num_experts_per_tok", "experts_per_token", "top_k_experts", "moe_topk", "moe_k")
_EXPERT_FFN = ("moe_intermediate_size", "expert_intermediate_size")

_NOT_MODELLED = {
    "state-space or linear-attention layers": (
        "ssm_cfg",
        "mamba_d_state",
        "mamba_num_heads",
        "ssm_state_size",
        "linear_num_value_heads",
        "hybrid_override_pattern",
        "attn_layer_indices",
    ),
    "attention heads that differ between layers": ("global_head_dim", "num_global_key_value_heads"),
    "compressed attention": ("compress_ratios",),
    "per-layer embeddings": ("hidden_size_per_layer_input",),
    "experts beside a dense block in every layer": ("enable_moe_block",),
}
_DTYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
_TWO_MATRIX_ACTIVATIONS = ("relu", "relu2", "gelu_new", "gelu_fast", "gelu", "quick_gelu")


@cache
def _families() -> dict[str, dict[str, Any]]:
    return cast("dict[str, dict[str, Any]]", read_document(Path(__file__).with_name("families.yaml")))


def read_config(config: Any, name: str, *, field: str = "model") -> ModelSpec:
    """The model that a ``config.json`` describes.

    Args:
        config: the parsed file; multimodal models are read from their ``text_config``.
        name: what to call the model.
        field: where the config stood in the request, for error messages.

    Raises:
        ModelError: naming the field, its value and what is wrong with it.
    """
    if not isinstance(config, Mapping):
        raise ModelError(f"a config.json is an object, not {type(config).__name__}.", field=field)
    notes: list[str] = []
    text = _text_part(config, notes)
    read = _Reader(text, field)
    read.refuse_unmodelled()
    hidden = read.whole(_HIDDEN, MAX_WIDTH)
    count = read.whole(_LAYERS, MAX_LAYERS)
    windows = _windows(read, count)
    mlps = _mlps(read, hidden, count)
    bias = bool(text.get("attention_bias") or text.get("qkv_bias"))
    layers = tuple(Layer(_attention(read, hidden, window, bias), mlp) for window, mlp in zip(windows, mlps, strict=True))
    dtype = _DTYPES.get(str(text.get("torch_dtype") or text.get("dtype") or config.get("torch_dtype") or config.get("dtype")), "bf16")
    notes += _visible_gaps(text)
    return ModelSpec(
        name=name,
        hidden=hidden,
        vocabulary=read.whole(_VOCABULARY, MAX_VOCABULARY),
        layers=layers,
        tied_embeddings=_tied(text, config, notes),
        max_context=read.whole(_CONTEXT, MAX_CONTEXT, default=4096),
        dtype=dtype,
        quantization=_quantization(config.get("quantization_config") or text.get("quantization_config"), field),
        notes=tuple(notes),
        config=dict(config),
    )


def _text_part(config: Config, notes: list[str]) -> Config:
    """The language model's own fields, with the defaults of its family underneath."""
    inner = config.get("text_config")
    text = inner if isinstance(inner, Mapping) else config
    if text is not config:
        notes.append("Only the language model is counted; the vision or audio tower is not modelled.")
    return {**_families().get(str(text.get("model_type")), {}), **{k: v for k, v in text.items() if v is not None}}


class _Reader:
    """Typed access to a config with errors that name the field."""

    def __init__(self, config: Config, field: str) -> None:
        self.config, self.field = config, field

    def error(self, name: str, message: str, hint: str | None = None) -> ModelError:
        return ModelError(message, field=f"{self.field}.{name}", hint=hint)

    def whole(self, names: Sequence[str], maximum: int, *, default: int | None = None, minimum: int = 1) -> int:
        """The first of ``names`` that is given, as a whole number within limits."""
        name = next((n for n in names if n in self.config), None)
        if name is None:
            if default is not None:
                return default
            raise self.error(names[0], "is missing.", f"A decoder-only language model's config.json has {' or '.join(names[:3])}.")
        value = self.config[name]
        if isinstance(value, bool) or not isinstance(value, int | float) or value != int(value):
            raise self.error(name, f"{value!r} is not a whole number.")
        if not minimum <= value <= maximum:
            raise self.error(name, f"{value!r} is not between {minimum:,} and {maximum:,}.")
        return int(value)

    def has(self, names: Sequence[str]) -> bool:
        """Whether any of ``names`` is given and not zero, false or empty."""
        return any(self.config.get(n) for n in names)

    def refuse_unmodelled(self) -> None:
        """Raise for architectures whose arithmetic this version does not have."""
        if self.config.get("is_encoder_decoder"):
            raise self.error("is_encoder_decoder", "is true: encoder–decoder models are not modelled.", "Choose a decoder-only model.")
        for what, names in _NOT_MODELLED.items():
            for name in names:
                if self.config.get(name):
                    raise self.error(name, f"{what} are not modelled yet.", "Estimates for this model would be wrong, so none are made.")


def _attention(read: _Reader, hidden: int, window: int | None, bias: bool) -> Attention:
    heads = read.whole(_HEADS, MAX_WIDTH)
    if read.has(("kv_lora_rank",)):
        return LatentAttention(
            heads=heads,
            q_lora_rank=read.whole(("q_lora_rank",), MAX_WIDTH) if read.has(("q_lora_rank",)) else None,
            kv_lora_rank=read.whole(("kv_lora_rank",), MAX_WIDTH),
            nope_head_dim=read.whole(("qk_nope_head_dim",), MAX_WIDTH),
            rope_head_dim=read.whole(("qk_rope_head_dim",), MAX_WIDTH),
            v_head_dim=read.whole(("v_head_dim",), MAX_WIDTH),
            window=window,
        )
    kv_heads = 1 if read.config.get("multi_query") and not read.has(_KV_HEADS) else read.whole(_KV_HEADS, MAX_WIDTH, default=heads)
    if heads % kv_heads:
        raise read.error(_KV_HEADS[0], f"{kv_heads} KV heads do not divide {heads} attention heads.")
    if not read.has(("head_dim",)) and hidden % heads:
        raise read.error(_HEADS[0], f"{heads} heads do not divide the hidden size {hidden} and head_dim is not given.")
    head_dim = read.whole(("head_dim",), MAX_WIDTH, default=hidden // heads)
    return GroupedAttention(heads, kv_heads, head_dim, read.whole(("v_head_dim",), MAX_WIDTH, default=head_dim), window, bias)


def _windows(read: _Reader, layers: int) -> list[int | None]:
    """The attention window of each layer, None where a layer sees everything."""
    config = read.config
    kinds = config.get("layer_types")
    if kinds is not None:
        if not isinstance(kinds, list) or len(kinds) != layers:
            raise read.error("layer_types", f"lists {len(kinds) if isinstance(kinds, list) else kinds!r} layers; the model has {layers}.")
        strange = sorted({str(k) for k in kinds} - {"full_attention", "sliding_attention"})
        if strange:
            raise read.error("layer_types", f"{', '.join(strange)} layers are not modelled yet.")
    if config.get("use_sliding_window") is False or not read.has(("sliding_window",)):
        return [None] * layers
    window = read.whole(("sliding_window",), MAX_CONTEXT)
    if kinds is not None:
        return [window if kind == "sliding_attention" else None for kind in kinds]
    if read.has(("sliding_window_pattern",)):  # every n-th layer sees everything
        every = read.whole(("sliding_window_pattern",), MAX_LAYERS)
        return [None if (i + 1) % every == 0 else window for i in range(layers)]
    first = read.whole(("max_window_layers",), MAX_LAYERS, default=0, minimum=0) if config.get("use_sliding_window") else 0
    return [None if i < first else window for i in range(layers)]


def _mlps(read: _Reader, hidden: int, layers: int) -> list[Mlp]:
    """The feed-forward block of each layer: dense, or experts where the config puts them."""
    gated = _gated(read.config)
    if not read.has(_EXPERTS) or read.whole(_EXPERTS, MAX_EXPERTS) == 1:
        return [DenseMlp(read.whole(_FFN, MAX_WIDTH, default=None if gated else 4 * hidden), gated)] * layers
    experts, top_k = read.whole(_EXPERTS, MAX_EXPERTS), read.whole(_TOP_K, MAX_EXPERTS)
    if top_k > experts:
        raise read.error(_TOP_K[0], f"{top_k} experts per token of {experts} is impossible.")
    width = read.whole((*_EXPERT_FFN, *_FFN), MAX_WIDTH)
    moe = MoeMlp(experts, top_k, width, _shared_width(read, width), gated)
    sparse = _sparse(read, layers)
    dense = None if all(sparse) else DenseMlp(read.whole(_FFN, MAX_WIDTH), gated)
    return [moe if routed else cast("DenseMlp", dense) for routed in sparse]


def _gated(config: Config) -> bool:
    """Whether the block has a gate matrix: stated by the family, else told by the activation (GELU and ReLU blocks have none)."""
    stated = config.get("gated_mlp")
    activation = config.get("hidden_act") or config.get("hidden_activation") or config.get("activation_function") or "silu"
    return bool(stated) if stated is not None else str(activation) not in _TWO_MATRIX_ACTIVATIONS


def _shared_width(read: _Reader, expert: int) -> int:
    named = ("shared_expert_intermediate_size", "moe_shared_expert_intermediate_size")
    if read.has(named):
        return read.whole(named, MAX_WIDTH)
    counts = ("n_shared_experts", "num_shared_experts", "moe_num_shared_experts")
    return expert * read.whole(counts, MAX_EXPERTS, minimum=0) if read.has(counts) else 0


def _sparse(read: _Reader, layers: int) -> list[bool]:
    """Which layers have experts."""
    every = read.whole(("decoder_sparse_step", "moe_layer_freq", "interleave_moe_layer_step"), MAX_LAYERS, default=1)
    first = read.whole(("first_k_dense_replace", "moe_layer_start_index"), MAX_LAYERS, default=0, minimum=0)
    dense_only = set(read.config.get("mlp_only_layers") or ())
    offset = 1 if read.has(("decoder_sparse_step", "interleave_moe_layer_step")) else 0
    return [i >= first and (i + offset) % every == 0 and i not in dense_only for i in range(layers)]


def _tied(text: Config, config: Config, notes: list[str]) -> bool:
    for source in (config, text):
        if "tie_word_embeddings" in source:
            return bool(source["tie_word_embeddings"])
    notes.append("tie_word_embeddings is not stated: the head is counted as a matrix of its own.")
    return False


def _visible_gaps(text: Config) -> list[str]:
    gaps = []
    if text.get("num_nextn_predict_layers"):
        gaps.append("The multi-token-prediction layer is not counted; engines load it only for speculative decoding.")
    if text.get("index_topk"):
        gaps.append("Sparse attention is not modelled: attention is counted as dense over the latent.")
    return gaps


def _quantization(raw: Any, field: str) -> Quantization | None:
    """What ``quantization_config`` stores in which format; raises for a method that is not modelled."""
    if not raw:
        return None
    where = f"{field}.quantization_config"
    if not isinstance(raw, Mapping):
        raise ModelError("is not an object.", field=where)
    method = str(raw.get("quant_method", "")).lower()
    everything: frozenset[Role] = frozenset({"linear", "experts"})
    skipped = " ".join(str(m) for m in raw.get("modules_to_not_convert") or raw.get("ignore") or ())
    roles: frozenset[Role] = frozenset({"experts"}) if "self_attn" in skipped else everything
    if method == "fp8":
        block = raw.get("weight_block_size")
        return Quantization("fp8-block", roles, int(block[0])) if isinstance(block, list) and block else Quantization("fp8", roles)
    if method in ("awq", "gptq") and raw.get("bits", 4) in (4, 8):
        return Quantization("int4" if raw.get("bits", 4) == 4 else "int8", roles)
    if method == "mxfp4":
        return Quantization("mxfp4", roles)
    raise ModelError(f"the method {method or 'none'!r} is not modelled yet.", field=where, hint="Known: fp8, awq, gptq, mxfp4.")
