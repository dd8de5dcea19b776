"""llama.cpp on the processor."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np

from ..errors import CompressError
from ..ggml import library
from . import Logits

# Tokens that the cache has room for.
CONTEXT = 4096


class Model:
    """The GGUF file of a folder."""

    name = "llama.cpp"

    def __init__(self, folder: Path) -> None:
        self._library, path = library(), next(folder.glob("*.gguf"))
        params = self._library.llama_model_default_params()
        self._model = self._library.llama_model_load_from_file(os.fsencode(path), params)
        if not self._model:
            raise CompressError(f"llama.cpp cannot load {path}.", hint="Look at its metadata.")
        context = self._library.llama_context_default_params()
        context.n_ctx = context.n_batch = CONTEXT
        self._context = self._library.llama_init_from_model(self._model, context)
        if not self._context:
            raise CompressError(f"llama.cpp has no memory for {CONTEXT} tokens of {path}.")
        threads = len(os.sched_getaffinity(0))
        self._library.llama_set_n_threads(self._context, threads, threads)
        vocabulary = self._library.llama_model_get_vocab(self._model)
        self._vocabulary = self._library.llama_vocab_n_tokens(vocabulary)
        self._batch = self._library.llama_batch_init(CONTEXT, 0, 1)
        self._length = 0
        try:
            self.version = version("xllamacpp")
        except PackageNotFoundError:
            self.version = ""

    def logits(self, tokens: Sequence[int]) -> Logits:
        """See `Runner`."""
        self._clear()
        return self._read(tokens, all_logits=True)

    def start(self, tokens: Sequence[int]) -> Logits:
        """See `Runner`."""
        self._clear()
        last: Logits = self._read(tokens)[-1]
        return last

    def step(self, token: int) -> Logits:
        """See `Runner`."""
        last: Logits = self._read([token])[-1]
        return last

    def _clear(self) -> None:
        self._length = 0
        self._library.llama_memory_clear(self._library.llama_get_memory(self._context), True)

    def _read(self, tokens: Sequence[int], *, all_logits: bool = False) -> Logits:
        """Decode tokens after those in the cache; logits after each, or after the last."""
        if self._length + len(tokens) > CONTEXT:
            raise CompressError(f"the cache of llama.cpp has room for {CONTEXT} tokens.")
        self._batch.n_tokens = len(tokens)
        for i, token in enumerate(tokens):
            self._batch.token[i], self._batch.pos[i] = token, self._length + i
            self._batch.n_seq_id[i], self._batch.seq_id[i][0] = 1, 0
            self._batch.logits[i] = all_logits or i == len(tokens) - 1
        if code := self._library.llama_decode(self._context, self._batch):
            raise CompressError(f"llama.cpp ended with {code} at {len(tokens)} tokens.")
        self._length += len(tokens)
        rows = len(tokens) if all_logits else 1
        values = self._library.llama_get_logits(self._context)
        return np.ctypeslib.as_array(values, (rows, self._vocabulary)).copy()

    def __del__(self) -> None:
        """Give the memory back."""
        if getattr(self, "_batch", None) is not None:
            self._library.llama_batch_free(self._batch)
        if getattr(self, "_context", None):
            self._library.llama_free(self._context)
        if getattr(self, "_model", None):
            self._library.llama_model_free(self._model)
