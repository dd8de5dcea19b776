"""Reading a Hugging Face ``config.json`` by its fields, never by a list of class names.

Synonyms of a field are read in order. A field that changes the arithmetic and is not modelled is an
error that names it, or a note that stays visible on the model; nothing is guessed silently.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, cast

from recipe_core.base.documents import read_shipped
from recipe_core.base.errors import ModelError
from recipe_core.models.attention import Attention, GroupedAttention
from recipe_core.models.config.attention import HEAD_DIM, HEADS, attention_layers
from recipe_core.models.config.encoder import (
    attend_all_layers,
    encoder_parts,
    encoder_task,
    is_encoder,
    with_defaults,
)
from recipe_core.models.config.fields import (
    DRAFTS,
    MAX_CONTEXT,
    MAX_EXPERTS,
    MAX_LAYERS,
    MAX_VOCABULARY,
    MAX_WIDTH,
    Config,
    Reader,
)
from recipe_core.models.config.layers import halves_apart, layer_mixers, mlp_layers
from recipe_core.models.config.quantization import read_quantization
from recipe_core.models.config.towers import read_towers
from recipe_core.models.mlp import DenseMlp
from recipe_core.models.spec import (
    DRAFTS_UNCOUNTED,
    NO_TOWER,
    CompressedAttention,
    Layer,
    ModelSpec,
    MoeMlp,
    Tensor,
)
from recipe_core.models.tensors import tensor


def nas_layers(read: Reader, hidden: int, layers: int) -> tuple[Layer, ...]:
    """The layers that ``block_configs`` lists."""
    blocks = read.config["block_configs"]
    if (
        not isinstance(blocks, list)
        or len(blocks) != layers
        or not all(isinstance(block, Mapping) for block in blocks)
    ):
        raise read.error("block_configs", f"is not a list of {layers} objects, one per layer.")
    return tuple(
        _nas_layer(read, cast("Mapping[str, Any]", block), hidden, i)
        for i, block in enumerate(blocks)
    )


def _nas_layer(read: Reader, block: Mapping[str, Any], hidden: int, index: int) -> Layer:
    inner = Reader(block, f"{read.field}.block_configs.{index}")
    attention, mlp = inner.inside("attention"), inner.inside("ffn")
    for half in (attention, mlp):
        if half.has("replace_with_linear", "sparsify"):
            raise half.error(
                "replace_with_linear", "layers replaced by one matrix are not modelled yet."
            )
    return Layer(
        None if attention.has("no_op") else _nas_attention(read, attention, hidden),
        None if mlp.has("no_op") else _nas_mlp(mlp, hidden),
    )


def _nas_attention(read: Reader, block: Reader, hidden: int) -> GroupedAttention:
    heads, group = read.whole(HEADS, MAX_WIDTH), block.whole(("n_heads_in_group",), MAX_WIDTH)
    if heads % group:
        raise block.error(
            "n_heads_in_group", f"{heads} attention heads are not divisible by {group}."
        )
    dim = read.whole(HEAD_DIM, MAX_WIDTH, default=hidden // heads)
    window = block.whole(("window_length",), MAX_CONTEXT) if block.has("window_length") else None
    return GroupedAttention(heads, heads // group, dim, dim, window)


def _nas_mlp(block: Reader, hidden: int) -> DenseMlp:
    """DeciLM's width for ``ffn_mult``: two thirds of twice the multiple, rounded up to 256."""
    if block.has("intermediate_size"):
        return DenseMlp(block.whole(("intermediate_size",), MAX_WIDTH))
    width = int(2 * block.number("ffn_mult", 1024) * hidden / 3)
    return DenseMlp(-(-width // 256) * 256)


_CONTEXT = (
    "max_position_embeddings",
    "max_sequence_length",
    "n_positions",
    "seq_length",
    "model_max_length",
    "max_seq_len",
    "n_ctx",
)


def max_context(read: Reader, notes: list[str]) -> int:
    """The context in tokens; appends what is assumed to ``notes``.

    YaRN configs state the short or the long length; the effective one is at least
    ``original_max_position_embeddings × factor``, as vLLM derives it. Linear and dynamic scaling
    multiply the stated length; llama3 and longrope configs state the long one already.
    """
    if not any(read.config.get(name) is not None for name in _CONTEXT):
        notes.append("The config states no context length; 4,096 tokens are assumed.")
    length = read.whole(_CONTEXT, MAX_CONTEXT, default=4096)
    name = "rope_scaling" if read.config.get("rope_scaling") else "rope_parameters"
    scaling = read.inside(name)
    kind = scaling.config.get("rope_type") or scaling.config.get("type")
    if (
        kind not in ("yarn", "linear", "dynamic")
        or not scaling.has("factor")
        or read.has("context_includes_scaling")
    ):
        return length
    factor = scaling.number("factor", 1_000_000)
    if kind == "yarn":
        original = scaling.whole(("original_max_position_embeddings",), MAX_CONTEXT, default=length)
        effective = max(length, int(original * factor))
    else:
        effective = int(length * factor)
    if not 1 <= effective <= MAX_CONTEXT:
        raise scaling.error(
            "factor", f"gives a context of {effective:,} tokens, beyond {MAX_CONTEXT:,}."
        )
    if effective != length:
        notes.append(
            f"{kind} rope scaling extends the context from {length:,} to {effective:,} tokens."
        )
    return effective


_LAYERS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
_LAYER_LISTS = ("hybrid_override_pattern", "layers_block_type", "layer_types")
_HIDDEN = ("hidden_size", "n_embd", "d_model")
_VOCABULARY = ("vocab_size", "padded_vocab_size")
_TEXT_PARTS = ("text_config", "llm_config", "language_config", "thinker_config")
# Objects that hold the fields of one half of every layer (MPT, DBRX).
_HALVES = ("attn_config", "ffn_config")

# Fields that are only there when the architecture is one whose arithmetic this version does not
# have.
_NOT_MODELLED = {
    "engram_vocab_size": "n-gram memories beside compressed attention (DeepSeek-V4.1) are",
    "kv_source_layer_ids": "n-gram memories beside compressed attention (DeepSeek-V4.1) are",
    "laurel_rank": "low-rank residual blocks and alternating updates (Gemma 3n) are",
    "mamba_d_ssm": "attention and a state-space mixer side by side in one layer (Falcon-H1) are",
    "ssm_cfg": "state-space models in this format are",
    "type_vocab_size": "encoder models of this model_type are",
    "logit_scale_init_value": "contrastive image-text encoders (CLIP-like) are",
    "cross_attention_layers": "cross-attention layers (Llama 3.2 Vision) are",
}

# Why what is not modelled is refused.
WRONG = "Estimates for this model would be wrong."

_DTYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}


@cache
def _config_families() -> dict[str, dict[str, Any]]:
    return cast(
        "dict[str, dict[str, Any]]", read_shipped(Path(__file__).with_name("families.yaml"))
    )


def read_model_config(config: Any, name: str, *, field: str = "model") -> ModelSpec:
    """The model that a ``config.json`` describes.

    Args:
        config: the parsed file; multimodal models are read from their ``text_config``.
        name: what to call the model.
        field: where the config stood in the request, for error messages.

    Raises:
        ModelError: naming the field, its value and what is wrong with it.
    """
    if not isinstance(config, Mapping):
        raise ModelError(
            f"a config.json must be an object, not {type(config).__name__}.", field=field
        )
    if is_encoder(config):
        return _read_encoder(config, name, field)
    notes: list[str] = []
    read = Reader(_with_modal_experts(_with_family(_with_halves(_text_part(config), field))), field)
    _refuse_unmodelled(read)
    hidden = read.whole(_HIDDEN, MAX_WIDTH)
    vocabulary = read.whole(_VOCABULARY, MAX_VOCABULARY)
    layers = _config_layers(read, hidden, _layer_count(read))
    stored = read_quantization(
        _stored_as(config, read),
        layers,
        hidden,
        field,
        beside=read.has("enable_moe_block", "residual_moe"),
    )
    drafts = read.whole(DRAFTS, MAX_LAYERS, default=0, minimum=0)
    notes += [*_visible_gaps(read, drafts), *stored.notes]
    shown = attend_all_layers(read.config, stored.layers)
    model = ModelSpec(
        name=name,
        hidden=hidden,
        vocabulary=vocabulary,
        layers=shown,
        tied_embeddings=_has_tied_embeddings(config, read, notes),
        max_context=max_context(read, notes),
        dtype=_config_dtype(config, read),
        quantization=stored.quantization,
        config=dict(config),
        kv_dtype=stored.kv_dtype or _cache_dtype(layers),
        draft_layers=drafts,
        extras=_extra_tensors(read, hidden, stored.layers),
        towers=read_towers(config, hidden, field, notes),
        notes=tuple(notes),
    )
    return model.pooled(encoder_task(config)) if model.is_encoder else model


def _read_encoder(config: Config, name: str, field: str) -> ModelSpec:
    """The encoder that a ``config.json`` describes: no head, no cache, one vector or score."""
    read = Reader(with_defaults(config), field)
    parts = encoder_parts(read)
    hidden = read.whole(("hidden_size",), MAX_WIDTH)
    stored = read_quantization(_stored_as(config, read), parts.layers, hidden, field, beside=False)
    return ModelSpec(
        name=name,
        hidden=hidden,
        vocabulary=read.whole(_VOCABULARY, MAX_VOCABULARY),
        layers=stored.layers,
        tied_embeddings=True,
        max_context=parts.max_context,
        dtype=_config_dtype(config, read),
        quantization=stored.quantization,
        config=dict(config),
        extras=parts.extras,
        notes=stored.notes,
        task=encoder_task(config),
    )


def _text_part(config: Config) -> Config:
    """The language model's own fields: a multimodal config nests them, at most three deep."""
    part = config
    for _ in range(3):
        inner = next(
            (part[name] for name in _TEXT_PARTS if isinstance(part.get(name), Mapping)), None
        )
        if inner is None:
            break
        part = cast("Config", inner)
    return part


def _with_halves(text: Config, field: str) -> Config:
    """The fields with those of their attention and feed-forward objects next to them.

    ``multiquery_attention`` means one KV head.
    """
    halves = [Reader(text, field).inside(name).config for name in _HALVES]
    shared = {"kv_n_heads": 1} if halves[0].get("attn_type") == "multiquery_attention" else {}
    return {**halves[0], **halves[1], **shared, **text}


def _with_family(text: Config) -> Config:
    return {
        **_config_families().get(str(text.get("model_type")), {}),
        **{key: value for key, value in text.items() if value is not None},
    }


def not_modelled() -> dict[str, str]:
    """Fields that only architectures have which are refused, and what of these is not modelled."""
    return {"is_encoder_decoder": "encoder-decoder models are", **_NOT_MODELLED}


def _with_modal_experts(text: Config) -> Config:
    """The fields with the width of text experts for that of all, where images have their own.

    ERNIE-4.5-VL lists both widths: each layer has as many experts again for image tokens.
    """
    widths = text.get("moe_intermediate_size")
    if not isinstance(widths, list) or len(set(map(str, widths))) < 2:
        return text
    counts = text.get("moe_num_experts")
    experts = {"moe_num_experts": counts[0]} if isinstance(counts, list) and counts else {}
    split = {"moe_intermediate_size": widths[0], "image_expert_widths": widths[1:]}
    return {**text, **experts, **split}


def _refuse_unmodelled(read: Reader) -> None:
    """Refuse architectures whose arithmetic this version does not have."""
    if read.has("is_encoder_decoder"):
        raise read.error(
            "is_encoder_decoder",
            "is true: encoder-decoder models are not modelled.",
            "Choose a decoder-only model.",
        )
    for name, feature in _NOT_MODELLED.items():
        if read.has(name):
            raise read.error(
                name,
                f"{feature} not modelled yet.",
                WRONG,
            )


def _stored_as(config: Config, read: Reader) -> Any:
    """The checkpoint's ``quantization_config``, with the experts' own format (DeepSeek-V4)."""
    raw = config.get("quantization_config") or read.config.get("quantization_config")
    experts = read.config.get("expert_dtype")
    return {"expert_dtype": experts, **raw} if experts and isinstance(raw, Mapping) else raw


def _cache_dtype(layers: Sequence[Layer]) -> str | None:
    """The cache format that a model was trained with: a compressed past is in fp8 (as in vLLM)."""
    compressed = any(isinstance(layer.attention, CompressedAttention) for layer in layers)
    return "fp8" if compressed else None


def _layer_count(read: Reader) -> int:
    """Return how many layers there are; some hybrids only list them."""
    lists = (read.config.get(name) for name in _LAYER_LISTS)
    listed = next((value for value in lists if isinstance(value, list | str)), "")
    return read.whole(_LAYERS, MAX_LAYERS, default=min(len(listed), MAX_LAYERS) or None)


def _config_layers(read: Reader, hidden: int, count: int) -> tuple[Layer, ...]:
    if read.has("block_configs"):
        return nas_layers(read, hidden, count)
    words = layer_mixers(read, count)
    attentions = _with_index_keys(read, attention_layers(read, hidden, words))
    width = read.whole(("hidden_size_per_layer_input",), MAX_WIDTH, default=0, minimum=0)
    # With only a mixer in every layer, there is no feed-forward width to read.
    if halves_apart(read, words) and "mlp" not in words:
        return tuple(Layer(attention, None) for attention in attentions)
    mlps = mlp_layers(read, hidden, count)
    apart, streams = "mlp" in words, _residual_streams(read)
    pairs = zip(attentions, mlps, strict=True)
    return tuple(
        Layer(attention, None if apart and attention is not None else mlp, (), width, streams)
        for attention, mlp in pairs
    )


def _with_index_keys(
    read: Reader, attentions: Sequence[Attention | None]
) -> list[Attention | None]:
    """Attention with an index key beside each cached token in its sparse layers (MiniMax-M3).

    All but the first dense ones are sparse (sglang#36549: 57 of 60).
    """
    sparse = read.inside("sparse_attention_config")
    if not sparse.has("use_sparse_attention"):
        return list(attentions)
    width = sparse.whole(("sparse_index_dim",), MAX_WIDTH)
    dense = read.whole(("first_k_dense_replace",), MAX_LAYERS, default=0, minimum=0)
    return [
        replace(attention, index_dim=width)
        if place >= dense and isinstance(attention, GroupedAttention)
        else attention
        for place, attention in enumerate(attentions)
    ]


def _residual_streams(read: Reader) -> int:
    """Residual streams that hyper-connections keep (1: an ordinary residual)."""
    return read.whole(("hc_mult",), MAX_EXPERTS, default=1)


def _extra_tensors(read: Reader, hidden: int, layers: Sequence[Layer]) -> tuple[Tensor, ...]:
    """Tensors outside the layers.

    Per-layer input embeddings (a row a token), learned positions, what joins residual streams, and
    experts that only tokens of images use.
    """
    out: list[Tensor] = []
    width = read.whole(("hidden_size_per_layer_input",), MAX_WIDTH, default=0, minimum=0)
    width *= len(layers)
    if width:
        rows = read.whole(("vocab_size_per_layer_input", *_VOCABULARY), MAX_VOCABULARY)
        out.append(tensor("per_layer_embedding", rows * width, "embedding", "vocabulary", 1 / rows))
        out.append(tensor("per_layer_projection", hidden * width, "unquantized", "replicated"))
    if read.has("learned_positions"):
        rows = read.whole(("max_position_embeddings", "n_positions"), MAX_VOCABULARY)
        out.append(tensor("position_embedding", rows * hidden, "embedding", "replicated", 1 / rows))
    experts = sum(layer.mlp.experts for layer in layers if isinstance(layer.mlp, MoeMlp))
    for expert in read.wholes("image_expert_widths", MAX_WIDTH):
        values = 3 * hidden * expert * experts
        out.append(tensor("image_experts", values, "experts", "tensor", 0.0))
    streams = _residual_streams(read)
    if streams > 1:
        out.append(tensor("hyper_head", streams * (streams * hidden + 1) + 1, "norm", "replicated"))
    return tuple(out)


def _config_dtype(config: Config, read: Reader) -> str:
    sources = [(part, name) for part in (read.config, config) for name in ("torch_dtype", "dtype")]
    dtype = next((part[name] for part, name in sources if part.get(name)), None)
    return _DTYPES.get(str(dtype).removeprefix("torch."), "bf16")


def _has_tied_embeddings(config: Config, read: Reader, notes: list[str]) -> bool:
    for source in (config, read.config):
        if source.get("tie_word_embeddings") is not None:
            return bool(source["tie_word_embeddings"])
    notes.append("tie_word_embeddings is missing: the head is counted as a separate matrix.")
    return False


def _visible_gaps(read: Reader, drafts: int) -> list[str]:
    gaps = []
    if drafts:
        gaps.append(DRAFTS_UNCOUNTED)
    if read.has("sparse_attention_config"):
        gaps.append(
            "Block-sparse attention is counted as dense: its index keys are in the cache, the "
            "small weights and the time of its index heads are not counted."
        )
    if read.has("mla_use_output_gate"):
        gaps.append("Output gates of latent attention are not counted.")
    if read.has("attn_res_block_size"):
        gaps.append("Residuals from the outputs of earlier blocks are counted as ordinary ones.")
    if read.has("use_sconv", "sconv_kernel_size"):
        gaps.append("Short convolutions around attention and feed-forward blocks are not counted.")
    if read.has("block_diffusion", "canvas_length"):
        gaps.append(
            "Text is written by denoising blocks of tokens: weights and cache are right, times are "
            "those of a model that writes token by token."
        )
    if read.has("vision_n_layers"):
        gaps.append(f"The vision encoder {NO_TOWER}")
    if read.has("attention_chunk_size"):
        gaps.append("Chunked attention is counted as a sliding window of the chunk's length.")
    return gaps
