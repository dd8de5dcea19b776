"""Encoders beside a language model: towers that turn images or sound into tokens of its prompt.

A tower is a stack of equal transformer layers over patches (of an image) or frames (of sound),
with an embedding before it and a projector behind it that joins several positions to a token.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from recipe_core.models.tensors import Tensor, tensor

Modality = Literal["image", "audio"]

MODALITIES: tuple[Modality, ...] = ("image", "audio")

# What goes through the tower of a modality, by the names of prompts' items.
THROUGH: dict[Modality, tuple[str, ...]] = {"image": ("image", "video"), "audio": ("audio",)}

# What the tower of a modality is called; videos go through that of images.
PARTS: dict[Modality, str] = {"image": "vision encoder", "audio": "audio encoder"}


@dataclass(frozen=True, slots=True)
class Tower:
    """One encoder: its sizes, and its weights by part.

    ``layer_weights``: parameters of one of ``layers`` equal layers. ``embedding_weights``: what
    turns patches or frames into ``hidden`` values, with learned positions. ``projector_weights``:
    what joins the positions of a token and widens them to the language model. ``positions``:
    patches or frames that become one token of the prompt. ``patch``: values of a patch that come in
    (0 for sound, whose are few). ``outputs``: values of a token that the
    projector hands on. ``item_tokens``: tokens of the largest image or piece of sound that its
    processor admits by default; ``repeats``: of how many such pieces the longest video consists.
    ``sharded``: whether an engine cuts its layers over tensor-parallel ranks.
    """

    modality: Modality
    hidden: int
    layers: int
    heads: int
    intermediate: int
    layer_weights: int
    embedding_weights: int
    projector_weights: int
    positions: float
    outputs: int
    patch: int
    item_tokens: int
    repeats: int = 1
    sharded: bool = True

    @classmethod
    def of_size(cls, modality: Modality, parameters: int, outputs: int) -> Tower:
        """A tower of which nothing is known but how many parameters it has."""
        return cls(modality, 0, 0, 1, 0, 0, parameters, 0, 1.0, outputs, 0, 1, sharded=False)

    @property
    def name(self) -> str:
        return PARTS[self.modality]

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Its weights, which stay in the base dtype: layers, and what surrounds them."""
        around = self.embedding_weights + self.projector_weights
        shard: Literal["tensor", "replicated"] = "tensor" if self.sharded else "replicated"
        return (
            tensor(self.name, self.layers * self.layer_weights, "unquantized", shard, 0.0),
            tensor(self.name, around, "unquantized", "replicated", 0.0),
        )

    @property
    def parameters(self) -> int:
        around = self.embedding_weights + self.projector_weights
        return self.layers * self.layer_weights + around

    @property
    def token_flops(self) -> float:
        """Matrix products behind one token of the prompt, attention scores aside."""
        per_position = self.layers * self.layer_weights + self.embedding_weights
        return 2.0 * (per_position * self.positions + self.projector_weights)

    def score_flops(self, tokens: float) -> float:
        """Attention scores and their sums over one image or piece of sound of so many tokens.

        Every position looks at every other: ``4 · n² · h`` a layer (windows are not modelled).
        """
        positions = tokens * self.positions
        return 4.0 * self.layers * positions * positions * self.hidden


@dataclass(frozen=True, slots=True)
class Media:
    """The media of a prompt besides text: ``items`` on average, of ``tokens`` each."""

    tower: Tower
    items: float
    tokens: int
