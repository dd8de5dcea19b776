"""transformers on torch: checkpoints as they are, and those in the compressed-tensors format."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..models import load_decoder, pick_torch_device
from . import Logits


class Model:
    """A checkpoint; in fp32 on a processor, so that its own rounding is all that differs."""

    name = "torch"

    def __init__(self, folder: Path) -> None:
        place = pick_torch_device()
        dtype = "auto" if place.type == "cuda" else "float32"
        self._model = load_decoder(folder, dtype=dtype).to(place)
        self._cache: Any = None
        self.version = torch.__version__

    def logits(self, tokens: Sequence[int]) -> Logits:
        with torch.inference_mode():
            return _array(self._model(self._row(tokens), use_cache=False).logits[0])

    def start(self, tokens: Sequence[int]) -> Logits:
        """See `Runner`."""
        self._cache = None
        return self._read(tokens)

    def step(self, token: int) -> Logits:
        return self._read([token])

    def _read(self, tokens: Sequence[int]) -> Logits:
        with torch.inference_mode():
            out = self._model(self._row(tokens), past_key_values=self._cache, use_cache=True)
        self._cache = out.past_key_values
        return _array(out.logits[0, -1])

    def _row(self, tokens: Sequence[int]) -> torch.Tensor:
        return torch.tensor([list(tokens)], device=self._model.device)


def _array(logits: torch.Tensor) -> Logits:
    return np.asarray(logits.float().cpu().numpy(), dtype=np.float32)
