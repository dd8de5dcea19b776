"""One rank of a split: its parameters counted, its cache filled, its forward watched."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import DynamicCache

from recipe_core.calibration.trace.build import build, keep_layers, kinds, layer_list
from recipe_core.calibration.trace.peak import PeakTracker
from recipe_core.calibration.trace.shard import Cut, cut, fake_group, localise
from recipe_core.model.spec import ModelSpec
from recipe_core.physics.serving.cache_pages import ENTRY_BLOCK_TOKENS

SHORT = 8  # tokens; twice this is within every window
CACHED = ("keys", "values", "compressed_kv")
"""What a layer of transformers' cache calls the vectors that attention reads; everything else in it is state."""


@dataclass(frozen=True)
class Rank:
    """Rank 0's share of a model. ``kind_of`` names each layer's kind, ``layers`` has one real layer of each."""

    model: nn.Module
    kind_of: list[int]
    layers: list[nn.Module]
    tied: bool
    done: Cut
    widths: Mapping[int, float]
    """Bytes of a cached vector of so many values that engines keep in a layout of their own."""

    @property
    def span(self) -> tuple[int, int]:
        """Two lengths between which the cache grows as on the whole: within every window, or a compressed past by whole blocks."""
        model: Any = self.model
        rates = getattr(model.config, "compress_rates", None)
        start = (
            SHORT
            if not rates
            else math.lcm(*rates.values(), model.config.sliding_window, ENTRY_BLOCK_TOKENS)
        )
        return start, 2 * start

    @property
    def class_name(self) -> str:
        """The transformers class that was built."""
        return type(self.model).__name__

    @property
    def added(self) -> list[str]:
        """Modules that engines cut and transformers' plan does not."""
        return self.done.added

    @property
    def whole(self) -> list[str]:
        """Matrices that this rank holds uncut."""
        return self.done.whole

    @property
    def gathered(self) -> list[str]:
        """Projections in layers whose output transformers gathers."""
        return self.done.gathered

    @property
    def repeated_kv(self) -> bool:
        """Whether ranks outnumber KV heads."""
        return self.done.repeated_kv

    def weight_bytes(self, start: int, stop: int) -> int:
        """Parameters of a pipeline stage: its layers, the embedding on the first, the final norm and the head on the last."""
        first, last = start == 0, stop == len(self.kind_of)
        ends = self._ends()
        out = sum(_bytes(self.layers[self.kind_of[i]]) for i in range(start, stop))
        if last:
            out += ends["other"] + (0 if first and self.tied else ends["head"])
        return out + (ends["embedding"] if first else 0)

    def _ends(self) -> dict[str, int]:
        """Bytes outside the layers. A tied head is the embedding's tensor: a last stage of its own holds a copy."""
        model: Any = self.model
        embedding, head = (
            _bytes(model.get_input_embeddings()),
            _bytes(model.get_output_embeddings()),
        )
        inside = sum(_bytes(layer) for layer in self.layers)
        other = _bytes(model) - inside - embedding - (0 if self.tied else head)
        return {"embedding": embedding, "head": head, "other": other}

    def cached_bytes(self, tokens: int, value_bytes: float) -> list[float]:
        """Bytes that each kind of layer holds in the model's own cache after a prompt of ``tokens``.

        Keys and values are counted at ``value_bytes`` each (``widths`` as those say), states in the dtype that they have.
        """
        model: Any = self.model
        cache = DynamicCache(config=model.config)
        with torch.no_grad():
            model.base_model(input_ids=_ids(tokens), past_key_values=cache, use_cache=True)
        return [self._held(layer, value_bytes) for layer in cache.layers]

    def _held(self, layer: Any, value_bytes: float) -> float:
        """Bytes of the tensors of one layer of a transformers cache; one that is key and value at once counts once."""
        named = {id(t): (name, t) for name, item in vars(layer).items() for t in _tensors(item)}
        return sum(
            self._bytes_of(t, value_bytes) if name in CACHED else t.numel() * t.element_size()
            for name, t in named.values()
        )

    def _bytes_of(self, vectors: torch.Tensor, value_bytes: float) -> float:
        width = vectors.shape[-1]
        return vectors.numel() * (
            self.widths[width] / width if width in self.widths else value_bytes
        )

    def cached_bytes_per_token(self, value_bytes: float) -> list[float]:
        """Bytes by which each kind of layer's cache grows with a token over ``span``."""
        start, stop = self.span
        pairs = zip(
            self.cached_bytes(start, value_bytes), self.cached_bytes(stop, value_bytes), strict=True
        )
        return [(long - short) / (stop - start) for short, long in pairs]

    def activation_peak_bytes(self, tokens: int, *, embeds: bool, sampled: int = 0) -> int:
        """The most bytes alive at once beside parameters in a stage's forward of ``tokens``.

        ``embeds``: the stage begins with the embedding. ``sampled``: how many tokens' logits it ends with. Layers keep
        nothing for one another in inference, so one of each kind shows the peak of all.
        """
        model: Any = self.model
        tracker = PeakTracker(model)
        with tracker, torch.no_grad():
            width = {"dtype": model.dtype, "device": "cpu"}
            given = (
                {"input_ids": _ids(tokens)}
                if embeds
                else {"inputs_embeds": torch.empty(1, tokens, model.config.hidden_size, **width)}
            )
            if sampled:
                model(**given, use_cache=False, logits_to_keep=sampled)
            else:
                model.base_model(**given, use_cache=False)
        return tracker.peak


def _ids(tokens: int) -> torch.Tensor:
    return torch.zeros(1, tokens, dtype=torch.long, device="cpu")


def _tensors(item: Any) -> list[torch.Tensor]:
    """The tensors of at least two dimensions in an attribute: itself, or those it holds by number (states of linear layers)."""
    items = list(item.values()) if isinstance(item, dict) else [item]
    return [t for t in items if isinstance(t, torch.Tensor) and t.ndim > 1]


def _bytes(module: nn.Module) -> int:
    return sum(p.numel() * p.element_size() for p in module.parameters())


@contextmanager
def rank_of(
    spec: ModelSpec,
    dtype: str,
    *,
    tp: int,
    dp: int,
    ep: int,
    widths: Mapping[int, float] | None = None,
) -> Iterator[Rank]:
    """Rank 0 of a stage's ``tp × dp`` ranks, alive (under fake tensors) while the context is."""
    model = build(spec, dtype)
    of, first = kinds(model)
    keep_layers(model, first)
    with fake_group(tp * dp if tp > 1 or ep > 1 else 1):
        done = cut(model, tp=tp, dp=dp, ep=ep)
        with FakeTensorMode(allow_non_fake_inputs=True):
            localise(model)
            owner, name = layer_list(model)
            anywhere: Any = model
            tied = anywhere.get_input_embeddings().weight is anywhere.get_output_embeddings().weight
            yield Rank(model, of, list(getattr(owner, name)), tied, done, widths or {})
