"""A language model as a list of layers, its towers, and the table of its tensors.

Estimates need nothing else of a model; package `config` reads it from a ``config.json``.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

from recipe_core.base.types import Task
from recipe_core.models.attention import (
    Attention,
    CompressedAttention,
    EncoderAttention,
    GroupedAttention,
    LatentAttention,
    LinearAttention,
)
from recipe_core.models.mlp import DenseMlp, Mlp, MoeMlp
from recipe_core.models.tensors import (
    MATRIX_ROLES,
    Quantization,
    Role,
    Shard,
    Stored,
    Tensor,
    bytes_per_value,
    tensor,
)
from recipe_core.models.towers import Modality, Tower

__all__ = [
    "MATRIX_ROLES",
    "Attention",
    "CompressedAttention",
    "DenseMlp",
    "EncoderAttention",
    "GroupedAttention",
    "LatentAttention",
    "Layer",
    "LinearAttention",
    "Mlp",
    "ModelSpec",
    "MoeMlp",
    "Quantization",
    "Role",
    "Shard",
    "Stored",
    "Tensor",
    "Tower",
    "layer_kinds",
]

# What commands name as the model while nobody has said where its weights are.
UNPLACED = "./weights"


@dataclass(frozen=True, slots=True)
class Layer:
    """One decoder layer; a hybrid's layer may be only a mixer or only a feed-forward block.

    ``unquantized`` names tensors that a quantised checkpoint leaves in the base dtype in this layer
    although it turns their kind elsewhere; ``stored`` names those that it stores in another format
    here than elsewhere. ``per_layer_input`` is the width of an embedding that is
    gated into this layer (Gemma 3n and 4 E-models; 0: none). ``streams`` > 1: the residual is that
    many streams, which learned weights join before each half and part after it (hyper-connections,
    arXiv:2409.19606, as DeepSeek-V4 has them).
    """

    attention: Attention | None
    mlp: Mlp | None
    unquantized: tuple[str, ...] = ()
    per_layer_input: int = 0
    streams: int = 1
    stored: tuple[tuple[str, Stored], ...] = ()

    @property
    def stream_weights(self) -> int:
        """Values per token of a half's hyper-connection: joining, parting and mixing streams."""
        return (2 + self.streams) * self.streams if self.streams > 1 else 0

    def tensors(self, hidden: int) -> list[Tensor]:
        """Attention, feed-forward, the norm before each, and what joins residual streams."""
        halves = [half for half in (self.attention, self.mlp) if half is not None]
        out = [item for half in halves for item in half.tensors(hidden)]
        if self.per_layer_input:
            out.append(
                tensor(
                    "per_layer_input",
                    2 * hidden * self.per_layer_input,
                    "unquantized",
                    "replicated",
                )
            )
        if self.streams > 1:
            per_half = self.stream_weights * (self.streams * hidden + 1) + 3
            out.append(tensor("hyper_connections", len(halves) * per_half, "norm", "replicated"))
        if self.unquantized:
            out = [
                replace(item, role="unquantized") if item.name in self.unquantized else item
                for item in out
            ]
        if self.stored:
            formats = dict(self.stored)
            out = [replace(item, stored=formats.get(item.name)) for item in out]
        return [*out, tensor("norm", len(halves) * hidden, "norm", "replicated")]


def _digest_fields(part: Layer | Tensor) -> dict[str, Any]:
    """The fields of a part for a digest: without a format of its own where it has none.

    So digests hold from versions that knew no such formats, nor index keys, nor groups, which
    decide what cuts an engine takes and shape no figure.
    """
    values = asdict(part)
    if not (values.get("attention") or {}).get("index_dim", True):
        del values["attention"]["index_dim"]
    if not part.stored:
        return {k: v for k, v in values.items() if k != "stored"}
    formats = (
        [form for _, form in values["stored"]] if isinstance(part, Layer) else [values["stored"]]
    )
    for form in formats:
        del form["group"]
    return values


def _stored_bytes(item: Tensor, quantization: Quantization, base: str) -> float:
    """Bytes per value of a tensor: its own format, or that of its role."""
    return item.stored.bytes_each if item.stored else quantization.bytes_of(item.role, base)


def layer_kinds(layers: Sequence[Layer]) -> tuple[tuple[Layer, int], ...]:
    """Distinct layers with how often each occurs, in order of first appearance."""
    return tuple(Counter(layers).items())


DRAFTS_UNCOUNTED = (
    "The multi-token-prediction layer is not counted: engines load it only for speculative "
    "decoding."
)
# How the note ends on a model whose vision or audio encoder is left out.
NO_TOWER = "is not counted: its config gives no sizes."


@dataclass(frozen=True)
class ModelSpec:
    """A language model, decoder or encoder: layers in order, embeddings, and their stored formats.

    ``kv_dtype`` is the cache format that the checkpoint asks for (None: the engine's choice).
    ``draft_layers`` (multi-token prediction) are in the checkpoint but counted nowhere. ``extras``
    are tensors outside the layers besides embedding and head. ``towers``: encoders of images and
    sound beside the language model; those of ``left_out`` it has, too, but they are not loaded.
    ``checkpoint_bytes`` is what the
    files on disk hold, where they are at hand. ``stated_weights``: where an inline config says that
    its weights are. ``task``: what the checkpoint is made for; one that embeds or scores has no
    head.
    """

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
    kv_dtype: str | None = None
    draft_layers: int = 0
    extras: tuple[Tensor, ...] = ()
    towers: tuple[Tower, ...] = ()
    left_out: tuple[Modality, ...] = ()
    checkpoint_bytes: int | None = field(default=None, compare=False)
    stated_weights: str | None = field(default=None, compare=False)
    task: Task = "generate"

    def pooled(self, task: Task) -> ModelSpec:
        """The same as engines load it to embed or score: without its head."""
        return replace(self, task=task, tied_embeddings=True)

    @property
    def generates(self) -> bool:
        return self.task == "generate"

    @property
    def is_encoder(self) -> bool:
        """Return whether tokens attend to later ones: a text is computed whole, none is cached."""
        return any(isinstance(layer.attention, EncoderAttention) for layer, _ in self.kinds)

    @property
    def weights(self) -> str | None:
        """Return where the weights are: an id of the hub or a folder; None for a config alone.

        An inline config may state it; any other model is named by it.
        """
        if self.stated_weights:
            return self.stated_weights
        return self.name if "/" in self.name else None

    @property
    def source(self) -> str:
        """Return what an engine loads: the place of the weights, else ``UNPLACED``."""
        return self.weights or UNPLACED

    @property
    def model_type(self) -> str:
        """The family that the ``config.json`` names; empty where it names none."""
        text = self.config.get("text_config")
        inner = text.get("model_type") if isinstance(text, Mapping) else None
        return str(self.config.get("model_type") or inner or "")

    @cached_property
    def kinds(self) -> tuple[tuple[Layer, int], ...]:
        return layer_kinds(self.layers)

    @cached_property
    def mixers(self) -> tuple[tuple[Attention, int], ...]:
        """Distinct attention of all layers with its count: layers of several kinds may share it."""
        return tuple(
            Counter(layer.attention for layer in self.layers if layer.attention is not None).items()
        )

    @cached_property
    def mlps(self) -> tuple[tuple[Mlp, int], ...]:
        return tuple(Counter(layer.mlp for layer in self.layers if layer.mlp is not None).items())

    @cached_property
    def matrix_roles(self) -> tuple[Role, ...]:
        """Return what matrices of the layers are to a quantisation, each role once."""
        items = (item for layer, _ in self.kinds for item in layer.tensors(self.hidden))
        return tuple(dict.fromkeys(item.role for item in items if item.role in MATRIX_ROLES))

    @cached_property
    def order(self) -> tuple[int, ...]:
        """The kind of each layer, first to last, as its place in ``kinds``."""
        place = {kind: k for k, (kind, _) in enumerate(self.kinds)}
        return tuple(place[layer] for layer in self.layers)

    def embedding(self) -> Tensor:
        """Token embedding: a token uses one row."""
        return tensor(
            "embedding",
            self.vocabulary * self.hidden,
            "embedding",
            "vocabulary",
            1 / self.vocabulary,
        )

    def head(self) -> Tensor:
        """Language-model head (the embedding again when tied, so not counted twice)."""
        return tensor("head", self.vocabulary * self.hidden, "head", "vocabulary")

    @cached_property
    def parameters_by_part(self) -> dict[str, int]:
        """Parameters by tensor name over the whole model; sums to ``parameters``."""
        parts: Counter[str] = Counter({"embedding": self.embedding().numel})
        for layer, count in self.kinds:
            for item in layer.tensors(self.hidden):
                parts[item.name] += count * item.numel
        for item in self.extras:
            parts[item.name] += item.numel
        parts["norm"] += self.hidden
        if not self.tied_embeddings:
            parts["head"] = self.head().numel
        for tower in self.towers:
            parts[tower.name] += tower.parameters
        return dict(parts)

    @property
    def parameters(self) -> int:
        """All parameters, towers included, without draft (multi-token prediction) layers."""
        return sum(self.parameters_by_part.values())

    @property
    def language_parameters(self) -> int:
        return self.parameters - sum(tower.parameters for tower in self.towers)

    def tower(self, modality: Modality) -> Tower | None:
        return next((tower for tower in self.towers if tower.modality == modality), None)

    def serving(self, modalities: Iterable[Modality] | None) -> ModelSpec:
        """The model as an engine loads it for some modalities besides text (None: all it has)."""
        if modalities is None:
            return self
        loaded = frozenset(modalities)
        towers = tuple(tower for tower in self.towers if tower.modality in loaded)
        left_out = tuple(t.modality for t in self.towers if t.modality not in loaded)
        return replace(self, towers=towers, left_out=left_out) if left_out else self

    @property
    def counted_bytes(self) -> float:
        """Bytes of the counted parameters in the formats that the checkpoint stores them in."""
        stored = self.quantization
        tensors = [
            (item, count) for layer, count in self.kinds for item in layer.tensors(self.hidden)
        ]
        tensors += [
            (item, 1)
            for item in (
                self.embedding(),
                *([] if self.tied_embeddings else [self.head()]),
                *self.extras,
                *(item for tower in self.towers for item in tower.tensors),
            )
        ]
        plain = bytes_per_value(self.dtype)
        return sum(
            count * item.numel * (_stored_bytes(item, stored, self.dtype) if stored else plain)
            for item, count in tensors
        )

    @property
    def active_parameters(self) -> int:
        """Parameters that one token uses, embedding and head included, as on model cards."""
        per_layer = sum(
            count * item.active
            for layer, count in self.kinds
            for item in layer.tensors(self.hidden)
        )
        extras = sum(item.active for item in self.extras)
        return round(
            per_layer
            + extras
            + self.hidden
            + self.vocabulary * self.hidden * (1 if self.tied_embeddings else 2)
        )

    @property
    def partial(self) -> bool:
        return any(note.endswith((NO_TOWER, "not counted.")) for note in self.notes)

    @property
    def is_moe(self) -> bool:
        return self.experts is not None

    @property
    def experts(self) -> MoeMlp | None:
        """The first block of the layers that routes tokens to experts."""
        blocks = (layer.mlp for layer, _ in self.kinds)
        return next((block for block in blocks if isinstance(block, MoeMlp)), None)

    @property
    def plain_attention(self) -> Attention | None:
        """The one kind of attention with keys and values per head that all layers share."""
        kinds = {layer.attention for layer, _ in self.kinds}
        kind = next(iter(kinds)) if len(kinds) == 1 else None
        return None if isinstance(kind, (LatentAttention, LinearAttention)) else kind

    @property
    def weight_dtype(self) -> str:
        return self.quantization.dtype if self.quantization else self.dtype

    @cached_property
    def digest(self) -> str:
        """Hash of everything that shapes an estimate; equal for equal architectures of any name."""
        kinds = [[type(kind.attention).__name__, _digest_fields(kind)] for kind, _ in self.kinds]
        shape = [kinds[k] for k in self.order]
        quantization = None if self.quantization is None else self.quantization.fingerprint
        extras = [_digest_fields(item) for item in self.extras]
        sizes = [
            self.hidden,
            self.vocabulary,
            self.tied_embeddings,
            self.max_context,
            self.draft_layers,
        ]
        parts = [sizes, shape, self.dtype, self.kv_dtype, quantization, extras]
        parts += [] if self.generates else [self.task]
        if self.towers:
            parts.append([asdict(tower) for tower in self.towers])
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()
