"""Runners of a result: the runtime that reads the format of its folder.

A runner holds one sequence: `start` reads tokens, `step` reads one more, and `logits` reads a whole
window and forgets it.

llama.cpp runs on the processor, by the C library that Python packages of it bring. Only functions
of ``llama.h`` are called. Structures that are passed by value are handed through as bytes of at
least their size; of their fields only the first two of ``llama_context_params``, context and batch,
are set.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from .errors import CompressError
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
