"""A model step as named operators with their times, on one rank, over all layers.

Work per layer: projections and feed-forward ``2·rows·weights`` flops; attention ``2·(d_k + d_v)`` flops per head and pair of
tokens; bytes are weights, activations in and out, and the cache that decoding reads. Decoding with MLA is absorbed (it works
on the latent); prefill expands it. Which experts a step touches: `routing`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import reduce

import numpy as np

from recipe_core.base.arrays import Float, add
from recipe_core.model.compressed import STATE_VALUE_BYTES
from recipe_core.model.dtypes import bytes_per_value
from recipe_core.model.spec import (
    Attention,
    CompressedAttention,
    LatentAttention,
    Layer,
    LinearAttention,
    Mlp,
    MoeMlp,
    Role,
)
from recipe_core.physics.network import (
    Group,
    all_gather_s,
    all_reduce_s,
    dispatch_s,
    rank_group,
    send_s,
)
from recipe_core.physics.roofline import experts_s, operator_s
from recipe_core.physics.serving.cache import kv_token_bytes, state_bytes
from recipe_core.physics.serving.routing import crowding, distinct_experts
from recipe_core.physics.serving.weights import expert_ranks, padded_vocabulary
from recipe_core.space.serving import Cases, Setting

Parts = dict[str, Float]


@dataclass(frozen=True, slots=True)
class Step:
    """What one scheduler runs in one step: arrays over cases, or over several steps of each (the last axis is that of the cases).

    prefill_tokens: prompt tokens, each seeing ``prefill_context`` tokens on average. sequences: requests that decode
    ``queries`` tokens each (more than one verifies a draft) at ``context`` tokens. sampled: rows that need logits.
    """

    prefill_tokens: Float
    prefill_context: Float
    sequences: Float
    context: Float
    sampled: Float
    queries: Float | float = 1.0

    @property
    def rows(self) -> Float:
        """Tokens that go through the matrices."""
        return self.prefill_tokens + self.sequences * self.queries


def side_by_side(steps: Sequence[Step]) -> Step:
    """Several steps of each case as one with an axis more, in front.

    What follows from the case alone, or from a column that the steps share, is then computed once for all of them.
    """
    columns = [[getattr(step, field.name) for step in steps] for field in fields(Step)]
    shape = np.broadcast_shapes(*(np.shape(value) for column in columns for value in column))

    def joined(column: list[Float]) -> Float:
        if all(value is column[0] for value in column):
            return column[0]
        out = np.empty((len(steps), *shape))
        for k, value in enumerate(column):
            out[k] = value
        return out

    return Step(*map(joined, columns))


def step_parts(setting: Setting, cases: Cases, step: Step) -> Parts:
    """Seconds of one step by cause, through all pipeline stages; the values add up to the step."""
    model, tp = setting.model, rank_group(setting.cluster, cases, cases.tp)
    reduce_s = all_reduce_s(
        setting.cluster, tp, model.hidden * setting.activation_bytes * step.rows
    )
    parts: Parts = {}
    for some, count in (
        *((_mixer(setting, cases, step, attention), count) for attention, count in model.mixers),
        *((_feed_forward(setting, cases, step.rows, mlp), count) for mlp, count in model.mlps),
        *(
            (_around(setting, cases, step.rows, layer, reduce_s), count)
            for layer, count in model.kinds
        ),
    ):
        every = count * _stage_imbalance(setting, cases)
        for name, seconds in some.items():
            parts[name] = parts[name] + every * seconds if name in parts else every * seconds
    parts |= _ends(setting, cases, step, tp, reduce_s)
    overhead, layers = setting.engine.overhead(setting.cluster.device.runtime), len(model.layers)
    unhidden = np.maximum(
        overhead.launch_s * layers - total(parts), 0.0
    )  # the host launches ahead of a device that is busy
    parts["launch"] = np.where(step.prefill_tokens > 0, unhidden, 0.0)
    parts["engine"] = (
        overhead.step_s + overhead.sequence_s * step.sequences + overhead.layer_s * layers
    )
    return parts


def total(parts: Parts) -> Float:
    """Sum of the parts."""
    return add(parts.values())


def _stage_imbalance(setting: Setting, cases: Cases) -> Float:
    """All stages wait for the longest: its layers against the mean."""
    layers = len(setting.model.layers)
    return np.ceil(layers / cases.pp) * cases.pp / layers


def _matmul(
    setting: Setting,
    role: Role,
    rows: Float,
    inputs: Float | float,
    outputs: Float | float,
    kernels: float = 1.0,
) -> Float:
    """A dense product of ``rows × inputs`` with ``inputs × outputs`` weights that are stored as their role is."""
    weights, values = inputs * outputs, (inputs + outputs) * setting.activation_bytes
    moved = weights * setting.stored_bytes(role) + values * rows
    return operator_s(
        setting.cluster.device,
        "gemm",
        setting.stored_dtype(role),
        2 * weights * rows,
        moved,
        kernels,
    )


def _mixer(setting: Setting, cases: Cases, step: Step, attention: Attention) -> Parts:
    """The first half of a layer: projections and what mixes tokens."""
    return _projections(setting, cases, step.rows, attention) | _attention(
        setting, cases, step, attention
    )


def _feed_forward(setting: Setting, cases: Cases, rows: Float, mlp: Mlp) -> Parts:
    """The second half of a layer."""
    if isinstance(mlp, MoeMlp):
        return _experts(setting, cases, rows, mlp)
    hidden, width = float(setting.model.hidden), mlp.intermediate / cases.tp
    up = _matmul(setting, "linear", rows, hidden, (mlp.matrices - 1) * width)
    return {"mlp": up + _matmul(setting, "linear", rows, width, hidden)}


def _around(setting: Setting, cases: Cases, rows: Float, layer: Layer, reduce_s: Float) -> Parts:
    """What goes along with the halves of a layer (either may be missing): the sum of each over tp, norms, residual streams."""
    hidden, blocks = setting.model.hidden, (layer.attention is not None) + (layer.mlp is not None)
    cut = (
        4 * layer.attention.heads * layer.attention.v_head_dim if layer.attention is not None else 0
    )
    if layer.mlp is not None:
        cut += 3 * (
            layer.mlp.shared_intermediate
            if isinstance(layer.mlp, MoeMlp)
            else layer.mlp.intermediate
        )
    values = ((4 + 2 * blocks) * hidden + cut / cases.tp) * rows
    moved = values * setting.activation_bytes
    parts = {"all_reduce": blocks * reduce_s}
    if layer.streams > 1:
        parts["hyper_connections"] = blocks * _hyper_connection(setting, rows, layer)
    parts["norms"] = operator_s(
        setting.cluster.device, "elementwise", setting.model.dtype, values, moved, 2.0 * blocks
    )
    return parts


def _hyper_connection(setting: Setting, rows: Float, layer: Layer) -> Float:
    """Around one half: weights made of all streams by a small product, then joining streams, and mixing them with what the half gives.

    Bytes are those beyond what an ordinary residual moves, which the norms have.
    """
    hidden, b, more = setting.model.hidden, setting.activation_bytes, 2 * (layer.streams - 1)
    weigh = _matmul(
        setting, "norm", rows, float(layer.streams * hidden), float(layer.stream_weights)
    )
    mixed = rows * (more + layer.streams**2) * hidden
    return weigh + operator_s(
        setting.cluster.device,
        "elementwise",
        setting.model.dtype,
        2 * mixed,
        rows * more * hidden * b,
        2.0,
    )


def _projections(setting: Setting, cases: Cases, rows: Float, attention: Attention) -> Parts:
    """Into and out of the mixer. MLA's up-projections are two products over the latent; a state layer's inputs are one."""
    hidden, a = float(setting.model.hidden), attention
    heads = a.heads / cases.tp
    role: Role = "mixer" if isinstance(a, LinearAttention) else "attention"
    if isinstance(a, CompressedAttention):
        return _compressed_projections(setting, cases, rows, a)
    if isinstance(a, LatentAttention):
        latent = a.kv_lora_rank + a.rope_head_dim
        query = _matmul(setting, role, rows, float(a.q_lora_rank or hidden), heads * a.head_dim)
        expand = _matmul(
            setting,
            role,
            rows,
            float(a.kv_lora_rank),
            heads * (a.nope_head_dim + a.v_head_dim),
            2.0,
        )
        qkv = (
            _matmul(setting, role, rows, hidden, float(latent + (a.q_lora_rank or 0)))
            + query
            + expand
        )
    elif isinstance(a, LinearAttention):
        qkv = _matmul(setting, role, rows, hidden, a.in_columns / cases.tp)
    else:
        kv = np.ceil(a.kv_heads / np.minimum(cases.tp, a.kv_heads)) * a.kv_values_per_head
        qkv = _matmul(setting, role, rows, hidden, heads * a.head_dim + a.gate / cases.tp + kv)
    return {"qkv": qkv, "o": _matmul(setting, role, rows, heads * a.v_head_dim, hidden)}


def _attention(setting: Setting, cases: Cases, step: Step, a: Attention) -> Parts:
    """What mixes tokens: attention over the prompt and over the cache (a window bounds both), or the update of a state."""
    if isinstance(a, LinearAttention):
        return {"state": _state_update(setting, cases, step, a)}
    if isinstance(a, LatentAttention):
        return _latent_attention(setting, cases, step, a)
    if isinstance(a, CompressedAttention):
        return _compressed_attention(setting, cases, step, a)
    heads, window, token_bytes = (
        a.heads / cases.tp,
        a.window or np.inf,
        kv_token_bytes(setting, a, cases.tp),
    )
    wide = heads * (a.head_dim + a.v_head_dim)
    io = wide * setting.activation_bytes
    pairs, seen = (
        step.prefill_tokens * np.minimum(step.prefill_context, window),
        step.sequences * np.minimum(step.context, window),
    )
    device, cache, q = setting.cluster.device, setting.kv_dtype, step.queries
    prefill = operator_s(
        device,
        "attention_prefill",
        setting.model.dtype,
        2 * wide * pairs,
        (io + 2 * token_bytes) * step.prefill_tokens,
    )
    moved = token_bytes / cases.cp * seen + q * io * step.sequences
    decode = operator_s(device, "attention_decode", cache, 2 * wide * q * seen, moved)
    parts = {"attention": prefill + decode}
    return parts | _shared_context(setting, cases, step, wide)


def _latent_attention(setting: Setting, cases: Cases, step: Step, a: LatentAttention) -> Parts:
    """MLA: a prompt's keys and values are expanded per head; decoding, and reading the chosen tokens only, works on the latent."""
    b, device, base = setting.activation_bytes, setting.cluster.device, setting.model.dtype
    heads, attends, token_bytes = (
        a.heads / cases.tp,
        a.attends or np.inf,
        kv_token_bytes(setting, a, cases.tp),
    )
    expanded, absorbed = (
        heads * (a.head_dim + a.v_head_dim),
        heads * (a.kv_values_per_head + a.kv_lora_rank),
    )
    context = np.minimum(step.prefill_context, attends)
    pairs = step.prefill_tokens * np.minimum(step.prefill_context * expanded, context * absorbed)
    seen = step.sequences * np.minimum(step.context, attends)
    prefill = operator_s(
        device,
        "mla_prefill",
        base,
        2 * pairs,
        step.prefill_tokens * (2 * expanded * b + token_bytes),
    )
    moved = seen * token_bytes / cases.cp + step.queries * step.sequences * absorbed * b
    decode = operator_s(
        device, "mla_decode", setting.kv_dtype, 2 * step.queries * seen * absorbed, moved
    )
    parts = {"attention": prefill + decode}
    parts |= _shared_context(setting, cases, step, absorbed)
    if a.index_heads:
        parts["indexer"] = _indexer(setting, step, a)
    return parts


def _shared_context(setting: Setting, cases: Cases, step: Step, wide: Float) -> Parts:
    """What ranks that share a cache exchange to decode (vLLM's decode context parallelism): queries before, partial outputs after."""
    if not (cases.cp > 1).any():
        return {}
    exchanged = step.queries * step.sequences * wide * cases.cp * setting.activation_bytes
    seconds = all_gather_s(setting.cluster, rank_group(setting.cluster, cases, cases.cp), exchanged)
    return {"context": np.where((cases.cp > 1) & (step.sequences > 0), seconds, 0.0)}


def _indexer(setting: Setting, step: Step, a: LatentAttention) -> Float:
    """Scores of all past tokens by every index head, in fp8, on each rank alike; and the projections that make them."""
    hidden, rows = float(setting.model.hidden), step.rows
    queries = float(a.index_heads * a.index_head_dim)
    project = _matmul(setting, "attention", rows, float(a.q_lora_rank or hidden), queries)
    project = project + _matmul(
        setting, "attention", rows, hidden, float(a.index_head_dim + a.index_heads)
    )
    seen = step.sequences * step.context
    moved = (
        seen * a.index_bytes_per_token
        + step.prefill_context * np.minimum(step.prefill_tokens, 1.0) * a.index_bytes_per_token
    )
    scores = step.queries * seen + step.prefill_tokens * step.prefill_context
    return project + operator_s(setting.cluster.device, "gemm", "fp8", 2 * queries * scores, moved)


def _compressed_projections(
    setting: Setting, cases: Cases, rows: Float, a: CompressedAttention
) -> Parts:
    """Queries through a latent, one key, what entries are made of; the output by groups of heads, then all of them together."""
    hidden, width, latent = float(setting.model.hidden), a.heads * a.head_dim, float(a.q_lora_rank)
    qkv = _matmul(setting, "attention", rows, hidden, latent + a.head_dim) + _matmul(
        setting, "attention", rows, latent, width / cases.tp
    )
    if a.ratio:
        made = float(a.state_values_per_token + a.index_state_values_per_token + a.index_heads)
        qkv = qkv + _matmul(
            setting, "unquantized", rows, hidden, made, 3.0 if a.index_heads else 1.0
        )
    groups = a.o_groups * a.o_lora_rank / cases.tp
    out = _matmul(setting, "attention", rows, float(width // a.o_groups), groups) + _matmul(
        setting, "attention", rows, groups, hidden
    )
    return {"qkv": qkv, "o": out}


def _compressed_attention(
    setting: Setting, cases: Cases, step: Step, a: CompressedAttention
) -> Parts:
    """A window of tokens and entries of the past (all, or those that the indexer chose); every head reads the same values."""
    b, device, base = setting.activation_bytes, setting.cluster.device, setting.model.dtype
    wide, entry_bytes = (
        a.heads / cases.tp * 2 * a.head_dim,
        a.entry_bytes(bytes_per_value(setting.kv_dtype)),
    )
    pairs, seen = (
        step.prefill_tokens * _attended(a, step.prefill_context),
        step.sequences * _attended(a, step.context),
    )
    prefill = operator_s(
        device,
        "mla_prefill",
        base,
        2 * pairs * wide,
        step.prefill_tokens * (wide * b + entry_bytes),
    )
    moved = seen * entry_bytes + step.queries * step.sequences * wide * b
    decode = operator_s(
        device, "mla_decode", setting.kv_dtype, 2 * step.queries * seen * wide, moved
    )
    parts = {"attention": prefill + decode}
    if (
        a.ratio
    ):  # a token's values are kept until their entry is made, which reads those of all its tokens
        values = (
            step.rows * (1 + a.series) * (a.state_values_per_token + a.index_state_values_per_token)
        )
        parts["compressor"] = operator_s(
            device, "elementwise", base, 4 * values, values * STATE_VALUE_BYTES, 2.0 * a.series
        )
    if a.index_heads:
        parts["indexer"] = _entry_scores(setting, step, a)
    return parts


def _attended(a: CompressedAttention, context: Float) -> Float:
    """Tokens and entries that a token attends to."""
    entries = np.minimum(context / a.ratio, a.attends or np.inf) if a.ratio else 0.0
    return np.minimum(context, a.local) + entries


def _entry_scores(setting: Setting, step: Step, a: CompressedAttention) -> Float:
    """Scores of all entries by every index head, in fp8, on each rank alike; the queries for them, and the choice by fp32 scores."""
    queries, seen = float(a.index_heads * a.index_head_dim), step.sequences * step.context / a.ratio
    prompt = step.prefill_context / a.ratio
    moved = (seen + prompt * np.minimum(step.prefill_tokens, 1.0)) * a.index_entry_bytes
    scores = step.queries * seen + step.prefill_tokens * prompt
    project = _matmul(setting, "attention", step.rows, float(a.q_lora_rank), queries)
    device = setting.cluster.device
    choose = operator_s(
        device, "elementwise", "fp32", scores, 2 * 4 * scores + 2 * step.rows * queries, 2.0
    )
    return project + choose + operator_s(device, "gemm", "fp8", 2 * queries * scores, moved)


def _state_update(setting: Setting, cases: Cases, step: Step, a: LinearAttention) -> Float:
    """Reading and writing each sequence's state once a step, and about four operations per value and token on it."""
    state, values = state_bytes(setting, a, cases.tp), a.state_values / cases.tp
    moved = 2 * state * (step.sequences + np.minimum(step.prefill_tokens, 1.0))
    return operator_s(
        setting.cluster.device,
        "elementwise",
        setting.model.dtype,
        4 * step.rows * values,
        moved,
        2.0,
    )


def _experts(setting: Setting, cases: Cases, rows: Float, mlp: MoeMlp) -> Parts:
    """Router, routed and shared experts, and what moves tokens to experts. All wait for the fullest rank (`routing.crowding`).

    With shared experts (ep) and data-parallel attention every rank sees the tokens of all: they are gathered before and
    scattered after the experts (vLLM's default all-gather/reduce-scatter backend); otherwise tensor parallelism's all-reduce.
    """
    hidden, b, device = setting.model.hidden, setting.activation_bytes, setting.cluster.device
    ranks = expert_ranks(cases)
    shared = np.where(cases.shares_experts, ranks, 1.0)
    tokens = np.where(cases.shares_experts, cases.dp, 1) * rows
    fullest = crowding(mlp, tokens, shared) * tokens
    inside = mlp.expert_hidden(hidden)
    per_expert = mlp.matrices * inside * mlp.intermediate
    flops = 2 * mlp.top_k * per_expert / ranks * fullest
    weights = per_expert * setting.stored_bytes("experts") / ranks * distinct_experts(mlp, fullest)
    width = mlp.intermediate / ranks * shared
    routed = mlp.top_k / shared * (2 * inside + mlp.matrices * width)
    moved = (
        2 * inside * b * tokens + routed * b * fullest
    )  # read and summed; copied in and out, activated
    out = {
        "router": _matmul(setting, "router", rows, float(hidden), float(mlp.experts)),
        "experts": experts_s(
            device, setting.stored_dtype("experts"), flops, weights, moved, tokens
        ),
    }
    if mlp.shared_intermediate:
        width = mlp.shared_intermediate / cases.tp
        up = _matmul(setting, "shared", rows, float(hidden), (mlp.matrices - 1) * width)
        out["shared_experts"] = up + _matmul(setting, "shared", rows, width, float(hidden))
    out["all_to_all"] = _exchange_s(setting, cases, rows, mlp)
    return out


def _exchange_s(setting: Setting, cases: Cases, rows: Float, mlp: MoeMlp) -> Float:
    """Seconds to bring tokens to experts that replicas share and the sums back, by the quickest way the engine has."""
    hidden, b, cluster, how = (
        setting.model.hidden,
        setting.activation_bytes,
        setting.cluster,
        setting.engine.split.exchange,
    )
    replicas = np.where(cases.shares_experts, cases.dp, 1)
    ways = []
    if how is None or "gather" in how.ways:
        everyone = rank_group(cluster, cases, replicas, cases.tp)
        ways.append(2 * all_gather_s(cluster, everyone, cases.dp * hidden * b * rows))
    if how is not None and "dispatch" in how.ways:
        members, width = (
            rank_group(cluster, cases, np.where(replicas > 1, expert_ranks(cases), 1.0)),
            mlp.expert_hidden(hidden),
        )
        sent = bytes_per_value("fp8-block") if setting.stored_dtype("experts") in how.narrow else b
        share = rows / cases.tp  # the tensor-parallel ranks of a replica hold the same tokens
        ways.append(
            add(dispatch_s(cluster, members, share, mlp.top_k, width * size) for size in (sent, b))
        )
    return (1.0 - (how.overlap if how else 0.0)) * reduce(np.minimum, ways)


def _ends(setting: Setting, cases: Cases, step: Step, tp: Group, reduce_s: Float) -> Parts:
    """Embedding, head, and hand-over between pipeline stages."""
    hidden, b, dtype = setting.model.hidden, setting.activation_bytes, setting.model.dtype
    vocabulary = padded_vocabulary(setting.model.vocabulary) / cases.tp
    rows_bytes = hidden * b * step.rows
    crossed = (
        np.minimum(rank_group(setting.cluster, cases, cases.tp * cases.pp).remote, cases.pp) - 1
    )  # boundaries that are between islands
    hand_over = send_s(
        setting.cluster, crossed / np.maximum(cases.pp - 1, 1), rows_bytes / cases.tp
    )
    lookup = operator_s(setting.cluster.device, "elementwise", dtype, np.zeros(1), 2 * rows_bytes)
    logits = all_gather_s(setting.cluster, tp, vocabulary * cases.tp * b * step.sampled)
    return {
        "embedding": lookup + reduce_s,
        "head": _matmul(setting, "head", step.sampled, float(hidden), vocabulary) + logits,
        "pipeline": (cases.pp - 1) * hand_over,
    }
