"""Memory of a rank, by part. Per device; the fullest pipeline stage is the one reported.

Parts: ``weights`` as the engine shards them, ``kv_cache`` (what the workload needs of it), both with those of draft layers, ``activations``
(workspace of the largest step), ``runtime`` (context and communication buffers). The engine's pool is what its share of the device leaves.

Source of the workspace and pool rules: vLLM's profile run (``v1/worker/gpu_worker.py``, ``v1/core/kv_cache_utils.py``);
twelve logged boots agree within 0.72 GiB. Left out: CUDA graphs (0–1 GiB, inside the band) and fragmentation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from recipe_core.base.arrays import Float, add
from recipe_core.model.spec import CompressedAttention, MoeMlp
from recipe_core.physics.serving.cache import (
    Counted,
    context_bytes,
    in_flight_bytes,
    kv_token_bytes,
    packed_blocks,
    state_bytes,
)
from recipe_core.physics.serving.weights import (
    draft_layer,
    draft_weight_bytes,
    layer_weight_bytes,
    stage_layers,
    vocabulary_bytes,
)
from recipe_core.space.serving import Cases, Setting


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes per device of the fullest rank (arrays over cases); the four parts add up to ``total_bytes`` exactly.

    pool_bytes: what the engine has for its cache. pool_tokens: tokens of context a replica's pool holds.
    sequence_bytes: cache of one request at its full length. max_concurrency: such requests over all replicas.
    context_limit: the longest single request; context_at_load: the longest length of all requests held at once.
    usable_bytes: the engine's share of the device. start_bytes: what must fit into it for the engine to start.
    """

    weights_bytes: Float
    kv_needed_bytes: Float
    activations_bytes: Float
    runtime_bytes: Float
    total_bytes: Float
    capacity_bytes: Float
    usable_bytes: Float
    pool_bytes: Float
    pool_tokens: Float
    sequence_bytes: Float
    start_bytes: Float
    max_concurrency: Float
    context_limit: Float
    context_at_load: Float

    @property
    def shortfall_bytes(self) -> Float:
        """How much is missing for the engine to start; zero or less when it starts."""
        return self.start_bytes - self.usable_bytes


def activation_bytes(setting: Setting, cases: Cases) -> Float:
    """Workspace of the largest step: a layer's activations for every batched token, or the sampler's buffers if larger.

    ``max(T · b · (3h + 3f/tp), c · S · V, T · K · (h + 2·f_e) · b / ep)`` with T batched tokens, S sequences; the sampler
    gathers logits over tensor parallelism, so V is whole there. Source: fits of vLLM boots (3 vocabularies, within 3 %).
    """
    model, b = setting.model, setting.activation_bytes
    tokens = cases.max_batched_tokens
    if not setting.engine.chunked_prefill:  # a whole prompt goes through at once
        tokens = np.maximum(tokens, cases.input_tokens)
    out = (
        setting.engine.memory.sampler_bytes_per_logit.value * cases.max_num_seqs * model.vocabulary
    )
    for layer, _ in model.kinds:
        if isinstance(layer.mlp, MoeMlp):
            wide = layer.mlp.shared_intermediate / cases.tp
            routed = layer.mlp.top_k * (
                model.hidden
                + 2 * layer.mlp.intermediate / np.where(cases.shares_experts, 1, cases.tp)
            )
            ranks = np.where(cases.shares_experts, cases.ep, 1)
            out = np.maximum(
                out,
                tokens
                * b
                * np.maximum(3 * model.hidden + 3 * wide, routed * np.maximum(cases.dp, 1) / ranks),
            )
        else:
            width = layer.mlp.intermediate if layer.mlp else 0
            out = np.maximum(out, tokens * b * (3 * model.hidden + 3 * width / cases.tp))
    return out


def memory(setting: Setting, cases: Cases, sequences: Float) -> Memory:
    """Memory of the fullest rank when ``sequences`` requests per replica are held at their full length.

    What the stages of a pipeline hold is looked up by its length; stages that hold the same count once. Candidates are arrays.
    """
    if not len(cases):
        return Memory(*(np.zeros(0) for _ in Memory.__dataclass_fields__))
    lengths, which = np.unique(cases.pp, return_inverse=True)
    if any(
        isinstance(layer.attention, CompressedAttention) for layer, _ in setting.model.kinds
    ):  # packed by whole numbers of layers
        fields = {name: np.zeros(len(cases)) for name in Memory.__dataclass_fields__}
        for k, stages in enumerate(lengths):
            rows = np.flatnonzero(which == k)
            columns = stage_columns(
                setting, cases.take(rows), int(stages), sequences[rows], distinct=True
            )
            for name, values in _fullest(
                {name: np.stack([column[name] for column in columns]) for name in fields}
            ).items():
                fields[name][rows] = values
        return Memory(**fields)
    held = [_held(setting.model.order, int(stages), distinct=True) for stages in lengths]
    padded = [
        [stages[min(k, len(stages) - 1)] for stages in held] for k in range(max(map(len, held)))
    ]
    table = np.array(
        [[(stage.first, stage.last, *stage.counts) for stage in row] for row in padded],
        dtype=np.float64,
    )
    first, last, *counts = np.take(np.moveaxis(table, -1, 0), which, axis=-1)
    return Memory(
        **_fullest(
            _stage_column(
                setting, cases, _every_stage(setting, cases), counts, first, last, sequences
            )
        )
    )


@dataclass(frozen=True, slots=True)
class _Held:
    """What a pipeline stage holds: how many layers of each kind, and whether it is the first, the last or both."""

    counts: tuple[int, ...]
    first: bool
    last: bool


@lru_cache(4096)
def _held(order: tuple[int, ...], stages: int, *, distinct: bool = False) -> tuple[_Held, ...]:
    """Every stage, first to last, of a model whose layers are of such kinds; equal ones once where ``distinct``."""
    kinds, bounds = range(max(order) + 1), stage_layers(len(order), min(stages, len(order)))
    counts = [tuple(map(order[start:end].count, kinds)) for start, end in bounds]
    every = [_Held(count, n == 0, n == len(bounds) - 1) for n, count in enumerate(counts)]
    return tuple(dict.fromkeys(every) if distinct else every)


@dataclass(frozen=True, slots=True)
class _EveryStage:
    """What does not depend on the stage; ``layers`` is one layer of each kind."""

    activations: Float
    runtime: Float
    vocabulary: Float
    extras: Float
    layers: tuple[Float, ...]
    drafts: Float | None


def _every_stage(setting: Setting, cases: Cases) -> _EveryStage:
    model, use = setting.model, setting.engine.memory
    together = (
        cases.tp * cases.pp > 1
    ) | cases.shares_experts  # plain replicas do not talk to each other
    return _EveryStage(
        activations=activation_bytes(setting, cases),
        runtime=np.where(
            together, use.context_parallel_bytes.value, use.context_single_bytes.value
        ),
        vocabulary=vocabulary_bytes(setting, cases),
        extras=add(
            t.numel * setting.stored_bytes(t.role) / np.where(t.shard == "vocabulary", cases.tp, 1)
            for t in model.extras
        ),
        layers=tuple(layer_weight_bytes(setting, kind, cases) for kind, _ in model.kinds),
        drafts=draft_weight_bytes(setting, cases) if cases.draft_layers.any() else None,
    )


def _stage_column(
    setting: Setting,
    cases: Cases,
    every: _EveryStage,
    counts: Sequence[int | Float],
    first: Float,
    last: Float,
    sequences: Float,
) -> dict[str, Float]:
    """The columns of ``Memory`` of a stage with ``counts`` layers of each kind: one number, one for each case, or several stages of each.

    ``first`` and ``last`` are 1 where it is one.
    """
    model = setting.model
    ends = np.where(first * last > 0, 1.0 if model.tied_embeddings else 2.0, first + last)
    weights = (
        add(count * each for count, each in zip(counts, every.layers, strict=True))
        + ends * every.vocabulary
        + first * every.extras
    )
    kinds = zip((kind for kind, _ in model.kinds), counts, strict=True)
    layers: Counted = tuple(
        (kind, count) for kind, count in kinds if not isinstance(count, int) or count
    )
    if every.drafts is not None:
        weights = weights + last * every.drafts
        layers = (*layers, (draft_layer(model), last * cases.draft_layers))
    return _stage(
        setting, cases, layers, _Fixed(weights, every.activations, every.runtime), sequences
    )


def stage_columns(
    setting: Setting, cases: Cases, stages: int, sequences: Float, *, distinct: bool = False
) -> list[dict[str, Float]]:
    """The columns of ``Memory`` of every pipeline stage, first to last, of cases with so many; equal stages once where ``distinct``."""
    every, one = _every_stage(setting, cases), np.ones(len(cases))
    held = _held(setting.model.order, stages, distinct=distinct)
    return [
        _stage_column(
            setting, cases, every, stage.counts, stage.first * one, stage.last * one, sequences
        )
        for stage in held
    ]


@dataclass(frozen=True, slots=True)
class _Fixed:
    """What a rank holds whatever its requests."""

    weights: Float
    activations: Float
    runtime: Float

    @property
    def total(self) -> Float:
        return self.weights + self.activations + self.runtime


def _pool(
    setting: Setting, cases: Cases, fixed: _Fixed, capacity: Float
) -> tuple[Float, Float, Float]:
    """What the cache gets, what must fit besides it, and into how much, by the engine's rule."""
    share = capacity * cases.memory_fraction
    rule = setting.engine.memory.pool
    if rule == "static":
        return share - fixed.weights, fixed.weights, share
    if rule == "of-free":
        return (capacity - fixed.total) * cases.memory_fraction, fixed.total, capacity
    return share - fixed.total, fixed.total, share


def _stage(
    setting: Setting, cases: Cases, layers: Counted, fixed: _Fixed, sequences: Float
) -> dict[str, Float]:
    """The columns of ``Memory`` of one stage."""
    capacity = np.full(len(cases), setting.cluster.device.usable_memory_bytes)
    full = np.minimum(cases.input_tokens + cases.output_tokens, cases.max_context)
    sequence, longest = (
        context_bytes(setting, layers, cases, context) for context in (full, cases.max_context)
    )
    pool, besides, usable = _pool(setting, cases, fixed, capacity)
    must_hold = (
        longest
        if setting.engine.memory.needs_longest
        else context_bytes(setting, layers, cases, cases.block_tokens)
    )
    in_flight = in_flight_bytes(setting, layers, cases, cases.max_context)
    room = np.maximum(pool, 0)
    settled = np.maximum(pool - in_flight, 0)
    needed = sequences * sequence
    context_limit, context_at_load = _context_limits(
        setting, layers, cases, pool, np.maximum(sequences, 1)
    )
    return {
        "weights_bytes": fixed.weights,
        "kv_needed_bytes": needed,
        "activations_bytes": fixed.activations,
        "runtime_bytes": fixed.runtime,
        "total_bytes": fixed.weights + needed + fixed.activations + fixed.runtime,
        "capacity_bytes": capacity,
        "usable_bytes": usable,
        "pool_bytes": room,
        "sequence_bytes": sequence,
        "start_bytes": besides + must_hold + in_flight,
        "pool_tokens": np.floor(settled / np.maximum(longest, 1) * cases.max_context),
        "max_concurrency": np.floor(settled / np.maximum(sequence, 1)) * cases.replicas,
        "context_limit": context_limit,
        "context_at_load": context_at_load,
    }


def _fullest(columns: dict[str, Float]) -> dict[str, Float]:
    """Of several stages (the first of two axes) the fullest, with the cache bounded by the one that holds the fewest tokens."""
    total = columns["total_bytes"]
    fullest, rows = np.argmax(total, axis=0), np.arange(total.shape[1])
    out = {
        name: column[fullest, rows] if column.ndim > 1 else column
        for name, column in columns.items()
    }
    out["start_bytes"] = np.max(columns["start_bytes"], axis=0)
    for name in ("pool_tokens", "max_concurrency", "context_limit", "context_at_load"):
        out[name] = np.min(columns[name], axis=0)
    return out


def _context_limits(
    setting: Setting, layers: Counted, cases: Cases, pool: Float, sequences: Float
) -> tuple[Float, Float]:
    """Longest request (tokens) of which the pool holds one, and ``sequences``: windows and states cost a constant, other caches grow."""
    if packed_blocks(setting, layers) is not None:
        one, several = _longest_packed(
            setting, layers, cases, pool, np.stack([np.ones(len(cases)), sequences])
        )
        return one, several
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
        n * state_bytes(setting, layer.attention, cases.tp) for layer, n in unbounded
    )

    def limit(share: Float) -> Float:
        tokens = np.where(
            growing > 0, np.maximum(share - fixed, 0) / np.maximum(growing, 1e-9), np.inf
        )
        return np.minimum(
            np.floor(tokens / cases.block_tokens) * cases.block_tokens, setting.model.max_context
        )

    return limit(pool), limit(pool / sequences)


def _longest_packed(
    setting: Setting, layers: Counted, cases: Cases, pool: Float, sequences: Float
) -> Float:
    """The same where blocks are packed: what a request holds is a staircase, searched by halving."""
    least, most = np.zeros_like(sequences), np.full_like(sequences, setting.model.max_context)
    while (least < most).any():
        middle = np.ceil((least + most) / 2)
        needed = sequences * context_bytes(setting, layers, cases, middle) + in_flight_bytes(
            setting, layers, cases, middle
        )
        least, most = (
            np.where(needed <= pool, middle, least),
            np.where(needed <= pool, most, middle - 1),
        )
    return least
