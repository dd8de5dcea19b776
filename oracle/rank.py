"""One rank of a split: its parameters counted, its cache filled, its forward pass watched."""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.tensor import DTensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakIdKeyDictionary
from transformers import DynamicCache

from oracle.build import build, keep_layers, kinds, layer_list
from oracle.shard import Cut, cut, fake_group, localise
from recipe_core.estimates.serving.cache_blocks import ENTRY_BLOCK_TOKENS
from recipe_core.models.spec import ModelSpec

SHORT = 8  # tokens; twice this is within every window
# Vectors that attention reads, as a layer of transformers' cache names them; the rest is state.
CACHED = ("keys", "values", "compressed_kv")


@dataclass(frozen=True)
class Rank:
    """Rank 0's share of a model. ``kind_of``: each layer's kind; ``layers``: a real one of each."""

    model: nn.Module
    kind_of: list[int]
    layers: list[nn.Module]
    tied: bool
    split: Cut
    widths: Mapping[int, float]
    """Bytes of a cached vector, by its width, where engines have a layout of their own."""

    @property
    def span(self) -> tuple[int, int]:
        """Two lengths between which the cache grows at its final rate.

        Both are within every window; of a compressed past, both are whole blocks.
        """
        model: Any = self.model
        rates = getattr(model.config, "compress_rates", None)
        start = SHORT
        if rates:
            start = math.lcm(*rates.values(), model.config.sliding_window, ENTRY_BLOCK_TOKENS)
        return start, 2 * start

    @property
    def class_name(self) -> str:
        return type(self.model).__name__

    @property
    def added(self) -> list[str]:
        return self.split.added

    @property
    def unsplit(self) -> list[str]:
        return self.split.unsplit

    @property
    def gathered(self) -> list[str]:
        return self.split.gathered

    @property
    def repeated_kv(self) -> bool:
        return self.split.repeated_kv

    def weight_bytes(self, start: int, stop: int) -> int:
        """Parameters of a stage: its layers, embedding if first, final norm and head if last."""
        first, last = start == 0, stop == len(self.kind_of)
        ends = self._ends()
        out = sum(_bytes(self.layers[self.kind_of[i]]) for i in range(start, stop))
        if last:
            out += ends["other"] + (0 if first and self.tied else ends["head"])
        return out + (ends["embedding"] if first else 0)

    def _ends(self) -> dict[str, int]:
        """Bytes outside the layers; a tied head is the embedding, which a separate stage copies."""
        model: Any = self.model
        embedding = _bytes(model.get_input_embeddings())
        head = _bytes(model.get_output_embeddings())
        inside = sum(_bytes(layer) for layer in self.layers)
        outside_blocks = _bytes(model) - inside - embedding - (0 if self.tied else head)
        return {"embedding": embedding, "head": head, "other": outside_blocks}

    def cached_bytes(self, tokens: int, value_bytes: float) -> list[float]:
        """Bytes of each kind of layer in the model's own cache after a prompt of ``tokens``.

        Keys and values count ``value_bytes`` each (or as ``widths`` says), states their own dtype.
        """
        model: Any = self.model
        cache = DynamicCache(config=model.config)
        with torch.no_grad():
            model.base_model(input_ids=_ids(tokens), past_key_values=cache, use_cache=True)
        return [self._layer_bytes(layer, value_bytes) for layer in cache.layers]

    def _layer_bytes(self, layer: Any, value_bytes: float) -> float:
        """Bytes of a layer of a transformers cache; a tensor that is key and value counts once."""
        tensors = {id(t): (name, t) for name, item in vars(layer).items() for t in _tensors(item)}
        return sum(
            self._bytes_of(t, value_bytes) if name in CACHED else t.numel() * t.element_size()
            for name, t in tensors.values()
        )

    def _bytes_of(self, vectors: torch.Tensor, value_bytes: float) -> float:
        width = vectors.shape[-1]
        per_value = self.widths[width] / width if width in self.widths else value_bytes
        return vectors.numel() * per_value

    def cached_bytes_per_token(self, value_bytes: float) -> list[float]:
        """Bytes per token by which each kind of layer's cache grows over ``span``."""
        start, stop = self.span
        pairs = zip(
            self.cached_bytes(start, value_bytes), self.cached_bytes(stop, value_bytes), strict=True
        )
        return [(long - short) / (stop - start) for short, long in pairs]

    def activation_peak_bytes(self, tokens: int, *, embeds: bool, sampled: int = 0) -> int:
        """The most bytes alive at once, beside parameters, in a stage's forward pass of ``tokens``.

        ``embeds``: the stage begins with the embedding. ``sampled``: tokens that end in logits. In
        inference layers save nothing for one another, so one of each kind shows the peak of all.
        """
        model: Any = self.model
        tracker = PeakTracker(model)
        with tracker, torch.no_grad():
            inputs = {"input_ids": _ids(tokens)}
            if not embeds:
                shape = (1, tokens, model.config.hidden_size)
                hidden = torch.empty(*shape, dtype=model.dtype, device="cpu")
                inputs = {"inputs_embeds": hidden}
            if sampled:
                model(**inputs, use_cache=False, logits_to_keep=sampled)
            else:
                model.base_model(**inputs, use_cache=False)
        return tracker.peak


def _ids(tokens: int) -> torch.Tensor:
    return torch.zeros(1, tokens, dtype=torch.long, device="cpu")


def _tensors(item: Any) -> list[torch.Tensor]:
    """Tensors of two or more dimensions in an attribute; states of linear layers are in a dict."""
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
    """Rank 0 of a stage's ``tp × dp`` ranks, under fake tensors while the context lasts."""
    model = build(spec, dtype)
    kind_of, first = kinds(model)
    keep_layers(model, first)
    with fake_group(tp * dp if tp > 1 or ep > 1 else 1):
        result = cut(model, tp=tp, dp=dp, ep=ep)
        with FakeTensorMode(allow_non_fake_inputs=True):
            localise(model)
            owner, name = layer_list(model)
            untyped: Any = model
            tied = untyped.get_input_embeddings().weight is untyped.get_output_embeddings().weight
            yield Rank(model, kind_of, list(getattr(owner, name)), tied, result, widths or {})


class PeakTracker(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Bytes of all live storages that operators allocated, now and at most.

    Storages of ``model`` are not counted, nor are meta tensors (bookkeeping of transformers that no
    device holds). torch's own MemTracker does the same by module and takes ten times as long.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.alive = self.peak = 0
        self._seen = WeakIdKeyDictionary()
        for tensor in [*model.parameters(), *model.buffers()]:
            self._seen[tensor.untyped_storage()] = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs the operator and counts what it allocated."""
        if any(kind is DTensor for kind in types):
            return NotImplemented
        out = func(*args, **(kwargs or {}))
        pytree.tree_map_only(torch.Tensor, self._count, out)
        return out

    def _count(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        if tensor.device.type == "meta" or storage in self._seen:
            return
        size = storage.nbytes()
        self._seen[storage] = weakref.ref(storage, lambda _: self._free(size))
        self.alive += size
        self.peak = max(self.peak, self.alive)

    def _free(self, size: int) -> None:
        self.alive -= size
