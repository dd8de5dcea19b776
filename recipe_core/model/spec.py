"""What is deployed: a decoder-only language model as a list of layers, and the table of its tensors.

Everything the estimates need of a model is here; how a ``config.json`` says it is ``config.py``'s business.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Literal

Role = Literal["linear", "experts", "embedding", "head", "router", "norm"]
"""Which tensors a quantisation turns: ``linear`` are the matrices of attention and dense feed-forward."""

Shard = Literal["replicated", "tensor", "kv_heads", "experts", "vocabulary"]
"""How a tensor is cut: over tensor-parallel ranks, by KV heads (replicated once there are more ranks than heads),
over the ranks that share the experts, or by rows of the padded vocabulary."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """All weights of one kind in one layer (or in the model): ``numel`` elements, ``active`` of them used by a token."""

    name: str
    numel: int
    role: Role
    shard: Shard
    active: float


def _tensor(name: str, numel: int, role: Role, shard: Shard, active_share: float = 1.0) -> Tensor:
    return Tensor(name, numel, role, shard, numel * active_share)


@dataclass(frozen=True, slots=True)
class GroupedAttention:
    """Multi-head, grouped-query or multi-query attention; ``window`` bounds what a token sees (None: all)."""

    heads: int
    kv_heads: int
    head_dim: int
    v_head_dim: int
    window: int | None = None
    bias: bool = False

    @property
    def kv_values_per_head(self) -> int:
        """Cached values per token and KV head: key and value."""
        return self.head_dim + self.v_head_dim

    def tensors(self, hidden: int) -> list[Tensor]:
        """Projections of one layer; K and V are cut by KV heads."""
        kv = self.kv_heads * self.kv_values_per_head
        out = [
            _tensor("attention.q", hidden * self.heads * self.head_dim, "linear", "tensor"),
            _tensor("attention.kv", hidden * kv, "linear", "kv_heads"),
            _tensor("attention.o", self.heads * self.v_head_dim * hidden, "linear", "tensor"),
        ]
        if self.bias:
            out.append(_tensor("attention.bias", self.heads * self.head_dim + kv, "norm", "tensor"))
        return out


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """Multi-head latent attention (MLA, DeepSeek-V2, arXiv:2405.04434): one latent per token serves all heads.

    The cached latent (``kv_lora_rank + rope_head_dim`` values) has no heads, so every tensor-parallel rank holds all of it.
    """

    heads: int
    q_lora_rank: int | None
    kv_lora_rank: int
    nope_head_dim: int
    rope_head_dim: int
    v_head_dim: int
    window: int | None = None

    @property
    def kv_heads(self) -> int:
        """The latent is shared by all heads: one "KV head", never divided."""
        return 1

    @property
    def head_dim(self) -> int:
        """Width of a query head."""
        return self.nope_head_dim + self.rope_head_dim

    @property
    def kv_values_per_head(self) -> int:
        """Cached values per token: the latent and the rotary key."""
        return self.kv_lora_rank + self.rope_head_dim

    def tensors(self, hidden: int) -> list[Tensor]:
        """Projections of one layer: the down-projections are replicated, the up-projections cut by heads."""
        q = self.heads * self.head_dim
        out = [
            _tensor("attention.kv_a", hidden * (self.kv_lora_rank + self.rope_head_dim), "linear", "replicated"),
            _tensor("attention.kv_b", self.kv_lora_rank * self.heads * (self.nope_head_dim + self.v_head_dim), "linear", "tensor"),
            _tensor("attention.o", self.heads * self.v_head_dim * hidden, "linear", "tensor"),
        ]
        if self.q_lora_rank is None:
            return [*out, _tensor("attention.q", hidden * q, "linear", "tensor")]
        return [
            *out,
            _tensor("attention.q_a", hidden * self.q_lora_rank, "linear", "replicated"),
            _tensor("attention.q_b", self.q_lora_rank * q, "linear", "tensor"),
        ]


@dataclass(frozen=True, slots=True)
class DenseMlp:
    """A feed-forward block; gated ones have three matrices (SwiGLU), others two."""

    intermediate: int
    gated: bool = True

    @property
    def matrices(self) -> int:
        """How many ``hidden × intermediate`` matrices there are."""
        return 3 if self.gated else 2

    def tensors(self, hidden: int) -> list[Tensor]:
        """All matrices are cut over the intermediate dimension."""
        return [_tensor("mlp", self.matrices * hidden * self.intermediate, "linear", "tensor")]


@dataclass(frozen=True, slots=True)
class MoeMlp:
    """Routed experts (``top_k`` of ``experts`` per token) plus shared experts that every token uses."""

    experts: int
    top_k: int
    intermediate: int
    shared_intermediate: int = 0
    gated: bool = True

    @property
    def matrices(self) -> int:
        """How many ``hidden × intermediate`` matrices an expert has."""
        return 3 if self.gated else 2

    def tensors(self, hidden: int) -> list[Tensor]:
        """Router (replicated), routed experts, and the shared experts as one dense block."""
        per_expert = self.matrices * hidden * self.intermediate
        out = [
            _tensor("moe.router", hidden * self.experts, "router", "replicated"),
            _tensor("moe.experts", per_expert * self.experts, "experts", "experts", self.top_k / self.experts),
        ]
        if self.shared_intermediate:
            out.append(_tensor("moe.shared", self.matrices * hidden * self.shared_intermediate, "linear", "tensor"))
        return out


Attention = GroupedAttention | LatentAttention
Mlp = DenseMlp | MoeMlp


@dataclass(frozen=True, slots=True)
class Layer:
    """One decoder layer."""

    attention: Attention
    mlp: Mlp

    def tensors(self, hidden: int) -> list[Tensor]:
        """Attention, feed-forward and the two norms."""
        return [*self.attention.tensors(hidden), *self.mlp.tensors(hidden), _tensor("norm", 2 * hidden, "norm", "replicated")]


def layer_kinds(layers: Sequence[Layer]) -> tuple[tuple[Layer, int], ...]:
    """Distinct layers with how often each occurs, in order of first appearance."""
    return tuple(Counter(layers).items())


@dataclass(frozen=True, slots=True)
class Quantization:
    """What a quantised checkpoint stores: ``dtype`` for the tensors of ``roles``, the base dtype for the rest.

    ``block`` is the edge of square scale blocks (fp8 128 × 128) that a cut must respect, None when there is none.
    """

    dtype: str
    roles: frozenset[Role]
    block: int | None = None


@dataclass(frozen=True)
class ModelSpec:
    """A decoder-only language model: its layers in order, embeddings, and how its checkpoint stores them."""

    name: str
    hidden: int
    vocabulary: int
    layers: tuple[Layer, ...]
    tied_embeddings: bool
    max_context: int
    dtype: str = "bf16"
    quantization: Quantization | None = None
    notes: tuple[str, ...] = ()
    config: dict[str, object] = field(default_factory=dict, compare=False, repr=False)

    @cached_property
    def kinds(self) -> tuple[tuple[Layer, int], ...]:
        """Distinct layers of the whole model with their counts."""
        return layer_kinds(self.layers)

    def embedding(self) -> Tensor:
        """Token embedding: a token uses one row."""
        return _tensor("embedding", self.vocabulary * self.hidden, "embedding", "vocabulary", 1 / self.vocabulary)

    def head(self) -> Tensor:
        """Language-model head (the embedding again when tied, so not counted twice)."""
        return _tensor("head", self.vocabulary * self.hidden, "head", "vocabulary")

    @cached_property
    def parameters_by_part(self) -> dict[str, int]:
        """Parameters by tensor name over the whole model; sums to ``parameters``."""
        parts: Counter[str] = Counter({"embedding": self.embedding().numel})
        for layer, count in self.kinds:
            for tensor in layer.tensors(self.hidden):
                parts[tensor.name] += count * tensor.numel
        parts["norm"] += self.hidden
        if not self.tied_embeddings:
            parts["head"] = self.head().numel
        return dict(parts)

    @property
    def parameters(self) -> int:
        """All parameters of the main model; draft (multi-token prediction) layers are not counted."""
        return sum(self.parameters_by_part.values())

    @property
    def active_parameters(self) -> int:
        """Parameters that one token passes through, embedding and head included (the way model cards count)."""
        per_layer = sum(count * tensor.active for layer, count in self.kinds for tensor in layer.tensors(self.hidden))
        return round(per_layer + self.hidden + self.vocabulary * self.hidden * (1 if self.tied_embeddings else 2))

    @property
    def is_moe(self) -> bool:
        """Whether any layer routes tokens to experts."""
        return any(isinstance(layer.mlp, MoeMlp) for layer, _ in self.kinds)

    @property
    def weight_dtype(self) -> str:
        """The dtype in which the checkpoint stores its matrices."""
        return self.quantization.dtype if self.quantization else self.dtype

    @cached_property
    def digest(self) -> str:
        """Hash of everything that shapes an estimate; equal for equal architectures, whatever their name."""
        shape = [asdict(layer) for layer in self.layers]
        quantization = (
            None if self.quantization is None else [self.quantization.dtype, sorted(self.quantization.roles), self.quantization.block]
        )
        parts = [self.hidden, self.vocabulary, shape, self.tied_embeddings, self.max_context, self.dtype, quantization]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()
