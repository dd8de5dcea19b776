"""A model step as named operators with their times, on one rank, over all layers.

Work per layer: projections and feed-forward ``2·rows·weights`` flops; bytes are weights,
activations in and out, and the cache that decoding reads. What mixes tokens stands in
`attention_operators`; which experts a step touches: `routing`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np

from recipe_core.base.arrays import Float, add
from recipe_core.estimates.columns.serving import Cases, Setting
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
from recipe_core.estimates.roofline import experts_s
from recipe_core.estimates.rules.own_options import NONE
from recipe_core.estimates.serving.attention_operators import mixer_parts
from recipe_core.estimates.serving.kernels import (
    Parts,
    Step,
    elementwise_kernel_s,
    kernel_time_factor,
    matmul_s,
    total,
)
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
from recipe_core.models.spec import (
    CompressedAttention,
    LatentAttention,
    Layer,
    LinearAttention,
    Mlp,
    MoeMlp,
)
from recipe_core.models.tensors import bytes_per_value


def serving_step_parts(setting: Setting, cases: Cases, step: Step) -> Parts:
    """Seconds of one step by part, through all pipeline stages; the parts add up to the step."""
    model, tp = setting.model, rank_group(setting.cluster, cases, cases.tp)
    reduced_bytes = model.hidden * setting.activation_bytes * step.rows
    reduce_s = fold_factors(
        kernel_time_factor(setting, "all_reduce") * all_reduce_s(setting.cluster, tp, reduced_bytes)
    )
    blocks = [
        *(
            (mixer_parts(setting, cases, step, attention), count)
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
    host = kernel_time_factor(setting, "host")
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


# Share of the fixed time of experts that is left in a captured graph; tables start their kernels
# one by one. With 1, 0.3 and 0 runs of sources left out have a loss of 2.173, 2.147 and 2.145 %.
GRAPHED = 0.3

# Share of experts a token goes to from which on they are as products: engines' own times end.
DENSE = 0.25

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


def _stage_imbalance(setting: Setting, cases: Cases) -> Float:
    """Layers of the longest stage, for which all wait, over their mean."""
    layers = len(setting.model.layers)
    return np.ceil(layers / cases.pp) * cases.pp / layers


def _feed_forward_parts(setting: Setting, cases: Cases, rows: Float, mlp: Mlp) -> Parts:
    """The second half of a layer."""
    if isinstance(mlp, MoeMlp):
        return _expert_parts(setting, cases, rows, mlp)
    hidden, width = float(setting.model.hidden), mlp.intermediate / cases.tp
    up = matmul_s(setting, "linear", rows, hidden, (mlp.matrices - 1) * width, "Gate and up")
    return {"mlp": up + matmul_s(setting, "linear", rows, width, hidden, "Down")}


def _surrounding_parts(
    setting: Setting, cases: Cases, rows: Float, layer: Layer, reduce_s: Float
) -> Parts:
    """Return what surrounds the halves of a layer: sums over tp, norms, residual streams.

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
    parts["norms"] = elementwise_kernel_s(setting, values, moved, 2.0 * blocks, label)
    return parts


def _hyper_connection(setting: Setting, rows: Float, layer: Layer) -> Float:
    """Seconds of the hyper-connection around one half of a layer.

    A small product of all streams gives the weights that join the streams before it and mix them
    with its result after it.

    Bytes are those beyond an ordinary residual's, which the norms have.
    """
    hidden, b, extra = setting.model.hidden, setting.activation_bytes, 2 * (layer.streams - 1)
    inputs, outputs = float(layer.streams * hidden), float(layer.stream_weights)
    weigh = matmul_s(setting, "norm", rows, inputs, outputs, "Stream weights")
    mixed, moved = rows * (extra + layer.streams**2) * hidden, rows * extra * hidden * b
    return weigh + elementwise_kernel_s(setting, 2 * mixed, moved, 2.0, "Mix of streams")


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
    sparse = max(0.0, 1.0 - (mlp.top_k / mlp.experts / DENSE) ** 2)  # K / E: rows of an expert
    time = kernel_time_factor(setting, "moe", dtype, sparse)
    per_row = kernel_time_factor(setting, "expert_rows", dtype, sparse)
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
        device, dtype, flops, weights, moved, tokens, per_row, GRAPHED, widens=setting.widens
    )
    out = {
        "router": matmul_s(setting, "router", rows, float(hidden), float(mlp.experts), "Router"),
        "experts": fold_factors(time * routed_s) + sorted_s,
    }
    if mlp.shared_intermediate:
        width = mlp.shared_intermediate / cases.tp
        gate_up = (mlp.matrices - 1) * width
        up = matmul_s(
            setting, "shared", rows, float(hidden), gate_up, "Shared experts, gate and up"
        )
        down = matmul_s(setting, "shared", rows, width, float(hidden), "Shared experts, down")
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
    lookup = elementwise_kernel_s(setting, np.zeros(1), 2 * rows_bytes, 1.0, "Embedding lookup")
    parts = {"embedding": lookup + reduce_s, "pipeline": (cases.pp - 1) * hand_over}
    if setting.model.generates:  # a vector or a score needs no logits
        logits = all_gather_s(setting.cluster, tp, vocabulary * cases.tp * b * step.sampled)
        head = matmul_s(setting, "head", step.sampled, float(hidden), vocabulary, "Head")
        parts["head"] = head + logits
    return parts
