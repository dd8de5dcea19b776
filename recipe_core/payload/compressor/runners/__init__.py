"""What runs a result: one module a runtime, all with the same few functions.

A runner holds one sequence: `start` reads tokens, `step` reads one more, and `logits` reads a whole
window and forgets it. The format of a folder says which runtime reads it.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from ..errors import CompressError

Array = np.ndarray[Any, Any]
Logits = np.ndarray[Any, np.dtype[np.float32]]

# The module that reads a file; a folder with a ``config.json`` alone is read by torch.
FILES = {"*.gguf": "llama_cpp", "*.onnx": "onnx_runtime", "*.xml": "openvino_runtime"}


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


def runtime_of(folder: Path) -> str:
    """The module of the runtime that reads a folder.

    Raises:
        CompressError: for a folder that holds no model of any format.
    """
    for pattern, name in FILES.items():
        if next(folder.glob(pattern), None) is not None:
            return name
    if (folder / "config.json").is_file():
        return "torch_runtime"
    kinds = ", ".join([*FILES, "config.json"])
    raise CompressError(f"{folder} holds no model.", hint=f"It should hold one of {kinds}.")


def load_runner(folder: Path) -> Runner:
    """Load a folder into the runtime of its format.

    Raises:
        CompressError: where there is no model, or the runtime is missing.
    """
    module = import_module(f".{runtime_of(folder)}", __name__)
    try:
        runner: Runner = module.Model(folder)
    except ImportError as error:
        name = (error.name or "").partition(".")[0]
        raise CompressError(f"{name} is not installed.", hint=f"pip install {name}") from None
    return runner
