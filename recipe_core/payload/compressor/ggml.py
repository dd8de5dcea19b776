"""The C library of llama.cpp, as Python packages of it bring it.

Only functions of ``llama.h`` and ``ggml.h`` are called. Structures that are passed by value are
handed through as bytes of at least their size; of their fields only the first two of
``llama_context_params``, context and batch, are set.
"""

from __future__ import annotations

import ctypes
import os
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from .errors import CompressError

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
    "ggml_row_size": (ctypes.c_size_t, [ctypes.c_int, _LONG]),
    "ggml_quantize_chunk": (
        ctypes.c_size_t,
        [ctypes.c_int, _POINTER, _POINTER, _LONG, _LONG, _LONG, _POINTER],
    ),
}


def _say_nothing(_level: int, _text: bytes, _data: int) -> None:
    """llama.cpp prints every tensor that it loads."""


# Kept for as long as the library may call it.
_SILENT = _LOG(_say_nothing)


def library_path() -> Path | None:
    """The library of this machine; None where no package brings one."""
    if path := os.environ.get(VARIABLE):
        return Path(path)
    for package, pattern in _PACKAGES.items():
        spec = find_spec(package)
        if spec is not None and spec.origin is not None:
            return next(Path(spec.origin).parent.glob(pattern), None)
    return None


@cache
def library() -> ctypes.CDLL:
    """The library, with the types of its functions.

    Raises:
        CompressError: where there is none.
    """
    path = library_path()
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
