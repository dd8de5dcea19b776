"""GGUF files of Llama-like decoders, by the writer of llama.cpp's package ``gguf``."""

from __future__ import annotations

import ctypes
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch

from .errors import CompressError
from .ggml import library
from .gguf_types import mixture_of, tensor_type
from .gguf_words import add_tokenizer

# llama.cpp's by ``model_type``; others need its own converter.
ARCHITECTURES = {"llama": "LLAMA", "mistral": "LLAMA", "qwen2": "QWEN2", "qwen3": "QWEN3"}
# Matrices whose rows llama.cpp's Llama pairs for rotation in another order.
_TURNED = ("attn_q", "attn_k")
_PLAIN = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}


def write_gguf(model: Any, source: Path, folder: Path, technique: str | None) -> Path:
    """Write ``model.gguf``: as it is, or in the mixture of types that a technique names.

    Raises:
        CompressError: where gguf or llama.cpp's library is missing, or the model is of a kind that
            this writer does not know.
    """
    try:
        import gguf
    except ImportError:
        raise CompressError("gguf is not installed.", hint="pip install gguf") from None
    config = model.config
    if config.model_type not in ARCHITECTURES:
        architectures = ", ".join(ARCHITECTURES)
        hint = f"Convert it by llama.cpp's convert_hf_to_gguf.py; known here: {architectures}."
        raise CompressError(f"a {config.model_type} cannot be written as GGUF here.", hint=hint)
    if technique is not None:
        mixture_of(technique)
    kind = gguf.MODEL_ARCH[ARCHITECTURES[config.model_type]]
    path = folder / "model.gguf"
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[kind])
    _add_shape(writer, config)
    add_tokenizer(writer, source, config)
    names = gguf.get_tensor_name_map(kind, config.num_hidden_layers)
    _add_tensors(writer, model, names, technique)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_shape(writer: Any, config: Any) -> None:
    """What llama.cpp builds the model from."""
    heads = config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // heads
    writer.add_name(config.name_or_path or config.model_type)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(width)
    writer.add_value_length(width)
    writer.add_rope_dimension_count(width)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    rope = config.rope_parameters
    writer.add_rope_freq_base(rope["rope_theta"])
    kind = rope.get("rope_type", "default")
    if kind == "llama3":
        writer.add_tensor("rope_freqs.weight", _llama3_factors(rope, width))
    elif kind != "default":
        hint = "Convert it by llama.cpp's convert_hf_to_gguf.py."
        raise CompressError(f"positions of type {kind} cannot be written here.", hint=hint)


def _llama3_factors(rope: dict[str, Any], width: int) -> np.ndarray[Any, Any]:
    """By how much each frequency is divided: Llama 3.1's rule, smooth between two wave lengths."""
    frequencies = rope["rope_theta"] ** -(np.arange(0, width, 2) / width)
    share = rope["original_max_position_embeddings"] * frequencies / (2 * math.pi)
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    smooth = np.clip((share - low) / (high - low), 0, 1)
    factors = 1 / ((1 - smooth) / rope["factor"] + smooth)
    return np.asarray(factors, dtype=np.float32)


def _add_tensors(writer: Any, model: Any, names: Any, technique: str | None) -> None:
    import gguf

    config = model.config
    tied = bool(config.tie_word_embeddings)
    shared = config.num_attention_heads // config.num_key_value_heads
    for name, tensor in model.state_dict().items():
        if tied and name == "lm_head.weight":
            continue
        place = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if place is None:
            raise CompressError(f"llama.cpp has no tensor for {name}.")
        kind = place.split(".")[-2]
        if config.model_type in ("llama", "mistral") and kind in _TURNED:
            heads = config.num_attention_heads if kind == "attn_q" else config.num_key_value_heads
            tensor = _turned(tensor, heads)
        stored_type = _PLAIN[tensor.dtype]
        if tensor.ndim == 1:
            stored_type = "F32"
        elif technique is not None:
            stored_type = tensor_type(
                technique, place, tensor.shape[1], config.num_hidden_layers,
                shared=shared, tied=tied,
            )  # fmt: skip
        values = tensor.float().cpu().numpy()
        writer.add_tensor(
            place,
            encode_ggml_matrix(values, stored_type),
            raw_dtype=gguf.GGMLQuantizationType[stored_type],
        )


def _turned(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Rows of each head from halves to pairs, as llama.cpp rotates them."""
    halves = weight.reshape(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:])
    return halves.swapaxes(1, 2).reshape(weight.shape)


def encode_ggml_matrix(values: np.ndarray[Any, Any], kind: str) -> np.ndarray[Any, Any]:
    """A matrix in a type of ggml: numbers, or bytes of a row's blocks (rows × bytes)."""
    import gguf

    number = gguf.GGMLQuantizationType[kind]
    if kind in ("F32", "F16", "BF16"):
        done: np.ndarray[Any, Any] = gguf.quants.quantize(values, number)
        return done
    rows, columns = values.shape
    values = np.ascontiguousarray(values, np.float32)
    row_bytes = library().ggml_row_size(number.value, columns)
    out = np.empty((rows, row_bytes), np.uint8)
    library().ggml_quantize_chunk(
        number.value, values.ctypes.data_as(ctypes.c_void_p),
        out.ctypes.data_as(ctypes.c_void_p), 0, rows, columns, None,
    )  # fmt: skip
    return out
