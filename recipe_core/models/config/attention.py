"""Attention classes from config fields: grouped, latent, compressed, and the ones with a state."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal

from pydantic import model_validator

from recipe_core.base.data_files import DataRow
from recipe_core.base.documents import read_shipped
from recipe_core.models.attention import (
    Attention,
    CompressedAttention,
    GroupedAttention,
    LatentAttention,
    LinearAttention,
)
from recipe_core.models.config.fields import MAX_CONTEXT, MAX_WIDTH, Reader
from recipe_core.models.config.layers import LayerWord

HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads")
KV_HEADS = (
    "num_key_value_heads",
    "n_head_kv",
    "num_kv_heads",
    "num_attention_groups",
    "multi_query_group_num",
    "num_query_groups",
    "n_kv_heads",
    "kv_n_heads",
)
HEAD_DIM = ("head_dim", "kv_channels", "attention_head_dim", "hidden_size_per_head")
# By kind of layer: its key in transformers' ``compress_rates``, and the default ratio.
_RATIO_OF: dict[LayerWord, tuple[str, int]] = {
    "compressed_sparse": ("compressed_sparse_attention", 4),
    "compressed": ("heavily_compressed_attention", 128),
}
_STATE_BYTES = {"float32": 4.0, "bfloat16": 2.0, "float16": 2.0}


def attention_layers(
    read: Reader, hidden: int, words: Sequence[LayerWord]
) -> list[Attention | None]:
    """The mixer of each layer, None where it has only a feed-forward block; equals are shared."""
    shared = read.whole(("num_kv_shared_layers",), len(words), default=0, minimum=0)
    index_shared = [word == "shared" for word in read.words("indexer_types", length=len(words))]
    listed = read.wholes("num_attention_heads_per_layer", MAX_WIDTH, length=len(words))
    attentions: dict[tuple[LayerWord, bool, bool, int | None], Attention | None] = {}
    out: list[Attention | None] = []
    for i, word in enumerate(words):
        flags = (i >= len(words) - shared, bool(index_shared) and index_shared[i])
        heads = listed[i] if listed else None
        key = (word, *flags, heads)
        if key not in attentions:
            fields = {} if heads is None else {HEADS[0]: heads}
            inner = Reader({**read.config, **fields}, read.field)
            attentions[key] = (
                None if word == "mlp" else _layer_attention(inner, hidden, word, *flags)
            )
        out.append(attentions[key])
    return out


def _layer_attention(
    read: Reader, hidden: int, word: LayerWord, borrows: bool, index_shared: bool
) -> Attention:
    if word == "linear":
        return linear_attention(read, hidden)
    if word in _RATIO_OF or read.has("o_lora_rank"):
        return _read_compressed_attention(read, word)
    if read.has("kv_lora_rank"):
        return _read_latent_attention(read, word, index_shared)
    return _read_grouped_attention(read, hidden, word, borrows)


def layer_window(read: Reader, word: LayerWord) -> int | None:
    """Return how many tokens a layer of this kind sees, None for all."""
    if word == "chunked":
        return read.whole(("attention_chunk_size",), MAX_CONTEXT)
    if word == "sliding":
        return read.whole(("sliding_window", "sliding_window_size"), MAX_CONTEXT)
    return None


def _read_latent_attention(read: Reader, word: LayerWord, index_shared: bool) -> LatentAttention:
    """A latent for all tokens, or for a window of them with shapes of its own (dots3-note)."""
    prefix = "swa_" if word == "sliding" and read.has("swa_kv_lora_rank") else ""
    indexed = read.has("index_topk") and word != "sliding"
    indexes = indexed and not index_shared
    nope = read.whole((f"{prefix}qk_nope_head_dim",), MAX_WIDTH)
    has_query_latent = read.has(f"{prefix}q_lora_rank")
    return LatentAttention(
        heads=read.whole([f"{prefix}{HEADS[0]}", *HEADS], MAX_WIDTH),
        q_lora_rank=read.whole((f"{prefix}q_lora_rank",), MAX_WIDTH) if has_query_latent else None,
        kv_lora_rank=read.whole((f"{prefix}kv_lora_rank",), MAX_WIDTH),
        nope_head_dim=nope,
        rope_head_dim=_rope_width(read, prefix, nope),
        v_head_dim=read.whole((f"{prefix}v_head_dim",), MAX_WIDTH),
        window=layer_window(read, word),
        index_heads=read.whole(("index_n_heads",), MAX_WIDTH) if indexes else 0,
        index_head_dim=read.whole(("index_head_dim",), MAX_WIDTH) if indexes else 0,
        attends=read.whole(("index_topk",), MAX_CONTEXT) if indexed else None,
    )


def _rope_width(read: Reader, prefix: str, nope: int) -> int:
    """Rotary width of a latent's key: what a window's whole head has beyond the other part."""
    if not prefix:
        return read.whole(("qk_rope_head_dim",), MAX_WIDTH)
    head = read.whole((f"{prefix}head_dim",), MAX_WIDTH, default=0, minimum=0)
    usual = head - nope if head > nope else None
    return read.whole((f"{prefix}qk_rope_head_dim",), MAX_WIDTH, default=usual)


def _read_compressed_attention(read: Reader, word: LayerWord) -> CompressedAttention:
    """A window, and beside it entries for the past where the layer's word says so (DeepSeek-V4)."""
    if word not in ("sliding", *_RATIO_OF):
        raise read.error(
            "layer_types", f"{word} layers next to compressed ones are not modelled yet."
        )
    ratio = 0
    if word in _RATIO_OF:
        name, usual = _RATIO_OF[word]
        ratio = read.inside("compress_rates").whole((name,), MAX_CONTEXT, default=usual)
    sparse = word == "compressed_sparse"
    heads, groups = read.whole(HEADS, MAX_WIDTH), read.whole(("o_groups",), MAX_WIDTH)
    if heads % groups:
        raise read.error("o_groups", f"{heads} heads are not divisible by {groups} output groups.")
    return CompressedAttention(
        heads=heads,
        head_dim=read.whole(HEAD_DIM, MAX_WIDTH),
        rope_head_dim=read.whole(("qk_rope_head_dim",), MAX_WIDTH),
        q_lora_rank=read.whole(("q_lora_rank",), MAX_WIDTH),
        o_groups=groups,
        o_lora_rank=read.whole(("o_lora_rank",), MAX_WIDTH),
        local=read.whole(("sliding_window",), MAX_CONTEXT),
        ratio=ratio,
        index_heads=read.whole(("index_n_heads",), MAX_WIDTH) if sparse else 0,
        index_head_dim=read.whole(("index_head_dim",), MAX_WIDTH) if sparse else 0,
        attends=read.whole(("index_topk",), MAX_CONTEXT) if sparse else None,
    )


def _head_fields(read: Reader, word: LayerWord) -> tuple[Reader, str, str]:
    """Return where this kind of layer has its heads: an object, and prefixes of general names."""
    if word == "sliding" and read.has("attention_other_setting"):
        return read.inside("attention_other_setting"), "", ""
    return (read, "swa_", "swa_") if word == "sliding" else (read, "", "global_")


def _read_grouped_attention(
    read: Reader, hidden: int, word: LayerWord, borrows: bool
) -> GroupedAttention:
    nested, prefix, dim_prefix = _head_fields(read, word)
    heads = nested.whole(([f"{prefix}{HEADS[0]}"] if prefix else []) + list(HEADS), MAX_WIDTH)
    shared_kv = word != "sliding" and bool(read.config.get("attention_k_eq_v"))
    kv_heads = _kv_head_count(read, nested, heads, prefix, shared_kv)
    if heads % kv_heads:
        raise nested.error(
            KV_HEADS[0], f"{heads} attention heads are not divisible by {kv_heads} KV heads."
        )
    dims = [f"{dim_prefix}head_dim", *HEAD_DIM] if dim_prefix else list(HEAD_DIM)
    if not read.has(*dims) and hidden % heads:
        raise read.error(
            HEADS[0],
            f"hidden size {hidden} is not divisible by {heads} heads, and head_dim is missing.",
        )
    head_dim = read.whole(dims, MAX_WIDTH, default=hidden // heads)
    return GroupedAttention(
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        v_head_dim=read.whole(
            [*([f"{prefix}v_head_dim"] if prefix else []), "v_head_dim"],
            MAX_WIDTH,
            default=head_dim,
        ),
        window=layer_window(read, word),
        bias=read.has("attention_bias", "qkv_bias", "add_qkv_bias", "use_qkv_bias"),
        gate=_gate_width(read, heads, head_dim),
        shared_kv=shared_kv,
        borrows_cache=borrows,
    )


def _kv_head_count(read: Reader, nested: Reader, heads: int, prefix: str, shared_kv: bool) -> int:
    config = read.config
    # Falcon's first architecture states multi-query attention without a number of KV heads.
    multi_query = (
        config.get("multi_query") is True and config.get("new_decoder_architecture") is not True
    )
    if multi_query and not read.has("num_key_value_heads"):
        return 1
    names = [f"{prefix}{KV_HEADS[0]}"] if prefix else []
    names += ["num_global_key_value_heads"] if shared_kv else []
    # ChatGLM keeps the number of groups in the config even where it does not use them.
    unused = "multi_query_group_num" if config.get("multi_query_attention") is False else None
    names += [name for name in KV_HEADS if name != unused]
    return nested.whole(names, MAX_WIDTH, default=heads)


def _gate_width(read: Reader, heads: int, head_dim: int) -> int:
    """Columns beside the queries: an output gate by channel or head, relative positions."""
    relative = heads * read.whole(("d_rel",), MAX_WIDTH, default=0, minimum=0)
    by_channel = read.config.get("gating") == "per-element"
    if by_channel or read.has("attn_output_gate", "use_attn_output_gate"):
        return heads * head_dim + relative
    return relative + (heads if read.has("use_head_wise_attn_gate", "gating") else 0)


class _Width(DataRow):
    """A width of a layer with a state: its fields, and what stands for it where all are missing."""

    of: tuple[str, ...]
    usual: str | None = None
    maximum: int = MAX_WIDTH

    @model_validator(mode="before")
    @classmethod
    def _plain(cls, value: Any) -> Any:
        return {"of": value} if isinstance(value, list) else value


class _StateLayer(DataRow):
    """A row of ``states.yaml``, which explains the fields."""

    title: str
    when: tuple[tuple[str, ...], ...]
    inside: str | None = None
    having: str | None = None
    alone: tuple[str, ...] = ()
    widths: dict[str, _Width]
    derived: Mapping[str, str] = {}
    divides: str | None = None
    heads: str
    kv_heads: str
    head_dim: str
    v_head_dim: str
    conv_channels: str = "0"
    in_columns: str
    extra: str = "0"
    bytes: float | Literal["stated"] | None = None


_FIGURES = ("heads", "kv_heads", "head_dim", "v_head_dim", "conv_channels", "in_columns", "extra")


@cache
def _state_layers() -> tuple[_StateLayer, ...]:
    rows = read_shipped(Path(__file__).with_name("states.yaml"))
    return tuple(map(_StateLayer.model_validate, rows))


def linear_attention(read: Reader, hidden: int) -> LinearAttention:
    """The layer with a state that these fields describe."""
    for row in _state_layers():
        fields = read.config
        if row.alone and read.has("num_attention_heads"):
            fields = {name: value for name, value in fields.items() if name not in row.alone}
        fields_reader = Reader(fields, read.field)
        if all(fields_reader.has(*names) for names in row.when):
            inner = fields_reader.inside(row.inside) if row.inside else fields_reader
            if row.having is None or inner.has(row.having):
                return _state_layer(row, inner, hidden)
    raise AssertionError("the last row fits every config")


def _state_layer(row: _StateLayer, read: Reader, hidden: int) -> LinearAttention:
    read = Reader({k: v for k, v in read.config.items() if v != "auto"}, read.field)
    widths = {"hidden": hidden, "rank": -(-hidden // 16), "step": max(64, hidden // 16)}
    for name, width in row.widths.items():
        usual = None if width.usual is None else _sum_of_products(width.usual, widths)
        widths[name] = read.whole(width.of, width.maximum, default=usual)
    for name, text in row.derived.items():
        widths[name] = _sum_of_products(text, widths)
    figures = {name: _sum_of_products(getattr(row, name), widths) for name in _FIGURES}
    if row.divides and figures["heads"] % widths[row.divides]:
        raise read.error(
            row.widths[row.divides].of[0],
            f"{figures['heads']} value heads are not divisible by {widths[row.divides]} key heads.",
        )
    dtype = read.config.get("mamba_ssm_dtype") or read.config.get("mamba_ssm_cache_dtype")
    return LinearAttention(
        **figures,
        conv_kernel=widths.get("kernel", 0),
        recurrent_bytes=_STATE_BYTES.get(str(dtype)) if row.bytes == "stated" else row.bytes,
    )


def _sum_of_products(text: str, widths: Mapping[str, int]) -> int:
    """``2*heads*dim + heads``, or ``hidden/heads`` rounded down, of numbers and widths by name."""

    def value(name: str) -> int:
        return int(name) if name.isdigit() else widths[name]

    if "/" in text:
        above, below = map(value, text.split("/"))
        return above // below
    return sum(math.prod(map(value, term.split("*"))) for term in text.split(" + "))
