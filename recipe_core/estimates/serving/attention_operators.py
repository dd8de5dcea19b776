"""Token mixers as named operators with times: projections, attention, linear states.

Attention does ``2·(d_k + d_v)`` flops per head and pair of tokens. Decoding with MLA is absorbed
(it works on the latent); prefill expands it.
"""

from __future__ import annotations

import numpy as np

from recipe_core.base.arrays import Float
from recipe_core.estimates.columns.serving import Cases, Setting
from recipe_core.estimates.ledger import fold_factors
from recipe_core.estimates.network import (
    all_gather_s,
    rank_group,
)
from recipe_core.estimates.roofline import operator_s
from recipe_core.estimates.serving.cache_blocks import kv_token_bytes, request_state_bytes
from recipe_core.estimates.serving.kernels import (
    Parts,
    Step,
    elementwise_kernel_s,
    kernel_s,
    kernel_time_factor,
    matmul_s,
)
from recipe_core.models.attention import STATE_VALUE_BYTES
from recipe_core.models.spec import (
    Attention,
    CompressedAttention,
    LatentAttention,
    LinearAttention,
    Role,
)
from recipe_core.models.tensors import bytes_per_value

OVER_PROMPT, OVER_CACHE = "Attention over the prompt", "Attention over the cache"


def mixer_parts(setting: Setting, cases: Cases, step: Step, attention: Attention) -> Parts:
    """The first half of a layer: projections and what mixes tokens."""
    projections = _projections(setting, cases, step.rows, attention)
    return {**projections, **_attention_parts(setting, cases, step, attention)}


def _projections(setting: Setting, cases: Cases, rows: Float, attention: Attention) -> Parts:
    """Products into and out of the mixer.

    MLA's up-projections are two products over the latent; the inputs of a state layer are one.
    """
    hidden, a = float(setting.model.hidden), attention
    heads = a.heads / cases.tp
    role: Role = "mixer" if isinstance(a, LinearAttention) else "attention"
    if isinstance(a, CompressedAttention):
        return _compressed_projections(setting, cases, rows, a)
    if isinstance(a, LatentAttention):
        latent = float(a.kv_lora_rank + a.rope_head_dim + (a.q_lora_rank or 0))
        width = heads * (a.nope_head_dim + a.v_head_dim)
        query = matmul_s(
            setting, role, rows, float(a.q_lora_rank or hidden), heads * a.head_dim, "Query, up"
        )
        expand = matmul_s(
            setting, role, rows, float(a.kv_lora_rank), width, "Key and value, up", 2.0
        )
        qkv = matmul_s(setting, role, rows, hidden, latent, "Latents, down") + query + expand
    elif isinstance(a, LinearAttention):
        qkv = matmul_s(setting, role, rows, hidden, a.in_columns / cases.tp, "Inputs of the state")
    else:
        kv = np.ceil(a.kv_heads / np.minimum(cases.tp, a.kv_heads)) * a.projected_per_head
        width = heads * a.head_dim + a.gate / cases.tp + kv
        qkv = matmul_s(setting, role, rows, hidden, width, "Query, key, value")
    out = matmul_s(setting, role, rows, heads * a.v_head_dim, hidden, "Attention output")
    return {"qkv": qkv, "o": out}


def _attention_parts(setting: Setting, cases: Cases, step: Step, a: Attention) -> Parts:
    """Return the times of mixing: attention over prompt and cache (or a window), or a state."""
    if isinstance(a, LinearAttention):
        return {"state": _state_update(setting, cases, step, a)}
    if isinstance(a, LatentAttention):
        return _latent_attention(setting, cases, step, a)
    if isinstance(a, CompressedAttention):
        return _compressed_attention(setting, cases, step, a)
    heads, window = a.heads / cases.tp, a.window or np.inf
    token_bytes = kv_token_bytes(setting, a, cases.tp)
    wide = heads * (a.head_dim + a.v_head_dim)
    io = wide * setting.activation_bytes
    # half of a text is before a token on average, and the other half after it
    seen_tokens = step.prefill_context * (2.0 if a.bidirectional else 1.0)
    pairs = step.prefill_tokens * np.minimum(seen_tokens, window)
    cached = step.sequences * np.minimum(step.context, window)
    queries = step.queries
    moved = (io + 2 * token_bytes) * step.prefill_tokens
    dtype = setting.model.dtype
    prefill = kernel_s(setting, "attention_prefill", dtype, 2 * wide * pairs, moved, OVER_PROMPT)
    moved = token_bytes / cases.cp * cached + queries * io * step.sequences
    flops = 2 * wide * queries * cached
    decode = kernel_s(setting, "attention_decode", setting.kv_dtype, flops, moved, OVER_CACHE)
    return {"attention": prefill + decode, **_shared_context(setting, cases, step, wide)}


def _latent_attention(setting: Setting, cases: Cases, step: Step, a: LatentAttention) -> Parts:
    """MLA: a prompt's keys and values are expanded per head; decoding works on the latent.

    So does a prompt that reads selected tokens only, where that takes less.
    """
    b, dtype = setting.activation_bytes, setting.model.dtype
    heads, attends = a.heads / cases.tp, a.attends or np.inf
    token_bytes = kv_token_bytes(setting, a, cases.tp)
    expanded = heads * (a.head_dim + a.v_head_dim)
    absorbed = heads * (a.kv_values_per_head + a.kv_lora_rank)
    context = np.minimum(step.prefill_context, attends)
    pairs = step.prefill_tokens * np.minimum(step.prefill_context * expanded, context * absorbed)
    cached = step.sequences * np.minimum(step.context, attends)
    moved = step.prefill_tokens * (2 * expanded * b + token_bytes)
    prefill = kernel_s(setting, "mla_prefill", dtype, 2 * pairs, moved, OVER_PROMPT)
    moved = cached * token_bytes / cases.cp + step.queries * step.sequences * absorbed * b
    flops = 2 * step.queries * cached * absorbed
    decode = kernel_s(setting, "mla_decode", setting.kv_dtype, flops, moved, OVER_CACHE)
    parts = {"attention": prefill + decode, **_shared_context(setting, cases, step, absorbed)}
    if a.index_heads:
        parts["indexer"] = fold_factors(
            kernel_time_factor(setting, "indexer") * _indexer_s(setting, step, a)
        )
    return parts


def _shared_context(setting: Setting, cases: Cases, step: Step, wide: Float) -> Parts:
    """Exchange of ranks that share a cache to decode: queries before, partial outputs after.

    vLLM calls it decode context parallelism.
    """
    if not (cases.cp > 1).any():
        return {}
    exchanged = step.queries * step.sequences * wide * cases.cp * setting.activation_bytes
    seconds = all_gather_s(setting.cluster, rank_group(setting.cluster, cases, cases.cp), exchanged)
    return {"context": np.where((cases.cp > 1) & (step.sequences > 0), seconds, 0.0)}


def _indexer_s(setting: Setting, step: Step, a: LatentAttention) -> Float:
    """Seconds to score all past tokens with every index head, to select by it, and to project.

    Scores are computed in fp8, on each rank alike; the selection reads and writes them in fp32.
    """
    hidden, rows = float(setting.model.hidden), step.rows
    queries = float(a.index_heads * a.index_head_dim)
    keys = float(a.index_head_dim + a.index_heads)
    project = matmul_s(
        setting, "attention", rows, float(a.q_lora_rank or hidden), queries, "Indexer, queries"
    )
    project = project + matmul_s(setting, "attention", rows, hidden, keys, "Indexer, keys")
    cached = step.sequences * step.context
    prompt = step.prefill_context * np.minimum(step.prefill_tokens, 1.0)
    moved = cached * a.index_bytes_per_token + prompt * a.index_bytes_per_token
    scores = step.queries * cached + step.prefill_tokens * step.prefill_context
    scored = operator_s(
        setting.cluster.device, "gemm", "fp8", 2 * queries * scores, moved, label="Indexer, scores"
    )
    return project + _selection_s(setting, scores, rows * queries) + scored


def _selection_s(setting: Setting, scores: Float, query_values: Float) -> Float:
    """Seconds to weigh the scores of all heads and to select by them: written and read in fp32."""
    moved = 2 * 4 * scores + 2 * query_values
    device = setting.cluster.device
    return operator_s(device, "elementwise", "fp32", scores, moved, 2.0, label="Indexer, selection")


def _compressed_projections(
    setting: Setting, cases: Cases, rows: Float, a: CompressedAttention
) -> Parts:
    """Queries through a latent, one key, inputs of entries; the output by groups, then together."""
    hidden, width, latent = float(setting.model.hidden), a.heads * a.head_dim, float(a.q_lora_rank)
    down = matmul_s(setting, "attention", rows, hidden, latent + a.head_dim, "Latents, down")
    qkv = down + matmul_s(setting, "attention", rows, latent, width / cases.tp, "Query, up")
    if a.ratio:
        values = float(a.state_values_per_token + a.index_state_values_per_token + a.index_heads)
        kernels = 3.0 if a.index_heads else 1.0
        qkv = qkv + matmul_s(
            setting, "unquantized", rows, hidden, values, "Inputs of entries", kernels
        )
    groups = a.o_groups * a.o_lora_rank / cases.tp
    by_group = matmul_s(
        setting, "attention", rows, float(width // a.o_groups), groups, "Output, by group"
    )
    together = matmul_s(setting, "attention", rows, groups, hidden, "Output, together")
    return {"qkv": qkv, "o": by_group + together}


def _compressed_attention(
    setting: Setting, cases: Cases, step: Step, a: CompressedAttention
) -> Parts:
    """A window of tokens and entries of the past; every head reads the same values.

    Entries are all of them, or those that the indexer selects.
    """
    b, dtype = setting.activation_bytes, setting.model.dtype
    wide = a.heads / cases.tp * 2 * a.head_dim
    entry_bytes = a.entry_bytes(bytes_per_value(setting.kv_dtype))
    pairs = step.prefill_tokens * _attended_tokens(a, step.prefill_context)
    cached = step.sequences * _attended_tokens(a, step.context)
    moved = step.prefill_tokens * (wide * b + entry_bytes)
    prefill = kernel_s(setting, "mla_prefill", dtype, 2 * pairs * wide, moved, OVER_PROMPT)
    moved = cached * entry_bytes + step.queries * step.sequences * wide * b
    flops = 2 * step.queries * cached * wide
    decode = kernel_s(setting, "mla_decode", setting.kv_dtype, flops, moved, OVER_CACHE)
    parts = {"attention": prefill + decode}
    if a.ratio:
        # a token's values stay until their entry is made, which reads those of all its tokens
        per_token = a.state_values_per_token + a.index_state_values_per_token
        values = step.rows * (1 + a.series) * per_token
        moved = values * STATE_VALUE_BYTES
        parts["compressor"] = elementwise_kernel_s(
            setting, 4 * values, moved, 2.0 * a.series, "Compressor"
        )
    if a.index_heads:
        parts["indexer"] = fold_factors(
            kernel_time_factor(setting, "indexer") * _entry_scores(setting, step, a)
        )
    return parts


def _attended_tokens(a: CompressedAttention, context: Float) -> Float:
    """Tokens and entries that one token attends to."""
    entries = np.minimum(context / a.ratio, a.attends or np.inf) if a.ratio else 0.0
    return np.minimum(context, a.local) + entries


def _entry_scores(setting: Setting, step: Step, a: CompressedAttention) -> Float:
    """Seconds to score all entries with every index head in fp8, on each rank alike.

    With the queries for it, and the selection by fp32 scores.
    """
    queries = float(a.index_heads * a.index_head_dim)
    cached, prompt = step.sequences * step.context / a.ratio, step.prefill_context / a.ratio
    moved = (cached + prompt * np.minimum(step.prefill_tokens, 1.0)) * a.index_entry_bytes
    scores = step.queries * cached + step.prefill_tokens * prompt
    project = matmul_s(
        setting, "attention", step.rows, float(a.q_lora_rank), queries, "Indexer, queries"
    )
    device = setting.cluster.device
    flops = 2 * queries * scores
    scored = operator_s(device, "gemm", "fp8", flops, moved, label="Indexer, scores")
    return project + _selection_s(setting, scores, step.rows * queries) + scored


def _state_update(setting: Setting, cases: Cases, step: Step, a: LinearAttention) -> Float:
    """Seconds to read and write each sequence's state once a step, and to update it.

    An update takes about four operations per value and token.
    """
    state, values = request_state_bytes(setting, a, cases.tp), a.state_values / cases.tp
    moved = 2 * state * (step.sequences + np.minimum(step.prefill_tokens, 1.0))
    return elementwise_kernel_s(setting, 4 * step.rows * values, moved, 2.0, "Update of the state")
