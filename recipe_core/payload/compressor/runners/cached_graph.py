"""What graphs with caches as inputs and outputs share (see ``export_onnx``)."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from . import Array, Logits

# Beside a graph: how many caches it has, of how many heads and values.
SHAPE = "cache.json"


class CachedGraph(ABC):
    """A graph of ``input_ids`` and past keys and values; its outputs are logits and new ones."""

    def __init__(self, folder: Path) -> None:
        shape = json.loads((folder / SHAPE).read_text(encoding="utf-8"))
        self.count: int = shape["count"]
        self._empty = np.zeros((1, shape["heads"], 0, shape["values"]), np.float32)
        self._past = [self._empty] * self.count

    @abstractmethod
    def call(self, inputs: dict[str, Array]) -> list[Array]:
        """Run the graph; its outputs in their order."""

    def logits(self, tokens: Sequence[int]) -> Logits:
        """See `Runner`."""
        window: Logits = self._run(tokens, [self._empty] * self.count)[0][0]
        return window

    def start(self, tokens: Sequence[int]) -> Logits:
        """See `Runner`."""
        self._past = [self._empty] * self.count
        return self._read(tokens)

    def step(self, token: int) -> Logits:
        return self._read([token])

    def _read(self, tokens: Sequence[int]) -> Logits:
        logits, *self._past = self._run(tokens, self._past)
        last: Logits = logits[0, -1]
        return last

    def _run(self, tokens: Sequence[int], past: list[Array]) -> list[Array]:
        row = np.array([tokens], dtype=np.int64)
        return self.call({"input_ids": row} | {f"past_{i}": cache for i, cache in enumerate(past)})
