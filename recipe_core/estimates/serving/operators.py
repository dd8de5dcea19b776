"""A model step as named operators with their times, on one rank, over all layers.

Work per layer: projections and feed-forward ``2·rows·weights`` flops; attention ``2·(d_k + d_v)``
flops per head and pair of tokens; bytes are weights, activations in and out, and the cache that
decoding reads. Decoding with MLA is absorbed (it works on the latent); prefill expands it. Which
experts a step touches: `routing`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import reduce
from typing import Any

import numpy as np

from recipe_core.base.arrays import Float, add
from recipe_core.engines.spec import Kernel
from recipe_core.estimates.columns.serving import WIDE, Cases, Setting
from recipe_core.estimates.columns.splits import dispatching_cases, exchange_dispatch
from recipe_core.estimates.ledger import Overhead, fold_factors, only_number, record_entry
from recipe_core.estimates.network import (
    Group,
    all_gather_s,
    all_reduce_s,
    dispatch_s,
    low_latency_s,
    rank_group,
    send_s,
)
from recipe_core.estimates.roofline import experts_s, operator_s
from recipe_core.estimates.rules.kernels import untuned_time
from recipe_core.estimates.rules.own_options import NONE
from recipe_core.estimates.serving.cache import kv_token_bytes, request_state_bytes
from recipe_core.estimates.serving.routing import crowding, distinct_experts
from recipe_core.estimates.serving.towers import encoding_s
from recipe_core.estimates.serving.weights import (
    adapter_bytes,
    expert_ranks,
    host_layers_s,
    padded_vocabulary,
)
from recipe_core.hardware.cluster import host_speed
from recipe_core.hardware.host import link_rates
from recipe_core.hardware.profile import Family
from recipe_core.models.compressed import STATE_VALUE_BYTES
from recipe_core.models.spec import (
    Attention,
    CompressedAttention,
    LatentAttention,
    Layer,
    LinearAttention,
    Mlp,
    MoeMlp,
    Role,
)
from recipe_core.models.tensors import bytes_per_value

Parts = dict[str, Float]
OVER_PROMPT, OVER_CACHE = "Attention over the prompt", "Attention over the cache"


@dataclass(frozen=True, slots=True)
class Step:
    """What one scheduler runs in one step; arrays of shape (cases) or (steps, cases).

    prefill_tokens: prompt tokens, each attending to ``prefill_context`` tokens on average.
    sequences: requests that decode ``queries`` tokens each (more than one verifies a draft) at
    ``context`` tokens. sampled: rows that need logits.
    """

    prefill_tokens: Float
    prefill_context: Float
    sequences: Float
    context: Float
    sampled: Float
    queries: Float | float = 1.0

    @property
    def rows(self) -> Float:
        """Rows of the matrix products."""
        return self.prefill_tokens + self.sequences * self.queries


def stack_steps(steps: Sequence[Step]) -> Step:
    """Several steps of each case as one step of shape (steps, cases).

    What follows from the case alone, or from a column that the steps share, is then computed once.
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


def serving_step_parts(setting: Setting, cases: Cases, step: Step) -> Parts:
    """Seconds of one step by part, through all pipeline stages; the parts add up to the step."""
    model, tp = setting.model, rank_group(setting.cluster, cases, cases.tp)
    reduced_bytes = model.hidden * setting.activation_bytes * step.rows
    reduce_s = fold_factors(
        _kernel_time(setting, "all_reduce") * all_reduce_s(setting.cluster, tp, reduced_bytes)
    )
    blocks = [
        *(
            (_mixer_parts(setting, cases, step, attention), count)
            for attention, count in model.mixers
        ),
        *(
            (_feed_forward_parts(setting, cases, step.rows, mlp), count)
            for mlp, count in model.mlps
        ),
        *(
            (_surrounding_parts(setting, cases, step.rows, layer, reduce_s), count)
            for layer, count in model.kinds
        ),
    ]
    parts: Parts = {}
    for block, count in blocks:
        times = count * _stage_imbalance(setting, cases)
        for name, seconds in block.items():
            parts[name] = parts[name] + times * seconds if name in parts else times * seconds
    parts |= _end_parts(setting, cases, step, tp, reduce_s)
    if setting.media:
        prompts = step.prefill_tokens / np.maximum(cases.input_tokens, 1.0)
        parts["encoder"] = encoding_s(setting, cases, prompts)
    overhead, layers = setting.engine.overhead(setting.cluster.device.runtime), len(model.layers)
    # the host launches kernels ahead of a busy device: only what the device does not cover counts
    host = _kernel_time(setting, "host")
    slow = host_speed(setting.cluster.device)
    launches = sum(count * kernels_launched(layer) for layer, count in model.kinds)
    launched_s = _host_overhead_s(slow.layers * overhead.launch_s, launches, "kernel launch")
    unhidden = np.maximum(launched_s - total(parts), 0.0)
    parts["launch"] = np.where(step.prefill_tokens > 0, unhidden, 0.0)
    engine_s = (
        _host_overhead_s(slow.layers * overhead.step_s, 1.0, "step")
        + _host_overhead_s(slow.sequences * overhead.sequence_s, step.sequences, "sequence")
        + _host_overhead_s(slow.layers * overhead.layer_s, layers, "layer")
    )
    if setting.offload is not None and setting.offload.connector is not None:
        engine_s = engine_s + _host_overhead_s(
            setting.offload.connector.step_s, 1.0, "step, moving blocks"
        )
    parts["engine"] = fold_factors(host * engine_s)
    if setting.effects is not NONE:
        parts["options"] = _options_s(setting, cases, step)
    return parts


# Seconds of the two small products that an adapter adds to a matrix, in a captured graph.
ADAPTER_KERNELS_S = 2 * 4e-6


def _options_s(setting: Setting, cases: Cases, step: Step) -> Float:
    """Seconds that the user's own options add to a step.

    Weights in the host's memory cross the link in every step (vLLM's ``cpu_offload_gb``), or the
    host computes with them (llama.cpp's ``n_gpu_layers``); adapters of the requests in it are read,
    and start two kernels a matrix.
    """
    effects, device = setting.effects, setting.cluster.device
    seconds = np.zeros(len(cases))
    if effects.host_weights_bytes:
        rank_bytes = setting.model.counted_bytes / (cases.tp * cases.pp)
        moved = np.minimum(effects.host_weights_bytes, rank_bytes)
        seconds = seconds + cases.pp * moved / link_rates(device)[0]
    seconds = seconds + host_layers_s(setting, cases, step.rows)
    if effects.adapters is not None:
        slots = effects.adapters.slots
        read = adapter_bytes(setting, cases) / slots * np.minimum(slots, np.maximum(step.rows, 1.0))
        matrices = sum(
            count * sum(len(item.matrices) for item in layer.tensors(setting.model.hidden))
            for layer, count in setting.model.kinds
        )
        rate = device.memory_bandwidth_bytes_per_s.value
        seconds = seconds + cases.pp * read / rate + matrices * ADAPTER_KERNELS_S
    return seconds


def _host_overhead_s(each_s: float, count: Float | float, per: str) -> Any:
    """Seconds of ``count`` times something that the engine's host takes ``each_s`` for."""
    return record_entry(
        each_s * count,
        lambda seconds: Overhead(
            f"Engine, per {per}", seconds, count=only_number(count), each_s=each_s, per=per
        ),
    )


def kernels_launched(layer: Layer) -> int:
    """Kernels that the host launches for a layer where no graph covers it, as engines fuse them.

    Of attention: norm, input projections, rotation with the write to the cache, attention, output
    projection; MLA projects through latents and absorbs (four more), an indexer projects, rotates,
    scores and selects (six), a compressor makes entries (four). A state layer: norm, projections,
    convolution, gates, update, norm, output. A feed-forward: norm, up, activation, down; experts
    also route, select, sort, and combine (five more), shared ones are a feed-forward of their own.
    """
    attention, mlp, launched = layer.attention, layer.mlp, 0
    if isinstance(attention, LinearAttention):
        launched += 7
    elif attention is not None:
        launched += 5
    if isinstance(attention, LatentAttention | CompressedAttention):
        launched += 4 + 6 * (attention.index_heads > 0)
    if isinstance(attention, CompressedAttention):
        launched += 4 * (attention.ratio > 0)
    if mlp is not None:
        launched += 4
    if isinstance(mlp, MoeMlp):
        launched += 5 + 3 * (mlp.shared_intermediate > 0)
    return launched


def total(parts: Parts) -> Float:
    """Seconds of all parts together."""
    return add(parts.values())


def _stage_imbalance(setting: Setting, cases: Cases) -> Float:
    """Layers of the longest stage, for which all wait, over their mean."""
    layers = len(setting.model.layers)
    return np.ceil(layers / cases.pp) * cases.pp / layers


def _matmul(
    setting: Setting,
    role: Role,
    rows: Float,
    inputs: Float | float,
    outputs: Float | float,
    label: str,
    kernels: float = 1.0,
) -> Float:
    """Seconds of a dense product of ``rows`` with ``inputs × outputs`` weights of a role."""
    weights, values = inputs * outputs, (inputs + outputs) * setting.activation_bytes
    moved = weights * setting.stored_bytes(role) + values * rows
    dtype = setting.stored_dtype(role)
    dims = (rows, inputs, outputs)
    return _kernel_s(
        setting, "gemm", dtype, 2 * weights * rows, moved, label, kernels=kernels, dims=dims
    )


def _kernel_s(
    setting: Setting,
    family: Family,
    stored_dtype: str,
    flops: Float,
    moved_bytes: Float,
    label: str,
    *,
    kernels: float = 1.0,
    dims: tuple[Any, Any, Any] | None = None,
) -> Float:
    """Seconds of an operator (see `operator_s`) with the engine's own kernel for it."""
    device = setting.cluster.device
    seconds = operator_s(
        device,
        family,
        stored_dtype,
        flops,
        moved_bytes,
        kernels,
        label=label,
        dims=dims,
        widens=setting.widens,
    )
    time = _kernel_time(setting, family, stored_dtype)
    return seconds if time == 1 else fold_factors(time * seconds)


def _elementwise_s(
    setting: Setting, flops: Float, moved_bytes: Float, kernels: float, label: str
) -> Float:
    """Seconds of elementwise work on activations, which no engine has a kernel of its own for."""
    device, dtype = setting.cluster.device, setting.model.dtype
    return operator_s(device, "elementwise", dtype, flops, moved_bytes, kernels, label=label)


def _kernel_time(setting: Setting, kernel: Kernel, stored_dtype: str = "any") -> float:
    """Time of the engine's kernel over that of the device's profile."""
    architecture = setting.cluster.device.architecture
    factor = setting.engine.kernel_time(architecture, kernel, stored_dtype)
    if kernel not in ("gemm", "moe") or stored_dtype in WIDE:
        return factor
    return factor * untuned_time(setting, "experts" if kernel == "moe" else "dense", stored_dtype)


def _mixer_parts(setting: Setting, cases: Cases, step: Step, attention: Attention) -> Parts:
    """The first half of a layer: projections and what mixes tokens."""
    projections = _projections(setting, cases, step.rows, attention)
    return {**projections, **_attention_parts(setting, cases, step, attention)}


def _feed_forward_parts(setting: Setting, cases: Cases, rows: Float, mlp: Mlp) -> Parts:
    """The second half of a layer."""
    if isinstance(mlp, MoeMlp):
        return _expert_parts(setting, cases, rows, mlp)
    hidden, width = float(setting.model.hidden), mlp.intermediate / cases.tp
    up = _matmul(setting, "linear", rows, hidden, (mlp.matrices - 1) * width, "Gate and up")
    return {"mlp": up + _matmul(setting, "linear", rows, width, hidden, "Down")}


def _surrounding_parts(
    setting: Setting, cases: Cases, rows: Float, layer: Layer, reduce_s: Float
) -> Parts:
    """What surrounds the halves of a layer: sums over tp, norms, residual streams.

    Either half may be missing.
    """
    hidden, blocks = setting.model.hidden, (layer.attention is not None) + (layer.mlp is not None)
    split = 0
    if layer.attention is not None:
        split += 4 * layer.attention.heads * layer.attention.v_head_dim
    if isinstance(layer.mlp, MoeMlp):
        split += 3 * layer.mlp.shared_intermediate
    elif layer.mlp is not None:
        split += 3 * layer.mlp.intermediate
    values = ((4 + 2 * blocks) * hidden + split / cases.tp) * rows
    moved = values * setting.activation_bytes
    parts = {"all_reduce": blocks * reduce_s}
    if layer.streams > 1:
        parts["hyper_connections"] = blocks * _hyper_connection(setting, rows, layer)
    label = "Norms, residuals, activations"
    parts["norms"] = _elementwise_s(setting, values, moved, 2.0 * blocks, label)
    return parts


def _hyper_connection(setting: Setting, rows: Float, layer: Layer) -> Float:
    """Seconds of the hyper-connection around one half of a layer.

    A small product of all streams gives the weights that join the streams before it and mix them
    with its result after it.

    Bytes are those beyond an ordinary residual's, which the norms have.
    """
    hidden, b, extra = setting.model.hidden, setting.activation_bytes, 2 * (layer.streams - 1)
    inputs, outputs = float(layer.streams * hidden), float(layer.stream_weights)
    weigh = _matmul(setting, "norm", rows, inputs, outputs, "Stream weights")
    mixed, moved = rows * (extra + layer.streams**2) * hidden, rows * extra * hidden * b
    return weigh + _elementwise_s(setting, 2 * mixed, moved, 2.0, "Mix of streams")


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
        query = _matmul(
            setting, role, rows, float(a.q_lora_rank or hidden), heads * a.head_dim, "Query, up"
        )
        expand = _matmul(
            setting, role, rows, float(a.kv_lora_rank), width, "Key and value, up", 2.0
        )
        qkv = _matmul(setting, role, rows, hidden, latent, "Latents, down") + query + expand
    elif isinstance(a, LinearAttention):
        qkv = _matmul(setting, role, rows, hidden, a.in_columns / cases.tp, "Inputs of the state")
    else:
        kv = np.ceil(a.kv_heads / np.minimum(cases.tp, a.kv_heads)) * a.projected_per_head
        width = heads * a.head_dim + a.gate / cases.tp + kv
        qkv = _matmul(setting, role, rows, hidden, width, "Query, key, value")
    out = _matmul(setting, role, rows, heads * a.v_head_dim, hidden, "Attention output")
    return {"qkv": qkv, "o": out}


def _attention_parts(setting: Setting, cases: Cases, step: Step, a: Attention) -> Parts:
    """What mixes tokens: attention over prompt and cache (in a window), or a state's update."""
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
    prefill = _kernel_s(setting, "attention_prefill", dtype, 2 * wide * pairs, moved, OVER_PROMPT)
    moved = token_bytes / cases.cp * cached + queries * io * step.sequences
    flops = 2 * wide * queries * cached
    decode = _kernel_s(setting, "attention_decode", setting.kv_dtype, flops, moved, OVER_CACHE)
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
    prefill = _kernel_s(setting, "mla_prefill", dtype, 2 * pairs, moved, OVER_PROMPT)
    moved = cached * token_bytes / cases.cp + step.queries * step.sequences * absorbed * b
    flops = 2 * step.queries * cached * absorbed
    decode = _kernel_s(setting, "mla_decode", setting.kv_dtype, flops, moved, OVER_CACHE)
    parts = {"attention": prefill + decode, **_shared_context(setting, cases, step, absorbed)}
    if a.index_heads:
        parts["indexer"] = fold_factors(
            _kernel_time(setting, "indexer") * _indexer_s(setting, step, a)
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
    """Seconds to score all past tokens with every index head, and of the projections for it.

    Scores are computed in fp8, on each rank alike.
    """
    hidden, rows = float(setting.model.hidden), step.rows
    queries = float(a.index_heads * a.index_head_dim)
    keys = float(a.index_head_dim + a.index_heads)
    project = _matmul(
        setting, "attention", rows, float(a.q_lora_rank or hidden), queries, "Indexer, queries"
    )
    project = project + _matmul(setting, "attention", rows, hidden, keys, "Indexer, keys")
    cached = step.sequences * step.context
    prompt = step.prefill_context * np.minimum(step.prefill_tokens, 1.0)
    moved = cached * a.index_bytes_per_token + prompt * a.index_bytes_per_token
    scores = step.queries * cached + step.prefill_tokens * step.prefill_context
    device, flops = setting.cluster.device, 2 * queries * scores
    return project + operator_s(device, "gemm", "fp8", flops, moved, label="Indexer, scores")


def _compressed_projections(
    setting: Setting, cases: Cases, rows: Float, a: CompressedAttention
) -> Parts:
    """Queries through a latent, one key, inputs of entries; the output by groups, then together."""
    hidden, width, latent = float(setting.model.hidden), a.heads * a.head_dim, float(a.q_lora_rank)
    down = _matmul(setting, "attention", rows, hidden, latent + a.head_dim, "Latents, down")
    qkv = down + _matmul(setting, "attention", rows, latent, width / cases.tp, "Query, up")
    if a.ratio:
        values = float(a.state_values_per_token + a.index_state_values_per_token + a.index_heads)
        kernels = 3.0 if a.index_heads else 1.0
        qkv = qkv + _matmul(
            setting, "unquantized", rows, hidden, values, "Inputs of entries", kernels
        )
    groups = a.o_groups * a.o_lora_rank / cases.tp
    by_group = _matmul(
        setting, "attention", rows, float(width // a.o_groups), groups, "Output, by group"
    )
    together = _matmul(setting, "attention", rows, groups, hidden, "Output, together")
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
    prefill = _kernel_s(setting, "mla_prefill", dtype, 2 * pairs * wide, moved, OVER_PROMPT)
    moved = cached * entry_bytes + step.queries * step.sequences * wide * b
    flops = 2 * step.queries * cached * wide
    decode = _kernel_s(setting, "mla_decode", setting.kv_dtype, flops, moved, OVER_CACHE)
    parts = {"attention": prefill + decode}
    if a.ratio:
        # a token's values stay until their entry is made, which reads those of all its tokens
        per_token = a.state_values_per_token + a.index_state_values_per_token
        values = step.rows * (1 + a.series) * per_token
        moved = values * STATE_VALUE_BYTES
        parts["compressor"] = _elementwise_s(
            setting, 4 * values, moved, 2.0 * a.series, "Compressor"
        )
    if a.index_heads:
        parts["indexer"] = fold_factors(
            _kernel_time(setting, "indexer") * _entry_scores(setting, step, a)
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
    project = _matmul(
        setting, "attention", step.rows, float(a.q_lora_rank), queries, "Indexer, queries"
    )
    device = setting.cluster.device
    selected_bytes = 2 * 4 * scores + 2 * step.rows * queries
    select = operator_s(
        device, "elementwise", "fp32", scores, selected_bytes, 2.0, label="Indexer, selection"
    )
    flops = 2 * queries * scores
    scored = operator_s(device, "gemm", "fp8", flops, moved, label="Indexer, scores")
    return project + select + scored


def _state_update(setting: Setting, cases: Cases, step: Step, a: LinearAttention) -> Float:
    """Seconds to read and write each sequence's state once a step, and to update it.

    An update takes about four operations per value and token.
    """
    state, values = request_state_bytes(setting, a, cases.tp), a.state_values / cases.tp
    moved = 2 * state * (step.sequences + np.minimum(step.prefill_tokens, 1.0))
    return _elementwise_s(setting, 4 * step.rows * values, moved, 2.0, "Update of the state")


def _expert_parts(setting: Setting, cases: Cases, rows: Float, mlp: MoeMlp) -> Parts:
    """Router, routed and shared experts, and the exchange; all wait for the fullest rank.

    With shared experts (ep) and data-parallel attention tokens go to other ranks and back
    (`_token_exchange_s`: vLLM's default gathers them all before and scatters sums after the
    experts); otherwise tensor parallelism's all-reduce. Fullest rank: `routing.crowding`.
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
    # tokens are read and summed; rows are copied in and out, and activated
    moved = 2 * inside * b * tokens + routed * b * fullest
    dtype = setting.stored_dtype("experts")
    overhead = setting.engine.overhead(device.runtime)
    time = _kernel_time(setting, "moe", dtype)
    per_row = _kernel_time(setting, "expert_rows", dtype)
    sorted_s = record_entry(
        overhead.expert_row_s * mlp.top_k / shared * fullest,
        lambda seconds: Overhead(
            "Engine, per row of an expert",
            seconds,
            count=only_number(mlp.top_k / shared * fullest),
            each_s=overhead.expert_row_s,
            per="row of an expert",
        ),
    )
    routed_s = experts_s(
        device, dtype, flops, weights, moved, tokens, per_row, widens=setting.widens
    )
    out = {
        "router": _matmul(setting, "router", rows, float(hidden), float(mlp.experts), "Router"),
        "experts": fold_factors(time * routed_s) + sorted_s,
    }
    if mlp.shared_intermediate:
        width = mlp.shared_intermediate / cases.tp
        gate_up = (mlp.matrices - 1) * width
        up = _matmul(setting, "shared", rows, float(hidden), gate_up, "Shared experts, gate and up")
        down = _matmul(setting, "shared", rows, width, float(hidden), "Shared experts, down")
        out["shared_experts"] = up + down
    out["all_to_all"] = _token_exchange_s(setting, cases, rows, mlp)
    return out


def _token_exchange_s(setting: Setting, cases: Cases, rows: Float, mlp: MoeMlp) -> Float:
    """Seconds to bring tokens to shared experts and their sums back, the engine's fastest way.

    Decode pools that dispatch between nodes do so whatever the load: a launch says how.
    """
    hidden, b, cluster = setting.model.hidden, setting.activation_bytes, setting.cluster
    exchange, between = setting.engine.split.exchange, exchange_dispatch(setting)
    replicas = np.where(cases.shares_experts, cases.dp, 1)

    def dispatched_s(kernels: Callable[..., Float], sent: float) -> Float:
        ranks = np.where(replicas > 1, expert_ranks(cases), 1.0)
        members, width = rank_group(cluster, cases, ranks), mlp.expert_hidden(hidden)
        share = rows / cases.tp  # the tensor-parallel ranks of a replica hold the same tokens
        return add(kernels(cluster, members, share, mlp.top_k, width * size) for size in (sent, b))

    ways = []
    if exchange is None or "gather" in exchange.ways:
        everyone = rank_group(cluster, cases, replicas, cases.tp)
        ways.append(2 * all_gather_s(cluster, everyone, cases.dp * hidden * b * rows))
    if exchange is not None and "dispatch" in exchange.ways:
        narrow = setting.stored_dtype("experts") in exchange.narrow
        ways.append(dispatched_s(dispatch_s, bytes_per_value("fp8-block") if narrow else b))
    seconds = (1.0 - (exchange.overlap if exchange else 0.0)) * reduce(np.minimum, ways)
    if between is None or not (pools := dispatching_cases(setting, cases)).any():
        return seconds
    sent = bytes_per_value(between.sent[setting.stored_dtype("experts")])
    return np.where(pools, dispatched_s(low_latency_s, sent), seconds)


def _end_parts(setting: Setting, cases: Cases, step: Step, tp: Group, reduce_s: Float) -> Parts:
    """Embedding, head, and the hand-over between pipeline stages."""
    hidden, b = setting.model.hidden, setting.activation_bytes
    vocabulary = padded_vocabulary(setting.model.vocabulary) / cases.tp
    rows_bytes = hidden * b * step.rows
    islands = rank_group(setting.cluster, cases, cases.tp * cases.pp).remote
    crossed = np.minimum(islands, cases.pp) - 1  # stage boundaries that are between islands
    across = crossed / np.maximum(cases.pp - 1, 1)
    hand_over = send_s(setting.cluster, across, rows_bytes / cases.tp)
    lookup = _elementwise_s(setting, np.zeros(1), 2 * rows_bytes, 1.0, "Embedding lookup")
    parts = {"embedding": lookup + reduce_s, "pipeline": (cases.pp - 1) * hand_over}
    if setting.model.generates:  # a vector or a score needs no logits
        logits = all_gather_s(setting.cluster, tp, vocabulary * cases.tp * b * step.sampled)
        head = _matmul(setting, "head", step.sampled, float(hidden), vocabulary, "Head")
        parts["head"] = head + logits
    return parts
