"""llama.cpp on the processor, by the C library that Python packages of it bring.

Only functions of ``llama.h`` are called. Structures that are passed by value are handed through as
bytes of at least their size; of their fields only the first two of ``llama_context_params``,
context and batch, are set.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from .errors import CompressError
from .models import Logits

# A variable with the path of the library, before any package's.
VARIABLE = "LLAMA_CPP_LIB"
_PACKAGES = {"xllamacpp": "xllamacpp*.so", "llama_cpp": "lib/libllama.so"}


class Params(ctypes.Structure):
    """Parameters of a model or a context; larger than either, all defaults but those set here."""

    _fields_ = (
        ("n_ctx", ctypes.c_uint32),
        ("n_batch", ctypes.c_uint32),
        ("rest", ctypes.c_char * 1016),
    )


class Batch(ctypes.Structure):
    """``llama_batch``: tokens of one call."""

    _fields_ = (
        ("n_tokens", ctypes.c_int32),
        ("token", ctypes.POINTER(ctypes.c_int32)),
        ("embd", ctypes.c_void_p),
        ("pos", ctypes.POINTER(ctypes.c_int32)),
        ("n_seq_id", ctypes.POINTER(ctypes.c_int32)),
        ("seq_id", ctypes.POINTER(ctypes.POINTER(ctypes.c_int32))),
        ("logits", ctypes.POINTER(ctypes.c_int8)),
    )


_LOG = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
_POINTER, _INT, _LONG = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64
_FUNCTIONS: dict[str, tuple[object, list[object]]] = {
    "llama_backend_init": (None, []),
    "llama_log_set": (None, [_LOG, _POINTER]),
    "llama_model_default_params": (Params, []),
    "llama_model_load_from_file": (_POINTER, [ctypes.c_char_p, Params]),
    "llama_model_free": (None, [_POINTER]),
    "llama_context_default_params": (Params, []),
    "llama_init_from_model": (_POINTER, [_POINTER, Params]),
    "llama_free": (None, [_POINTER]),
    "llama_set_n_threads": (None, [_POINTER, _INT, _INT]),
    "llama_model_get_vocab": (_POINTER, [_POINTER]),
    "llama_vocab_n_tokens": (_INT, [_POINTER]),
    "llama_batch_init": (Batch, [_INT, _INT, _INT]),
    "llama_batch_free": (None, [Batch]),
    "llama_decode": (_INT, [_POINTER, Batch]),
    "llama_get_logits": (ctypes.POINTER(ctypes.c_float), [_POINTER]),
    "llama_get_memory": (_POINTER, [_POINTER]),
    "llama_memory_clear": (None, [_POINTER, ctypes.c_bool]),
}


def _say_nothing(_level: int, _text: bytes, _data: int) -> None:
    """llama.cpp prints every tensor that it loads."""


# Kept for as long as the library may call it.
_SILENT = _LOG(_say_nothing)


def _library_path() -> Path | None:
    """The library of this machine; None where no package brings one."""
    if path := os.environ.get(VARIABLE):
        return Path(path)
    for package, pattern in _PACKAGES.items():
        spec = find_spec(package)
        if spec is not None and spec.origin is not None:
            return next(Path(spec.origin).parent.glob(pattern), None)
    return None


@cache
def llama_library() -> ctypes.CDLL:
    """The library, with the types of its functions.

    Raises:
        CompressError: where there is none.
    """
    path = _library_path()
    if path is None:
        hint = f"pip install xllamacpp, or set {VARIABLE} to its path."
        raise CompressError("no library of llama.cpp is installed.", hint=hint)
    loaded = ctypes.CDLL(str(path))
    for name, (result, arguments) in _FUNCTIONS.items():
        function = getattr(loaded, name, None)
        if function is not None:
            function.restype, function.argtypes = result, arguments
    loaded.llama_log_set(_SILENT, None)
    loaded.llama_backend_init()
    return loaded


# Tokens that the cache has room for.
CONTEXT = 4096


class LlamaCpp:
    """The GGUF file of a folder."""

    name = "llama.cpp"

    def __init__(self, folder: Path) -> None:
        self._library, path = llama_library(), next(folder.glob("*.gguf"))
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
