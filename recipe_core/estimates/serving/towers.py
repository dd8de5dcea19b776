"""Towers of a multimodal model on a rank: their weights, the engine's profile run, their time.

vLLM cuts the layers of a tower over tensor-parallel ranks where its heads divide by them, keeps the
projector whole, and has both on every pipeline stage. Its profile run encodes as many of the
largest items as ``max(batched tokens, tokens of one)`` admits and keeps what the projector hands on
while it profiles the language model. Source: vLLM 0.32.0, ``profile_run`` of
``v1/worker/gpu_model_runner.py``, ``multimodal/encoder_budget.py``,
``v1/core/encoder_cache_manager.py``, ``_mark_tower_model`` of ``model_executor/models``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from recipe_core.base.arrays import Float, add
from recipe_core.engines.memory import GraphMemory, captured_sizes
from recipe_core.estimates.columns.serving import Cases, Setting
from recipe_core.estimates.roofline import operator_s
from recipe_core.estimates.serving.cache import block_bytes
from recipe_core.estimates.serving.cache_blocks import Counted
from recipe_core.models.spec import LinearAttention, Tower


def _graph_memory(setting: Setting) -> GraphMemory | None:
    """Return how the engine treats captured graphs on this device; None where no share has them."""
    graphs = setting.engine.memory.graphs
    return graphs if graphs and setting.cluster.device.runtime in graphs.runtimes else None


def graph_bytes(setting: Setting, cases: Cases) -> Float:
    """Bytes that the engine sets aside for captured graphs, by how many batches it captures."""
    graphs = _graph_memory(setting)
    if graphs is None:
        return np.zeros(len(cases))
    return graphs.bytes * captured_share(setting, cases.max_num_seqs)


def captured_share(setting: Setting, max_num_seqs: Float) -> Float:
    """Share of the engine's batches that is captured for so many sequences; 1 where not known."""
    graphs = _graph_memory(setting)
    if graphs is None:
        return np.ones(len(max_num_seqs))
    largest = float(graphs.batch_on(setting.cluster.device.architecture))
    sizes: Float = captured_sizes(np.minimum(2 * max_num_seqs, largest))
    return sizes / captured_sizes(np.full(len(max_num_seqs), largest))


@dataclass(frozen=True, slots=True)
class Held:
    """A rank's device in bytes: what is in it, its size, and what is left for the cache."""

    weights: Float
    runtime: Float
    capacity: Float
    pool: Float


def capture_shortfall(
    setting: Setting, cases: Cases, layers: Counted, device_memory: Held
) -> Float:
    """Bytes missing for captured graphs, which need a block of cache for each request.

    First on the whole device, before there is a cache, while the engine measures them: ``W + N +
    min(S, G) · block`` for S sequences and graphs for batches of up to G. Then in the pool, where
    layers have states: ``S · block``. Blocks that hold the states of a hybrid are large. Source:
    vLLM 0.32.0, ``_init_minimal_kv_cache_for_profiling``, and ``config/compilation.py``
    ("exceeds available Mamba cache blocks", as recipes#551 met with 1,024 sequences on an H100).
    Qwen3.8-27B in NVFP4 on an RTX 5090 dies of the first in one layer's 256 blocks of 1,568 tokens,
    784 MiB, whatever its share.
    """
    graphs = _graph_memory(setting)
    if graphs is None:
        return np.full_like(device_memory.weights, -np.inf)
    block = block_bytes(setting, layers, cases)
    batch = np.minimum(cases.max_num_seqs, graphs.batch_on(setting.cluster.device.architecture))
    resident = device_memory.weights + device_memory.runtime - graph_bytes(setting, cases)
    missing = resident + batch * block - device_memory.capacity
    if any(isinstance(layer.attention, LinearAttention) for layer, _ in layers):
        missing = np.maximum(missing, cases.max_num_seqs * block - device_memory.pool)
    return missing


# Bytes per value of a patch while it is embedded: in 32 bits as it comes, and in 16.
PIXEL_BYTES = 6.0


def _tower_ranks(setting: Setting, tower: Tower, cases: Cases) -> Float:
    rule = setting.engine.memory.encoder
    cut = rule is not None and rule.sharded and tower.sharded
    divides = (cases.tp > 0) & (tower.heads % np.maximum(cases.tp, 1) == 0)
    return np.where(cut & divides, cases.tp, 1).astype(np.float64)


def tower_bytes(setting: Setting, cases: Cases) -> Float:
    """Weights of all towers on one rank of the stages that have them."""
    out = np.zeros(len(cases))
    for tower in setting.model.towers:
        ranks = _tower_ranks(setting, tower, cases)
        for item in tower.tensors:
            share = 1 / ranks if item.shard == "tensor" else 1.0
            out = out + item.numel * setting.stored_bytes(item.role) * share
    return out


def on_every_stage(setting: Setting) -> bool:
    """Return whether pipeline stages besides the first hold the towers, too."""
    rule = setting.engine.memory.encoder
    return rule is not None and rule.every_stage


def profile_bytes(setting: Setting, cases: Cases) -> tuple[Float, Float]:
    """Bytes of the profile run of the tower with the largest item: its workspace, what it keeps.

    ``P · (2h + m·f / ranks) · b`` beside the patches, with P positions of hidden width h, the
    feed-forward's width f, m = 2 matrices of it held; ``T · o · b`` of T tokens stay.
    """
    rule, towers = setting.engine.memory.encoder, setting.model.towers
    nothing = np.zeros(len(cases))
    if rule is None or not rule.profiled or not towers:
        return nothing, nothing
    items = [_item_tokens(tower, cases) for tower in towers]
    largest = np.argmax(np.stack(items), axis=0)
    workspaces, outputs = [], []
    for tower, item in zip(towers, items, strict=True):
        budget = np.maximum(cases.max_batched_tokens, item)
        tokens = np.floor(budget / item) * item
        ranks = _tower_ranks(setting, tower, cases)
        values = 2 * tower.hidden + 2 * tower.intermediate / ranks
        positions = tokens * tower.positions
        patches = positions * tower.patch * PIXEL_BYTES
        workspaces.append(positions * values * setting.activation_bytes + patches)
        outputs.append(tokens * tower.outputs * setting.activation_bytes)
    rows = np.arange(len(cases))
    return np.stack(workspaces)[largest, rows], np.stack(outputs)[largest, rows]


def _item_tokens(tower: Tower, cases: Cases) -> Float:
    """Tokens of the largest item: an image, or a video of as many frames as the context holds."""
    pieces = np.clip(np.floor(cases.accepted_tokens / tower.item_tokens), 1, tower.repeats)
    return tower.item_tokens * pieces


def encoding_s(setting: Setting, cases: Cases, prompts: Float) -> Float:
    """Seconds that towers take for the images and sound of ``prompts`` prompts."""
    return add(
        prompts * media.items * _item_s(setting, cases, media.tower, media.tokens)
        for media in setting.media
    )


def _item_s(setting: Setting, cases: Cases, tower: Tower, tokens: float) -> Float:
    """Seconds of one item of so many tokens: matrix products, then scores, cut over the ranks."""
    device, ranks = setting.cluster.device, _tower_ranks(setting, tower, cases)
    dtype = setting.stored_dtype("unquantized")
    weights = tower.parameters * setting.stored_bytes("unquantized") / ranks
    values = 4 * tower.layers * tokens * tower.positions * tower.hidden
    moved = weights + values * setting.activation_bytes / ranks
    flops = tokens * tower.token_flops / ranks
    scores = tower.score_flops(tokens) / ranks
    products_s = operator_s(
        device, "gemm", dtype, flops, moved, 4.0 * tower.layers, label=f"{tower.name}: products"
    )
    scores_s = operator_s(
        device,
        "attention_prefill",
        dtype,
        scores,
        values * setting.activation_bytes / ranks,
        float(tower.layers),
        label=f"{tower.name}: attention",
    )
    return products_s + scores_s
