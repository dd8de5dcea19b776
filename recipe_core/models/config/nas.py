"""Models of an architecture search: ``block_configs`` gives each layer its own shape."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from recipe_core.models.attention import GroupedAttention
from recipe_core.models.config.attention import HEAD_DIM, HEADS
from recipe_core.models.config.fields import MAX_CONTEXT, MAX_WIDTH, Reader
from recipe_core.models.mlp import DenseMlp
from recipe_core.models.spec import Layer


def nas_layers(read: Reader, hidden: int, layers: int) -> tuple[Layer, ...]:
    """The layers that ``block_configs`` lists."""
    blocks = read.config["block_configs"]
    if (
        not isinstance(blocks, list)
        or len(blocks) != layers
        or not all(isinstance(block, Mapping) for block in blocks)
    ):
        raise read.error("block_configs", f"is not a list of {layers} objects, one per layer.")
    return tuple(
        _layer(read, cast("Mapping[str, Any]", block), hidden, i) for i, block in enumerate(blocks)
    )


def _layer(read: Reader, block: Mapping[str, Any], hidden: int, index: int) -> Layer:
    inner = Reader(block, f"{read.field}.block_configs.{index}")
    attention, mlp = inner.inside("attention"), inner.inside("ffn")
    for half in (attention, mlp):
        if half.has("replace_with_linear", "sparsify"):
            raise half.error(
                "replace_with_linear", "layers replaced by one matrix are not modelled yet."
            )
    return Layer(
        None if attention.has("no_op") else _attention(read, attention, hidden),
        None if mlp.has("no_op") else _mlp(mlp, hidden),
    )


def _attention(read: Reader, block: Reader, hidden: int) -> GroupedAttention:
    heads, group = read.whole(HEADS, MAX_WIDTH), block.whole(("n_heads_in_group",), MAX_WIDTH)
    if heads % group:
        raise block.error(
            "n_heads_in_group", f"{heads} attention heads are not divisible by {group}."
        )
    dim = read.whole(HEAD_DIM, MAX_WIDTH, default=hidden // heads)
    window = block.whole(("window_length",), MAX_CONTEXT) if block.has("window_length") else None
    return GroupedAttention(heads, heads // group, dim, dim, window)


def _mlp(block: Reader, hidden: int) -> DenseMlp:
    """DeciLM's width for ``ffn_mult``: two thirds of twice the multiple, rounded up to 256."""
    if block.has("intermediate_size"):
        return DenseMlp(block.whole(("intermediate_size",), MAX_WIDTH))
    width = int(2 * block.number("ffn_mult", 1024) * hidden / 3)
    return DenseMlp(-(-width // 256) * 256)
