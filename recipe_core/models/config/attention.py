"""Attention classes from config fields: grouped, latent, compressed, and the ones with a state."""

from __future__ import annotations

from collections.abc import Sequence

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


def linear_attention(read: Reader, hidden: int) -> LinearAttention:
    """The layer with a state that these fields describe."""
    if read.has("linear_num_value_heads"):
        return _gated_delta(read)
    if read.has("linear_attn_config"):
        return _kimi_delta(read.inside("linear_attn_config"))
    if read.has("layer_group_size") and read.has("short_conv_kernel_size"):
        return _full_rank_delta(read)
    if read.has("attn_type_list", "layer_group_size"):
        return _lightning(read, hidden)
    if read.has("conv_L_cache"):
        return _short_convolution(read, hidden)
    if read.has("mamba_step"):
        return _plamo_mamba(read, hidden)
    heads = (
        "mamba_num_heads",
        "mamba_n_heads",
        *(("num_heads",) if not read.has("num_attention_heads") else ()),
    )
    return _mamba2(read, heads) if read.has(*heads) else _mamba1(read, hidden)


def _recurrent_bytes(read: Reader) -> float | None:
    return _STATE_BYTES.get(
        str(read.config.get("mamba_ssm_dtype") or read.config.get("mamba_ssm_cache_dtype"))
    )


def _gated_delta(read: Reader) -> LinearAttention:
    """Gated delta net (Qwen3-Next): q, k, v and gate, and two small projections a value head."""
    hk, hv = (
        read.whole(("linear_num_key_heads",), MAX_WIDTH),
        read.whole(("linear_num_value_heads",), MAX_WIDTH),
    )
    dk, dv = (
        read.whole(("linear_key_head_dim",), MAX_WIDTH),
        read.whole(("linear_value_head_dim",), MAX_WIDTH),
    )
    if hv % hk:
        raise read.error(
            "linear_num_key_heads", f"{hv} value heads are not divisible by {hk} key heads."
        )
    return LinearAttention(
        heads=hv,
        kv_heads=hk,
        head_dim=dk,
        v_head_dim=dv,
        conv_kernel=read.whole(("linear_conv_kernel_dim",), MAX_WIDTH),
        conv_channels=2 * hk * dk + hv * dv,
        in_columns=2 * hk * dk + 2 * hv * dv + 2 * hv,
        extra=2 * hv + dv,
        recurrent_bytes=_recurrent_bytes(read),
    )


def _kimi_delta(read: Reader) -> LinearAttention:
    """Kimi delta attention (arXiv:2510.26692).

    A decay per channel through a bottleneck of one head, and an output gate likewise or full.
    """
    heads, dim = read.whole(("num_heads",), MAX_WIDTH), read.whole(("head_dim",), MAX_WIDTH)
    inner = heads * dim
    gate = inner if read.has("use_full_rank_gate") else dim
    back = dim * inner * (1 if read.has("use_full_rank_gate") else 2)
    return LinearAttention(
        heads=heads,
        kv_heads=heads,
        head_dim=dim,
        v_head_dim=dim,
        conv_kernel=read.whole(("short_conv_kernel_size",), MAX_WIDTH),
        conv_channels=3 * inner,
        in_columns=3 * inner + dim + gate + heads,
        extra=back + inner + heads + dim,
        recurrent_bytes=4.0,  # the reference kernels and vLLM keep it in fp32
    )


def _full_rank_delta(read: Reader) -> LinearAttention:
    """Kimi delta attention whose decay and output gate are whole matrices (Ling 3)."""
    heads, dim = read.whole(HEADS, MAX_WIDTH), read.whole(HEAD_DIM, MAX_WIDTH)
    inner = heads * dim
    return LinearAttention(
        heads=heads,
        kv_heads=heads,
        head_dim=dim,
        v_head_dim=dim,
        conv_kernel=read.whole(("short_conv_kernel_size",), MAX_WIDTH),
        conv_channels=3 * inner,
        in_columns=5 * inner + heads,
        extra=inner + heads + dim,
        recurrent_bytes=4.0,  # as in `_kimi_delta`
    )


def _lightning(read: Reader, hidden: int) -> LinearAttention:
    """Lightning attention (arXiv:2501.08313; MiniMax-Text-01, Ling 2.5): q, k, v and a gate."""
    heads = read.whole(HEADS, MAX_WIDTH)
    dim = read.whole(HEAD_DIM, MAX_WIDTH, default=hidden // heads)
    return LinearAttention(heads, heads, dim, dim, 0, 0, 4 * heads * dim, heads * dim, 4.0)


def _short_convolution(read: Reader, hidden: int) -> LinearAttention:
    """LFM2's gated short convolution: no recurrent state, a convolution over the hidden size."""
    return LinearAttention(
        heads=hidden,
        kv_heads=hidden,
        head_dim=0,
        v_head_dim=1,
        conv_kernel=read.whole(("conv_L_cache",), MAX_WIDTH),
        conv_channels=hidden,
        in_columns=3 * hidden,
    )


def _mamba2(read: Reader, heads_names: Sequence[str]) -> LinearAttention:
    """Mamba-2 (arXiv:2405.21060): gate, values, B and C of each group, and a step a head."""
    heads = read.whole(heads_names, MAX_WIDTH)
    width = (
        "mamba_head_dim",
        "mamba_d_head",
        *(("head_dim",) if not read.has("num_attention_heads") else ()),
    )
    dim, state = (
        read.whole(width, MAX_WIDTH),
        read.whole(("ssm_state_size", "mamba_d_state", "state_size"), MAX_WIDTH),
    )
    groups = read.whole(("n_groups", "mamba_n_groups", "mamba_ngroups"), MAX_WIDTH, default=1)
    inner = heads * dim
    return LinearAttention(
        heads=heads,
        kv_heads=groups,
        head_dim=state,
        v_head_dim=dim,
        conv_kernel=read.whole(("conv_kernel", "mamba_d_conv"), MAX_WIDTH, default=4),
        conv_channels=inner + 2 * groups * state,
        in_columns=2 * inner + 2 * groups * state + heads,
        extra=inner + 2 * groups * state + 3 * heads + inner,
        recurrent_bytes=_recurrent_bytes(read),
    )


def _plamo_mamba(read: Reader, hidden: int) -> LinearAttention:
    """PLaMo 2: Mamba-2 whose B, C and step come out of the convolved values, for all heads."""
    heads, dim = read.whole(("mamba_num_heads",), MAX_WIDTH), read.whole(HEAD_DIM, MAX_WIDTH)
    state, inner = read.whole(("mamba_d_state",), MAX_WIDTH), heads * dim
    step = max(64, hidden // 16)
    return LinearAttention(
        heads=heads,
        kv_heads=1,
        head_dim=state,
        v_head_dim=dim,
        conv_kernel=read.whole(("mamba_d_conv",), MAX_WIDTH, default=4),
        conv_channels=inner,
        in_columns=2 * inner,
        extra=inner * (2 * state + step) + step * heads + 3 * heads + 2 * state + step,
        recurrent_bytes=4.0,  # as vLLM keeps it
    )


def _mamba1(read: Reader, hidden: int) -> LinearAttention:
    """Mamba-1 (arXiv:2312.00752): one "head" per inner channel, a low-rank step."""
    state = read.whole(("mamba_d_state", "state_size"), MAX_WIDTH)
    inner = read.whole(("mamba_expand", "expand"), 64, default=2) * hidden
    rank = read.config.get("mamba_dt_rank", read.config.get("time_step_rank"))
    if rank in (None, "auto"):
        rank = -(-hidden // 16)
    rank = Reader({"time_step_rank": rank}, read.field).whole(("time_step_rank",), MAX_WIDTH)
    return LinearAttention(
        heads=inner,
        kv_heads=inner,
        head_dim=state,
        v_head_dim=1,
        conv_kernel=read.whole(("mamba_d_conv", "conv_kernel", "d_conv"), MAX_WIDTH, default=4),
        conv_channels=inner,
        in_columns=2 * inner,
        extra=inner * (rank + 2 * state) + rank * inner + inner + inner * state + 2 * inner,
        recurrent_bytes=_recurrent_bytes(read),
    )
