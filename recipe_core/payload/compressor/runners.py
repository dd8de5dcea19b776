"""Runners of a result: the runtime that reads the format of its folder.

A runner holds one sequence: `start` reads tokens, `step` reads one more, and `logits` reads a whole
window and forgets it.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from .errors import CompressError
from .llama_cpp import LlamaCpp
from .models import Logits, load_decoder, pick_torch_device


class Runner(Protocol):
    """A model that one runtime holds in memory."""

    name: str
    """The runtime, as people know it."""
    version: str

    def logits(self, tokens: Sequence[int]) -> Logits:
        """Logits after every token of a window (tokens × vocabulary)."""
        ...

    def start(self, tokens: Sequence[int]) -> Logits:
        """Read a prompt into an empty cache; logits after its last token (vocabulary)."""
        ...

    def step(self, token: int) -> Logits:
        """Read one more token; logits after it (vocabulary)."""
        ...


# The runtime that reads a file; a folder with a ``config.json`` alone is read by torch.
FILES = {"*.gguf": "llama.cpp", "*.onnx": "ONNX Runtime", "*.xml": "OpenVINO"}
# Optimum's classes of models, and the package whose version counts.
_OPTIMUM = {
    "ONNX Runtime": ("optimum.onnxruntime", "ORTModelForCausalLM", "onnxruntime", {}),
    "OpenVINO": (
        "optimum.intel",
        "OVModelForCausalLM",
        "openvino",
        # products in fp32, so that the weights are all that differs
        {"ov_config": {"INFERENCE_PRECISION_HINT": "f32"}},
    ),
}


def runtime_of(folder: Path) -> str:
    """The runtime that reads a folder.

    Raises:
        CompressError: for a folder that holds no model of any format.
    """
    for pattern, name in FILES.items():
        if next(folder.glob(pattern), None) is not None:
            return name
    if (folder / "config.json").is_file():
        return "torch"
    kinds = ", ".join([*FILES, "config.json"])
    raise CompressError(f"{folder} holds no model.", hint=f"It should hold one of {kinds}.")


def load_runner(folder: Path) -> Runner:
    """Load a folder into the runtime of its format.

    Raises:
        CompressError: where there is no model, or the runtime is missing.
    """
    runtime = runtime_of(folder)
    if runtime == "llama.cpp":
        return LlamaCpp(folder)
    try:
        return Transformers(folder, runtime)
    except ImportError as error:
        name = (error.name or "").partition(".")[0]
        raise CompressError(f"{name} is not installed.", hint=f"pip install {name}") from None


class Transformers:
    """A checkpoint on torch, or a graph behind the same interface, which Optimum gives it.

    Checkpoints are in fp32 on a processor, so that their own rounding is all that differs.
    """

    def __init__(self, folder: Path, runtime: str) -> None:
        self.name = runtime
        self._cache: Any = None
        if runtime == "torch":
            self._device = pick_torch_device()
            dtype = "auto" if self._device.type == "cuda" else "float32"
            self._model = load_decoder(folder, dtype=dtype).to(self._device)
            self.version = str(torch.__version__)
        else:
            module, kind, package, options = _OPTIMUM[runtime]
            self._device = torch.device("cpu")
            self._model = getattr(import_module(module), kind).from_pretrained(folder, **options)
            self.version = version(package)
        self._length = 0

    def logits(self, tokens: Sequence[int]) -> Logits:
        """See `Runner`."""
        return _plain_array(self._begin(tokens))

    def start(self, tokens: Sequence[int]) -> Logits:
        """See `Runner`."""
        return _plain_array(self._begin(tokens)[-1])

    def step(self, token: int) -> Logits:
        return _plain_array(self._read([token])[-1])

    def _begin(self, tokens: Sequence[int]) -> torch.Tensor:
        self._cache, self._length = None, 0
        return self._read(tokens)

    def _read(self, tokens: Sequence[int]) -> torch.Tensor:
        self._length += len(tokens)
        row = torch.tensor([list(tokens)], device=self._device)
        mask = torch.ones(1, self._length, dtype=torch.long, device=self._device)
        with torch.inference_mode():
            out = self._model(
                input_ids=row, attention_mask=mask, past_key_values=self._cache, use_cache=True
            )
        self._cache = out.past_key_values
        logits: torch.Tensor = out.logits[0]
        return logits


def _plain_array(logits: torch.Tensor) -> Logits:
    return np.asarray(logits.float().cpu().numpy(), dtype=np.float32)
