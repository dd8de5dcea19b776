"""Weights of a rank as each engine shards, pads and stores them; draft layers and vocabulary.

Layers that llama.cpp leaves in the host's memory are computed there.
"""

from __future__ import annotations

from collections import Counter
from typing import Literal

import numpy as np

from recipe_core.base.arrays import Float, add
from recipe_core.estimates.columns.serving import Cases, Setting
from recipe_core.estimates.rules.widths import holds_shared_whole, rounds_blocks
from recipe_core.hardware.host import host_links
from recipe_core.models.spec import Layer, ModelSpec, MoeMlp, Tensor

VOCABULARY_PADDING = 64  # vLLM's and Megatron's embedding rows are padded to a multiple of this


def stage_layer_bounds(layers: int, stages: int) -> list[tuple[int, int]]:
    """First and past-the-last layer of each pipeline stage, by vLLM's rule.

    A remainder goes one layer each to the stages before the last, from the back, so that the stage
    with the head stays lightest. Source: ``get_pp_indices`` in vLLM's ``distributed/utils.py``.
    """
    sizes = [layers // stages] * stages
    for i in range(2, layers % stages + 2):
        sizes[-i] += 1
    ends = np.cumsum(sizes)
    return [(int(end - size), int(end)) for end, size in zip(ends, sizes, strict=True)]


def padded_vocabulary(vocabulary: int) -> int:
    """Rows of the embedding as engines allocate it."""
    return -(-vocabulary // VOCABULARY_PADDING) * VOCABULARY_PADDING


def expert_ranks(cases: Cases) -> Float:
    """Ranks that hold one copy of the experts: tp, or tp × dp where experts are shared."""
    return np.where(cases.shares_experts, cases.tp * cases.dp, cases.tp).astype(float)


def _tensor_share(setting: Setting, tensor: Tensor, layer: Layer, cases: Cases) -> Float:
    """Share of a layer's tensor on the fullest rank."""
    tp = cases.tp.astype(np.float64)
    if tensor.role == "shared" and isinstance(layer.mlp, MoeMlp):
        return _shared_share(setting, tensor, layer.mlp, cases)
    if tensor.shard == "replicated":
        return np.ones_like(tp)
    if tensor.shard == "kv_heads":
        return 1 / np.minimum(tp, layer.attention.kv_heads if layer.attention else 1)
    if tensor.shard == "experts" and isinstance(layer.mlp, MoeMlp):
        ep = cases.ep.astype(np.float64)
        fullest = np.ceil(layer.mlp.experts / ep) / layer.mlp.experts
        return np.where(cases.shares_experts, fullest * ep / expert_ranks(cases), 1 / tp)
    share: Float = 1 / tp
    return share


def _shared_share(setting: Setting, tensor: Tensor, mlp: MoeMlp, cases: Cases) -> Float:
    """Share of shared experts: whole, cut, or cut into whole scale blocks (one per case)."""
    cut: Float = 1 / cases.tp
    quantization = setting.model.quantization
    stored = tensor.stored or (quantization.stored("shared") if quantization else None)
    if stored and stored.block and rounds_blocks(setting, "shared"):
        width = mlp.shared_intermediate
        cut = np.ceil(width / stored.block / cases.tp) * stored.block / width
    return np.where(holds_shared_whole(setting, cases), 1.0, cut)


def layer_weight_bytes(setting: Setting, layer: Layer, cases: Cases) -> Float:
    """Weights of one layer on one rank, with the padding of the engine's kernels (one per case)."""
    return add(
        tensor_bytes(setting, layer, tensor, cases)
        for tensor in layer.tensors(setting.model.hidden)
    )


def draft_layer(model: ModelSpec) -> Layer:
    """The layer of a draft: the model's last complete one, as MTP and EAGLE heads repeat it."""
    complete = [
        layer for layer in model.layers if layer.attention is not None and layer.mlp is not None
    ]
    return (complete or model.layers)[-1]


def draft_projection(model: ModelSpec) -> int:
    """Weights that join a draft layer's inputs: last hidden state and next token's embedding."""
    return 2 * model.hidden * model.hidden


def draft_weight_bytes(setting: Setting, cases: Cases) -> Float:
    """Weights of all draft layers on one rank, with their projection, which is never split.

    Embedding and head are the model's.
    """
    layer = layer_weight_bytes(setting, draft_layer(setting.model), cases)
    projection = draft_projection(setting.model) * setting.stored_bytes("unquantized")
    return cases.draft_layers * (layer + projection)


def tensor_bytes(setting: Setting, layer: Layer, tensor: Tensor, cases: Cases) -> Float:
    """Bytes of a layer's tensor on one rank."""
    share = _tensor_share(setting, tensor, layer, cases)
    plain = tensor.numel * setting.tensor_bytes(tensor) * share
    if tensor.role == "experts" and isinstance(layer.mlp, MoeMlp):
        return plain * _tile_growth(setting, layer.mlp, cases)
    return plain + _row_padding_bytes(setting, tensor, share)


def _tile_growth(setting: Setting, mlp: MoeMlp, cases: Cases) -> Float:
    """Factor by which experts grow where the kernel rounds their widths up to full tiles."""
    device = setting.cluster.device
    tiles = setting.engine.memory.tiles(
        setting.stored_dtype("experts"), device.runtime, device.architecture
    )
    if tiles is None:
        return np.ones(len(cases))
    hidden = mlp.expert_hidden(setting.model.hidden)
    width = mlp.intermediate / np.where(cases.shares_experts, 1, cases.tp)
    taller = np.ceil(hidden / tiles.hidden) * tiles.hidden / hidden
    growth: Float = taller * (np.ceil(width / tiles.intermediate) * tiles.intermediate / width)
    return growth


def _row_padding_bytes(setting: Setting, tensor: Tensor, share: Float) -> Float:
    """Bytes appended to the rows of an fp8 tensor of which a rank holds ``share``.

    A row holds the inputs: splitting outputs leaves fewer rows, splitting inputs shorter ones.
    """
    rule, quantization = setting.engine.memory.row_padding, setting.model.quantization
    padding = np.zeros_like(share)
    if rule is None or quantization is None or setting.weight_dtype != quantization.dtype:
        return padding
    dtype = setting.stored_dtype(tensor.role)
    padded = dtype == quantization.dtype and quantization.scheme in rule.schemes
    if not padded or setting.cluster.device.runtime not in rule.runtimes:
        return padding
    for matrix in tensor.matrices:
        rows = matrix.outputs * (1.0 if matrix.cuts_inputs else share)
        row_bytes = matrix.inputs * (share if matrix.cuts_inputs else 1.0)  # one byte per fp8 value
        aligned = row_bytes % rule.multiple_bytes == 0
        padding = padding + np.where(aligned, rows * rule.added_bytes, 0.0)
    return padding


def vocabulary_bytes(
    setting: Setting, cases: Cases, role: Literal["embedding", "head"] = "embedding"
) -> Float:
    """Bytes of the embedding, or of the head, on one rank (one per case)."""
    model = setting.model
    rows_bytes = padded_vocabulary(model.vocabulary) * model.hidden * setting.stored_bytes(role)
    return np.asarray(rows_bytes / cases.tp, dtype=np.float64)


def adapter_bytes(setting: Setting, cases: Cases) -> Float:
    """Bytes of LoRA adapters on a rank: places for all that may be on the device at once.

    ``slots · 2 bytes · Σ r · (inputs + outputs)`` over the matrices outside experts; what a matrix
    cuts over ranks its adapter cuts, the other half is on all. Source: vLLM 0.32.0,
    ``lora/layers`` (``create_lora_weights``: lora_a_stacked and lora_b_stacked).
    """
    adapters = setting.effects.adapters
    if adapters is None:
        return np.zeros(len(cases))
    values = np.zeros(len(cases))
    for layer, count in setting.model.kinds:
        for item in layer.tensors(setting.model.hidden):
            for matrix in item.matrices:
                cut_width, full_width = matrix.outputs, matrix.inputs
                if matrix.cuts_inputs:
                    cut_width, full_width = full_width, cut_width
                values = values + count * (cut_width / cases.tp + full_width)
    return np.asarray(adapters.slots * 2 * adapters.rank * values / cases.pp)


def host_weight_bytes(setting: Setting, cases: Cases) -> Float:
    """Bytes of a device's weights that are in the host's memory instead, one per case.

    Layers on the host leave every stage with the same share of the others.
    """
    dense, experts = _host_bytes(setting, cases)
    return setting.effects.host_weights_bytes + (dense + experts) / cases.pp


def host_layers_s(setting: Setting, cases: Cases, rows: Float) -> Float:
    """Seconds of a step in which the host reads its layers once: ``bytes / host bandwidth``.

    Of experts the share that ``rows`` tokens choose: ``1 - (1 - chosen / all) ^ rows``. What the
    host computes for many rows at once, and copies that engines prefer for these, are left out.
    """
    dense, experts = _host_bytes(setting, cases)
    mlps = [layer.mlp for layer in setting.model.layers if isinstance(layer.mlp, MoeMlp)]
    routed_share = mlps[0].top_k / mlps[0].experts if mlps else 1.0
    touched = 1 - (1 - routed_share) ** np.maximum(rows, 1.0)
    return np.asarray((dense + touched * experts) / host_links().host_memory.value)


def _host_bytes(setting: Setting, cases: Cases) -> tuple[Float, Float]:
    """Bytes of what every token reads on the host, and of experts there."""
    effects, layers = setting.effects, setting.model.layers
    dense, experts = np.zeros(len(cases)), np.zeros(len(cases))
    with_experts = layers[: max(effects.host_layers, effects.host_expert_layers)]
    for layer, count in Counter(with_experts).items():
        experts = experts + count * _expert_bytes(setting, layer, cases)
    for layer, count in Counter(layers[: effects.host_layers]).items():
        weight_bytes = layer_weight_bytes(setting, layer, cases)
        dense = dense + count * (weight_bytes - _expert_bytes(setting, layer, cases))
    return dense, experts


def _expert_bytes(setting: Setting, layer: Layer, cases: Cases) -> Float:
    tensors = layer.tensors(setting.model.hidden) if isinstance(layer.mlp, MoeMlp) else []
    out = np.zeros(len(cases))
    for tensor in tensors:
        if tensor.role == "experts":
            out = out + tensor_bytes(setting, layer, tensor, cases)
    return out
