"""Memory of a rank by part, per device; the fullest pipeline stage is reported.

Parts: ``weights`` as the engine shards them, ``kv_cache`` (what the workload needs), both with
those of draft layers and of towers, ``activations`` (workspace of the largest step), ``runtime``
(context and communication buffers, captured graphs). The engine's cache pool is what its share of
the device leaves.

Source of the workspace and pool rules: vLLM's profile run (``v1/worker/gpu_worker.py``,
``v1/core/kv_cache_utils.py``); twelve logged boots agree within 0.72 GiB. Left out: fragmentation,
and graphs of engines that capture them outside their share.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from recipe_core.base.arrays import Bool, Float, add
from recipe_core.estimates.columns.columns import Columns
from recipe_core.estimates.columns.serving import Cases, Setting
from recipe_core.estimates.columns.splits import dispatching_cases, exchange_dispatch
from recipe_core.estimates.serving.cache import context_bytes, in_flight_bytes
from recipe_core.estimates.serving.cache_blocks import (
    Counted,
    kv_token_bytes,
    request_state_bytes,
    shared_blocks,
    shares_blocks,
)
from recipe_core.estimates.serving.towers import (
    Held,
    capture_shortfall,
    graph_bytes,
    on_every_stage,
    profile_bytes,
    tower_bytes,
)
from recipe_core.estimates.serving.weights import (
    adapter_bytes,
    draft_layer,
    draft_weight_bytes,
    host_weight_bytes,
    layer_weight_bytes,
    stage_layer_bounds,
    vocabulary_bytes,
)
from recipe_core.models.spec import Layer, ModelSpec, MoeMlp


@dataclass(frozen=True, slots=True)
class Memory(Columns):
    """Bytes per device on the fullest rank, one number per case; four parts make ``total_bytes``.

    kv_cache_bytes: the engine's cache pool. kv_cache_tokens: tokens of context that a replica's
    pool holds. sequence_bytes: cache of one request at full length. max_concurrency: such requests
    over all replicas. max_context: the longest single request; max_context_at_load: the longest
    length of all requests held at once. usable_bytes: the engine's share of the device.
    start_bytes: what must fit into it for the engine to start. capture_shortfall: bytes missing for
    captured graphs. encoder_bytes: weights of towers, within those of all.
    """

    weights_bytes: Float
    kv_needed_bytes: Float
    activations_bytes: Float
    runtime_bytes: Float
    total_bytes: Float
    capacity_bytes: Float
    usable_bytes: Float
    kv_cache_bytes: Float
    kv_cache_tokens: Float
    sequence_bytes: Float
    start_bytes: Float
    capture_shortfall: Float
    max_concurrency: Float
    max_context: Float
    max_context_at_load: Float
    encoder_bytes: Float

    @property
    def shortfall_bytes(self) -> Float:
        """Bytes missing for the engine to start; zero or less when it starts."""
        return np.maximum(self.start_bytes - self.usable_bytes, self.capture_shortfall)

    @property
    def captures_lack_memory(self) -> Bool:
        """Mark where graphs lack memory although the cache of the longest request fits."""
        return (self.start_bytes <= self.usable_bytes) & (self.capture_shortfall > 0)


def activation_bytes(setting: Setting, cases: Cases) -> Float:
    """Workspace of the largest step: activations of a layer for all its tokens, or the sampler's.

    ``max(T · b · (3h + 3f/tp), c · S · V, T · K · (h + 2·f_e) · b / ep)`` with T batched tokens and
    S sequences. The sampler gathers logits over tensor parallelism, so V is not divided; c follows
    from the buffers of the engine's sampler. Source: logged peaks of vLLM 0.15 to 0.19 with S =
    1,024: 38 bytes a logit where it sorts, 15.4 where it does not. Known error: where the first
    term is the largest, it is 0.08 GiB too low (CodeLlama 7B, Granite 3.1 8B); models with experts
    take up to 0.65 GiB more than this (Mixtral 8x7B at TP 2; Qwen3-30B-A3B 0.45).
    """
    model, b = setting.model, setting.activation_bytes
    tokens = cases.max_batched_tokens
    if setting.whole_prompts:  # a whole prompt runs in one step
        tokens = np.maximum(tokens, cases.input_tokens)
    logit_bytes = setting.engine.memory.sampler_bytes_per_logit.value
    rows = cases.max_num_seqs if model.generates else 0 * cases.max_num_seqs
    out = logit_bytes * rows * model.vocabulary
    for layer, _ in model.kinds:
        if isinstance(layer.mlp, MoeMlp):
            values = _moe_values(model, layer.mlp, cases)
        else:
            width = layer.mlp.intermediate if layer.mlp else 0
            values = 3 * model.hidden + 3 * width / cases.tp
        out = np.maximum(out, tokens * b * (values + _score_values(setting, cases, layer)))
    return out * cases.instances


def _score_values(setting: Setting, cases: Cases, layer: Layer) -> Float | float:
    """Attention scores per token of a text, where the engine stores them: heads · its length."""
    kept_scores = setting.engine.memory.kept_scores
    if not kept_scores or not setting.model.is_encoder or layer.attention is None:
        return 0.0
    return kept_scores * layer.attention.heads / cases.tp * cases.max_context


def _largest_workspace(setting: Setting, cases: Cases) -> Float:
    """Workspace of the largest step, or of the profile run of a tower, whose outputs stay."""
    encoding, tower_outputs = profile_bytes(setting, cases)
    return np.maximum(activation_bytes(setting, cases) + tower_outputs, encoding)


def _moe_values(model: ModelSpec, mlp: MoeMlp, cases: Cases) -> Float:
    """Values per token in the workspace of a layer with experts: the dense path or the routed."""
    dense = 3 * model.hidden + 3 * (mlp.shared_intermediate / cases.tp)
    split = np.where(cases.shares_experts, 1, cases.tp)
    routed = mlp.top_k * (model.hidden + 2 * mlp.intermediate / split)
    gathered = np.where(cases.shares_experts, cases.dp / cases.ep, 1.0)
    return np.maximum(dense, routed * gathered)


def _dispatch_bytes(setting: Setting, cases: Cases) -> Float:
    """Buffers of a low-latency dispatch: a slot for each token of a rank and each expert.

    ``4 · S · E · 2h``: two to send and two to receive, in 16 bits. Source: DeepEP's layout
    (``csrc/config.hpp``); its test with 128 tokens, 288 experts and h = 7168 allocates 2.1 GB.
    """
    if exchange_dispatch(setting) is None:
        return np.zeros(len(cases))
    widest = max(
        mlp.experts * mlp.expert_hidden(setting.model.hidden)
        for mlp, _ in setting.model.mlps
        if isinstance(mlp, MoeMlp)
    )
    buffers = 4 * cases.max_num_seqs * 2 * widest
    return np.where(dispatching_cases(setting, cases), buffers, 0.0)


def _sampler_state_bytes(setting: Setting, cases: Cases) -> Float:
    """Return bytes the sampler keeps for the sequences of a step: bytes a logit times S · V."""
    state = setting.engine.memory.sampler_state_bytes_per_logit
    if state is None or not setting.model.generates:
        return np.zeros(len(cases))
    return np.asarray(state.value * cases.max_num_seqs * setting.model.vocabulary)


def serving_memory(setting: Setting, cases: Cases, sequences: Float) -> Memory:
    """Memory of the fullest rank with ``sequences`` requests per replica at their full length."""
    if not len(cases):
        return Memory(*(np.zeros(0) for _ in Memory.__dataclass_fields__))
    if shares_blocks(setting):
        return _packed_memory(setting, cases, sequences)
    depths, row_depth = np.unique(cases.pp, return_inverse=True)
    pipelines = [
        _pipeline_stages(setting.model.order, int(depth), distinct=True) for depth in depths
    ]
    longest = max(map(len, pipelines))
    # one table for all depths: short pipelines repeat their last stage, so that columns are arrays
    table = np.array(
        [
            [_stage_row(stages[min(k, len(stages) - 1)]) for stages in pipelines]
            for k in range(longest)
        ],
        dtype=np.float64,
    )
    first, last, *counts = np.take(np.moveaxis(table, -1, 0), row_depth, axis=-1)
    common = _any_stage(setting, cases)
    return Memory(
        **_fullest_stage_columns(
            _stage_column(setting, cases, common, counts, first, last, sequences)
        )
    )


def _packed_memory(setting: Setting, cases: Cases, sequences: Float) -> Memory:
    """The same for caches that share blocks, by whole numbers of layers: one depth at a time."""
    fields = {name: np.zeros(len(cases)) for name in Memory.__dataclass_fields__}
    for depth in np.unique(cases.pp):
        rows = np.flatnonzero(cases.pp == depth)
        columns = stage_columns(
            setting, cases.take(rows), int(depth), sequences[rows], distinct=True
        )
        stacked = {name: np.stack([column[name] for column in columns]) for name in fields}
        for name, values in _fullest_stage_columns(stacked).items():
            fields[name][rows] = values
    return Memory(**fields)


@dataclass(frozen=True, slots=True)
class _StageLayers:
    """Layers of each kind on a pipeline stage, and whether it is the first or the last."""

    counts: tuple[int, ...]
    first: bool
    last: bool


def _stage_row(stage: _StageLayers) -> tuple[float, ...]:
    return (stage.first, stage.last, *stage.counts)


@lru_cache(4096)
def _pipeline_stages(
    order: tuple[int, ...], depth: int, *, distinct: bool = False
) -> tuple[_StageLayers, ...]:
    """Stages, first to last, of a model with this order of layer kinds; or the distinct ones."""
    kinds, bounds = range(max(order) + 1), stage_layer_bounds(len(order), min(depth, len(order)))
    counts = [tuple(map(order[start:end].count, kinds)) for start, end in bounds]
    stages = [_StageLayers(count, n == 0, n == len(bounds) - 1) for n, count in enumerate(counts)]
    return tuple(dict.fromkeys(stages) if distinct else stages)


@dataclass(frozen=True, slots=True)
class _AnyStage:
    """The part that does not depend on the stage; ``layers``: one layer of each kind."""

    activations: Float
    runtime: Float
    embedding: Float
    head: Float
    extras: Float
    towers: Float
    layers: tuple[Float, ...]
    drafts: Float | None


def has_collectives(cases: Cases) -> Bool:
    """Cases whose ranks hold buffers for collectives.

    Plain replicas do not communicate; a stage of a pipeline only hands over what it has, and vLLM
    0.19 logged 0.07 GiB outside torch for it, where tensor parallelism took 2.1.
    """
    return (cases.tp > 1) | cases.shares_experts


def _any_stage(setting: Setting, cases: Cases) -> _AnyStage:
    model, use = setting.model, setting.engine.memory
    context = np.where(
        has_collectives(cases), use.context_parallel_bytes.value, use.context_single_bytes.value
    )
    return _AnyStage(
        activations=_largest_workspace(setting, cases),
        runtime=context
        + _dispatch_bytes(setting, cases)
        + graph_bytes(setting, cases)
        + adapter_bytes(setting, cases)
        + _sampler_state_bytes(setting, cases),
        embedding=vocabulary_bytes(setting, cases, "embedding"),
        head=vocabulary_bytes(setting, cases, "head"),
        extras=add(
            t.numel * setting.stored_bytes(t.role) / np.where(t.shard == "replicated", 1, cases.tp)
            for t in model.extras
        ),
        towers=tower_bytes(setting, cases),
        layers=tuple(layer_weight_bytes(setting, kind, cases) for kind, _ in model.kinds),
        drafts=draft_weight_bytes(setting, cases) if cases.draft_layers.any() else None,
    )


def _stage_column(
    setting: Setting,
    cases: Cases,
    common: _AnyStage,
    counts: Sequence[int | Float],
    first: Float,
    last: Float,
    sequences: Float,
) -> dict[str, Float]:
    """The columns of ``Memory`` of a stage with ``counts`` layers of each kind.

    A count is one number, one per case, or (stages, cases); ``first`` and ``last`` are 1 or 0.
    """
    model = setting.model
    # a tied head is the embedding, once where both are on one stage
    tied = first * last if model.tied_embeddings else 0.0
    weights = (
        add(count * layer for count, layer in zip(counts, common.layers, strict=True))
        + first * common.embedding
        + (last - tied) * common.head
        + first * common.extras
    )
    towers = common.towers if on_every_stage(setting) else first * common.towers
    weights = np.maximum(weights + towers - host_weight_bytes(setting, cases), 0.0)
    if setting.engine.batcher is not None and setting.engine.batcher.copies_weights:
        weights = weights * cases.instances
    kinds = zip((kind for kind, _ in model.kinds), counts, strict=True)
    layers: Counted = tuple(
        (kind, count) for kind, count in kinds if not isinstance(count, int) or count
    )
    if common.drafts is not None:
        weights = weights + last * common.drafts
        layers = (*layers, (draft_layer(model), last * cases.draft_layers))
    fixed = _Fixed(weights, common.activations, common.runtime)
    columns = _stage_memory(setting, cases, layers, fixed, sequences)
    return columns | {"encoder_bytes": towers}


def stage_columns(
    setting: Setting, cases: Cases, stages: int, sequences: Float, *, distinct: bool = False
) -> list[dict[str, Float]]:
    """The columns of ``Memory`` of every stage, first to last, of cases with so many stages.

    ``distinct``: equal stages once.
    """
    common, ones = _any_stage(setting, cases), np.ones(len(cases))
    return [
        _stage_column(
            setting, cases, common, stage.counts, stage.first * ones, stage.last * ones, sequences
        )
        for stage in _pipeline_stages(setting.model.order, stages, distinct=distinct)
    ]


@dataclass(frozen=True, slots=True)
class _Fixed:
    """The memory of a rank whatever requests there are."""

    weights: Float
    activations: Float
    runtime: Float

    @property
    def total(self) -> Float:
        return self.weights + self.activations + self.runtime


def _cache_pool(
    setting: Setting, cases: Cases, fixed: _Fixed, capacity: Float
) -> tuple[Float, Float, Float]:
    """Bytes of the cache pool, bytes that must fit besides it, and the limit of both, by engine."""
    # An engine takes its share of what the driver tells; no more of it can be had than is free.
    share = np.minimum(setting.cluster.device.told_memory_bytes * cases.memory_fraction, capacity)
    rule = setting.engine.memory.pool
    if rule == "static":
        return share - fixed.weights, fixed.weights, share
    if rule == "of-free":
        return (capacity - fixed.total) * cases.memory_fraction, fixed.total, capacity
    return share - fixed.total, fixed.total, share


def _stage_memory(
    setting: Setting, cases: Cases, layers: Counted, fixed: _Fixed, sequences: Float
) -> dict[str, Float]:
    """The columns of ``Memory`` of one stage."""
    capacity = np.full(len(cases), setting.cluster.device.usable_memory_bytes)
    full = np.minimum(cases.input_tokens + cases.output_tokens, cases.max_context)
    shared = shared_blocks(setting, layers, cases)
    sequence = context_bytes(setting, layers, cases, full, shared)
    longest = context_bytes(setting, layers, cases, cases.max_context, shared)
    pool, besides, usable = _cache_pool(setting, cases, fixed, capacity)
    accepted = cases.accepted_tokens
    smallest = context_bytes(setting, layers, cases, accepted, shared)
    if not setting.engine.memory.needs_longest:  # then one block must fit
        smallest = context_bytes(setting, layers, cases, cases.block_tokens, shared)
    if setting.engine.memory.whole_contexts and setting.mode != "static":
        sequence = smallest  # every slot has room for the longest
    in_pool = shared_blocks(setting, layers, cases, pool)
    in_flight = in_flight_bytes(setting, layers, cases, cases.max_context, pool, in_pool)
    starting = in_flight_bytes(setting, layers, cases, accepted, pool, in_pool)
    stated_pool = _stated_pool(setting, cases, longest)
    pool = pool if stated_pool is None else stated_pool
    settled = np.maximum(pool - in_flight, 0)
    # layers on the host have their cache there
    on_device = 1 - setting.effects.host_layers / len(setting.model.layers)
    needed = sequences * sequence * on_device
    alone, at_load = _context_limits(setting, layers, cases, pool, np.maximum(sequences, 1))
    pool_tokens = np.floor(settled / np.maximum(longest, 1) * cases.max_context)
    together = np.floor(settled / np.maximum(sequence, 1))
    if not setting.caches:
        pool_tokens, together = 0 * pool_tokens, 0 * together + cases.max_num_seqs
        pool = np.minimum(pool, 0.0)
    return {
        "weights_bytes": fixed.weights,
        "kv_needed_bytes": needed,
        "activations_bytes": fixed.activations,
        "runtime_bytes": fixed.runtime,
        "total_bytes": fixed.weights + needed + fixed.activations + fixed.runtime,
        "capacity_bytes": capacity,
        "usable_bytes": usable,
        "kv_cache_bytes": np.maximum(pool, 0),
        "sequence_bytes": sequence,
        "start_bytes": besides
        + (smallest + starting if stated_pool is None else stated_pool) * on_device,
        "capture_shortfall": capture_shortfall(
            setting, cases, layers, Held(fixed.weights, fixed.runtime, capacity, pool)
        ),
        "kv_cache_tokens": pool_tokens,
        "max_concurrency": together * cases.replicas,
        "max_context": alone,
        "max_context_at_load": at_load,
    }


def _stated_pool(setting: Setting, cases: Cases, longest: Float) -> Float | None:
    """Bytes of a cache whose size an option states; None where none does.

    A block, and a token, is that share of the longest request.
    """
    effects = setting.effects
    if effects.cache_bytes is not None:
        return np.full(len(cases), effects.cache_bytes)
    if effects.cache_blocks is not None:
        tokens = effects.cache_blocks * cases.block_tokens
    elif effects.cache_tokens is not None:
        tokens = np.full(len(cases), float(effects.cache_tokens))
    else:
        return None
    return np.asarray(longest / np.maximum(cases.max_context, 1.0) * tokens)


def _fullest_stage_columns(columns: dict[str, Float]) -> dict[str, Float]:
    """The fullest of several stages (the first of two axes), with the smallest pool of them all."""
    total = columns["total_bytes"]
    fullest, rows = np.argmax(total, axis=0), np.arange(total.shape[1])
    out = {
        name: column[fullest, rows] if column.ndim > 1 else column
        for name, column in columns.items()
    }
    for name in ("start_bytes", "capture_shortfall"):
        out[name] = np.max(columns[name], axis=0)
    for name in ("kv_cache_tokens", "max_concurrency", "max_context", "max_context_at_load"):
        out[name] = np.min(columns[name], axis=0)
    return out


def _context_limits(
    setting: Setting, layers: Counted, cases: Cases, pool: Float, sequences: Float
) -> tuple[Float, Float]:
    """Longest request in tokens, alone and with ``sequences`` of them in the pool (one per case).

    Windows and states cost a constant; other caches grow with the context.
    """
    if shared_blocks(setting, layers, cases) is not None:
        counts = np.stack([np.ones(len(cases)), sequences])
        alone, at_load = _longest_packed(setting, layers, cases, pool, counts)
        return alone, at_load
    unbounded = [
        (layer, n)
        for layer, n in layers
        if layer.attention is not None and layer.attention.window is None
    ]
    growing = add(
        n * kv_token_bytes(setting, layer.attention, cases.tp) / cases.cp for layer, n in unbounded
    )
    windowed = tuple(
        (layer, n)
        for layer, n in layers
        if layer.attention is not None and layer.attention.window is not None
    )
    fixed = context_bytes(setting, windowed, cases, cases.max_context)
    fixed = fixed + add(
        n * request_state_bytes(setting, layer.attention, cases.tp) for layer, n in unbounded
    )

    def limit(share: Float) -> Float:
        variable = np.maximum(share - fixed, 0)
        tokens = np.where(growing > 0, variable / np.maximum(growing, 1e-9), np.inf)
        blocks = np.floor(tokens / cases.block_tokens)
        return np.minimum(blocks * cases.block_tokens, setting.model.max_context)

    return limit(pool), limit(pool / sequences)


def _longest_packed(
    setting: Setting, layers: Counted, cases: Cases, pool: Float, sequences: Float
) -> Float:
    """The same for packed blocks: a request's bytes are a staircase, searched by bisection."""
    shared = shared_blocks(setting, layers, cases)
    in_pool = shared_blocks(setting, layers, cases, pool)
    low, high = np.zeros_like(sequences), np.full_like(sequences, setting.model.max_context)
    while (low < high).any():
        middle = np.ceil((low + high) / 2)
        cached = sequences * context_bytes(setting, layers, cases, middle, shared)
        in_flight = in_flight_bytes(setting, layers, cases, middle, pool, in_pool)
        fits = cached + in_flight <= pool
        low, high = np.where(fits, middle, low), np.where(fits, high, middle - 1)
    return low
