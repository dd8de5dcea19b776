"""Encoder models (BERT and its relatives) by their fields: every token attends to all others.

They embed or score a text. What a config leaves to the modelling class of its ``model_type`` is
data: ``encoders.yaml``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal, cast

from pydantic import BaseModel, ConfigDict

from recipe_core.base.documents import read_shipped
from recipe_core.base.types import Task
from recipe_core.models.attention import EncoderAttention, GroupedAttention
from recipe_core.models.config.fields import (
    MAX_CONTEXT,
    MAX_EXPERTS,
    MAX_LAYERS,
    MAX_VOCABULARY,
    MAX_WIDTH,
    Config,
    Reader,
)
from recipe_core.models.mlp import DenseMlp, Mlp, MoeMlp
from recipe_core.models.spec import Layer
from recipe_core.models.tensors import Tensor, tensor

# Names of fields in configs that were published before transformers had the family.
_ALSO = {
    "n_embd": "hidden_size",
    "n_layer": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "n_inner": "intermediate_size",
    "n_positions": "max_position_embeddings",
}

_GATED_WORDS = ("swiglu", "geglu", "glu", "reglu", "gated")


class _Family(BaseModel):
    """A modelling class: what it has whatever its config says; the file explains the fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    gated: bool = False
    attention_bias: bool = True
    mlp_bias: Literal["all", "down", "none"] = "all"
    norm_bias: bool = True
    positions: Literal["learned", "none"] = "none"
    offset: int = 0
    pooler: bool = False
    unnormed: int = 0
    config: Mapping[str, int] = {}


@dataclass(frozen=True, slots=True)
class EncoderParts:
    """An encoder: layers, tensors outside them, and the longest text in tokens."""

    layers: tuple[Layer, ...]
    extras: tuple[Tensor, ...]
    max_context: int


@cache
def _encoder_families() -> dict[str, _Family]:
    values = cast("dict[str, Any]", read_shipped(Path(__file__).with_name("encoders.yaml")))
    return {name: _Family.model_validate(value) for name, value in values.items()}


def is_encoder(config: Config) -> bool:
    """Return whether a config is of a modelled encoder; one that decodes is not."""
    return str(config.get("model_type")) in _encoder_families() and not config.get("is_decoder")


def with_defaults(config: Config) -> Config:
    """The fields under today's names, with the defaults of their family underneath."""
    family = _encoder_families()[str(config.get("model_type"))]
    config_fields = {name: value for name, value in config.items() if value is not None}
    older = {
        new: config_fields[old]
        for old, new in _ALSO.items()
        if old in config_fields and new not in config_fields
    }
    return {**family.config, **older, **config_fields}


def encoder_parts(read: Reader) -> EncoderParts:
    """Layers, tables and norms of an encoder, from fields ``with_defaults``.

    Raises:
        ModelError: naming the field, its value and what is wrong with it.
    """
    family = _encoder_families()[str(read.config["model_type"])]
    hidden = read.whole(("hidden_size",), MAX_WIDTH)
    count = read.whole(("num_hidden_layers",), MAX_LAYERS)
    width = read.whole(("intermediate_size",), MAX_WIDTH)
    attentions = _encoder_attentions(read, family, hidden, count)
    mlps = [_encoder_mlp(read, family, width, number) for number in range(count)]
    layers = tuple(Layer(attention, mlp) for attention, mlp in zip(attentions, mlps, strict=True))
    positions = read.whole(("max_position_embeddings",), MAX_CONTEXT)
    longest = positions - (family.offset if _has_position_table(read, family) else 0)
    if longest < 1:
        raise read.error("max_position_embeddings", f"{positions} leaves no token a position.")
    return EncoderParts(layers, _encoder_extras(read, family, hidden, layers, positions), longest)


def encoder_task(config: Config) -> Task:
    """Return whether a checkpoint embeds or scores texts, by the class that its config names."""
    names = config.get("architectures")
    class_name = str(names[0]) if isinstance(names, list) and names else ""
    return "score" if class_name.endswith(("ForSequenceClassification", "ForRanking")) else "embed"


def attend_all_layers(config: Config, layers: tuple[Layer, ...]) -> tuple[Layer, ...]:
    """A decoder's layers, where its config lets every token attend to all of its text.

    Such a model embeds or scores (EmbeddingGemma, Llama's bidirectional copies).
    """
    sees_all = config.get("use_bidirectional_attention") is True or config.get("is_causal") is False
    if not sees_all or not all(type(layer.attention) is GroupedAttention for layer in layers):
        return layers
    return tuple(
        replace(
            layer,
            attention=EncoderAttention(
                **{
                    dimension.name: getattr(layer.attention, dimension.name)
                    for dimension in fields(GroupedAttention)
                }
            ),
        )
        for layer in layers
    )


def _encoder_attentions(
    read: Reader, family: _Family, hidden: int, count: int
) -> list[EncoderAttention]:
    """The attention of each layer; of some families most see a window only (ModernBERT)."""
    heads = read.whole(("num_attention_heads",), MAX_WIDTH)
    if hidden % heads:
        raise read.error("num_attention_heads", f"{heads} does not divide hidden_size {hidden}.")
    bias = read.config.get("qkv_proj_bias", read.config.get("attention_bias"))
    bias = family.attention_bias if bias is None else bool(bias)
    size = hidden // heads
    full = EncoderAttention(heads, heads, size, size, bias=bias)
    window = read.whole(("local_attention",), MAX_CONTEXT, default=0, minimum=0)
    if not window:
        return [full] * count
    local = EncoderAttention(heads, heads, size, size, window=window, bias=bias)
    words = read.words("layer_types", length=count)
    if words:
        return [local if word == "sliding_attention" else full for word in words]
    interval = read.whole(("global_attn_every_n_layers",), MAX_LAYERS, default=1)
    return [local if number % interval else full for number in range(count)]


def _encoder_mlp(read: Reader, family: _Family, width: int, number: int) -> Mlp:
    """The feed-forward of a layer; every so many layers have experts (nomic-embed v2)."""
    interval = read.whole(("moe_every_n_layers",), MAX_LAYERS, default=0, minimum=0)
    if interval and number % interval == 1 % interval and read.has("num_experts"):
        experts = read.whole(("num_experts",), MAX_EXPERTS)
        picked = read.whole(("moe_top_k",), MAX_EXPERTS)
        return MoeMlp(experts, picked, width, gated=False)
    return DenseMlp(width, gated=_has_encoder_gate(read, family))


def _has_encoder_gate(read: Reader, family: _Family) -> bool:
    """Return whether a feed-forward has a gate: by its fields (Jina, Nomic), else its family."""
    for name in ("feed_forward_type", "activation_function"):
        if isinstance(word := read.config.get(name), str):
            return word in _GATED_WORDS
    return family.gated


def _has_position_table(read: Reader, family: _Family) -> bool:
    """Return whether positions have a table; ALiBi and rotations have none."""
    positions = read.config.get("position_embedding_type")
    return family.positions == "learned" and positions in (None, "absolute")


def _encoder_extras(
    read: Reader, family: _Family, hidden: int, layers: tuple[Layer, ...], positions: int
) -> tuple[Tensor, ...]:
    """Tables of positions and segments, the pooler, and biases and norms beyond the layers'.

    ``ModelSpec`` counts a norm's scale before each half and one at the end; a norm after the
    embedding takes the latter's place in encoders that end without one.
    """
    out = []
    if _has_position_table(read, family):
        rows = tensor("position_embedding", positions * hidden, "embedding", "replicated")
        out.append(rows)
    if kinds := read.whole(("type_vocab_size",), MAX_VOCABULARY, default=0, minimum=0):
        out.append(tensor("type_embedding", kinds * hidden, "embedding", "replicated"))
    if family.pooler and read.config.get("add_pooling_layer") is not False:
        out.append(tensor("pooler", hidden * hidden + hidden, "unquantized", "replicated"))
    small = _encoder_bias_values(read, family, hidden, layers)
    if family.norm_bias:
        small += (2 * len(layers) + 1) * hidden
    if family.unnormed:  # such an encoder ends with a norm, and has one after the embedding
        small += (1 - family.unnormed) * hidden
    if small > 0:
        out.append(tensor("encoder.small", small, "norm", "replicated"))
    return tuple(out)


def _encoder_bias_values(
    read: Reader, family: _Family, hidden: int, layers: tuple[Layer, ...]
) -> int:
    """Biases that the layers' own tensors leave out: of attention outputs and feed-forwards."""
    count = 0
    up = read.config.get("mlp_fc1_bias", read.config.get("mlp_bias"))
    down = read.config.get("mlp_fc2_bias", read.config.get("mlp_bias"))
    plain = family.mlp_bias == "all" and not _has_encoder_gate(
        read, family
    )  # gates have none (Jina)
    up = plain if up is None else bool(up)
    down = family.mlp_bias != "none" if down is None else bool(down)
    for layer in layers:
        if isinstance(layer.attention, EncoderAttention) and layer.attention.bias:
            count += hidden
        if isinstance(layer.mlp, DenseMlp):
            count += up * (layer.mlp.matrices - 1) * layer.mlp.intermediate + down * hidden
        elif layer.mlp is not None:
            count += down * hidden
    return count
