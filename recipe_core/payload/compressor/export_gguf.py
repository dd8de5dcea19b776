"""GGUF files of Llama-like decoders, by the writer of llama.cpp's package ``gguf``."""

from __future__ import annotations

import ctypes
import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from .errors import CompressError
from .ggml import library

# Whether a layer of so many gets the other type.
Rule = Callable[[int, int], bool]


def _more_bits(layer: int, layers: int) -> bool:
    """The first and last eighth, and every third between."""
    return layer < layers // 8 or layer >= 7 * layers // 8 or (layer - layers // 8) % 3 == 2


def _always(_layer: int, _layers: int) -> bool:
    return True


def _in_first_layers(share: int) -> Rule:
    return lambda layer, layers: layer < layers // share


@dataclass(frozen=True)
class Mixture:
    """A type for all matrices, and others for some: by tensor the first rule that holds."""

    usual: str
    by_tensor: dict[str, tuple[tuple[str, Rule], ...]] = field(default_factory=dict)
    output: str = "Q6_K"


_SIX = (("Q6_K", _more_bits),)
# By technique. Types below these need an importance matrix, and llama.cpp's own programs.
MIXTURES: dict[str, Mixture] = {
    "gguf_q2_k": Mixture(
        "Q2_K",
        dict.fromkeys(("attn_v", "ffn_down", "attn_output"), (("Q3_K", _always),)),
    ),
    "gguf_q3_k_s": Mixture("Q3_K"),
    "gguf_q3_k_m": Mixture(
        "Q3_K",
        {
            "attn_v": (("Q5_K", lambda layer, _: layer < 2), ("Q4_K", _always)),
            "ffn_down": (("Q5_K", _in_first_layers(16)), ("Q4_K", _always)),
            "attn_output": (("Q4_K", _always),),
        },
    ),
    "gguf_q3_k_l": Mixture(
        "Q3_K",
        dict.fromkeys(("attn_v", "ffn_down", "attn_output"), (("Q5_K", _always),)),
    ),
    "gguf_q4_k_s": Mixture(
        "Q4_K",
        {
            "attn_v": (("Q5_K", lambda layer, _: layer < 4),),
            "ffn_down": (("Q5_K", _in_first_layers(8)),),
        },
    ),
    "gguf_q4_k_m": Mixture("Q4_K", {"attn_v": _SIX, "ffn_down": _SIX}),
    "gguf_q5_k_s": Mixture("Q5_K"),
    "gguf_q5_k_m": Mixture("Q5_K", {"attn_v": _SIX, "ffn_down": _SIX}),
    "gguf_q6_k": Mixture("Q6_K"),
    "gguf_iq4_nl": Mixture("IQ4_NL", {"ffn_down": (("Q5_K", _in_first_layers(8)),)}),
    "gguf_iq4_xs": Mixture("IQ4_XS", {"ffn_down": (("Q5_K", _in_first_layers(8)),)}),
    "gguf_q4_0": Mixture("Q4_0"),
    "gguf_q4_1": Mixture("Q4_1"),
    "gguf_q5_0": Mixture("Q5_0"),
    "gguf_q5_1": Mixture("Q5_1"),
    "gguf_q8_0": Mixture("Q8_0", output="Q8_0"),
}

# Types of ``attn_v`` where at least four heads share a key.
_GQA = {"gguf_q2_k": "Q4_K", "gguf_iq4_nl": "Q5_K", "gguf_iq4_xs": "Q5_K"}
_SUPER = 256
_BLOCK = 32
# Types for rows that blocks of 256 do not fill.
_NARROW = {
    "Q2_K": "IQ4_NL",
    "Q3_K": "IQ4_NL",
    "IQ4_XS": "IQ4_NL",
    "Q4_K": "Q5_0",
    "Q5_K": "Q5_1",
    "Q6_K": "Q8_0",
}


def mixture_of(technique: str) -> Mixture:
    """The mixture of a technique.

    Raises:
        CompressError: for a type that this program cannot make.
    """
    if technique not in MIXTURES:
        names = ", ".join(MIXTURES)
        hint = f"Use llama.cpp's llama-quantize with an importance matrix, or one of {names}."
        raise CompressError(f"{technique} cannot be made here.", hint=hint)
    return MIXTURES[technique]


def tensor_type(
    technique: str, name: str, columns: int, layers: int, *, shared: int, tied: bool
) -> str:
    """The type of a tensor (``blk.0.attn_v.weight``) with so many columns.

    shared: heads that share a key. tied: embeddings are the last matrix too.
    """
    mixture = mixture_of(technique)
    kind, layer = _split_tensor_name(name)
    stored_type = mixture.usual
    if kind == "output" or (tied and kind == "token_embd"):
        stored_type = mixture.output
    elif kind == "attn_v" and shared >= 4 and technique in _GQA:
        stored_type = _GQA[technique]
    else:
        rules = mixture.by_tensor.get(kind, ())
        stored_type = next(
            (rule_type for rule_type, rule in rules if rule(layer, layers)), stored_type
        )
    if stored_type in _NARROW and columns % _SUPER:
        stored_type = _NARROW[stored_type]
    return stored_type if columns % _BLOCK == 0 else "F16"


def _split_tensor_name(name: str) -> tuple[str, int]:
    """A tensor's kind, and its layer."""
    words = name.split(".")
    return (words[2], int(words[1])) if words[0] == "blk" else (words[0], 0)


# ``llama_token_type`` of llama.h.
_NORMAL, _CONTROL, _USER, _UNUSED = 1, 3, 4, 5
# llama.cpp's name of a rule that splits texts, by what the tokenizer's own pattern holds.
SPLITTERS = {
    r"\p{N}{1,3}": "llama-bpe",
    r"\p{N}|": "qwen2",
}
BY_DEFAULT = "gpt-2"


def add_tokenizer(writer: Any, source: Path, config: Any) -> None:
    """Write tokens, merges and special tokens.

    Raises:
        CompressError: for a tokenizer that is no byte-level BPE.
    """
    path = source / "tokenizer.json"
    try:
        tokenizer = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CompressError(f"cannot read {path}: {error.strerror}.") from None
    model = tokenizer["model"]
    if model["type"] != "BPE" or model.get("byte_fallback"):
        hint = "Convert it by llama.cpp's convert_hf_to_gguf.py."
        message = f"the tokenizer of {source} is no byte-level BPE."
        raise CompressError(message, hint=hint)
    tokens, kinds = _list_vocabulary(tokenizer, config.vocab_size)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(_splitter(tokenizer))
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges([_format_merge(pair) for pair in model["merges"]])
    _add_special(writer, config)


def _list_vocabulary(tokenizer: dict[str, Any], size: int) -> tuple[list[str], list[int]]:
    """Every id's text and type; ids that no text has are unused."""
    tokens = [f"[PAD{i}]" for i in range(size)]
    kinds = [_UNUSED] * size
    for text, number in tokenizer["model"]["vocab"].items():
        tokens[number], kinds[number] = text, _NORMAL
    for added in tokenizer.get("added_tokens", []):
        tokens[added["id"]] = added["content"]
        kinds[added["id"]] = _CONTROL if added["special"] else _USER
    return tokens, kinds


def _format_merge(merge: str | list[str]) -> str:
    return merge if isinstance(merge, str) else " ".join(merge)


def _splitter(tokenizer: dict[str, Any]) -> str:
    pattern = json.dumps(tokenizer.get("pre_tokenizer"), ensure_ascii=False).replace("\\\\", "\\")
    return next((name for part, name in SPLITTERS.items() if part in pattern), BY_DEFAULT)


def _add_special(writer: Any, config: Any) -> None:
    for name, add in (
        ("bos_token_id", writer.add_bos_token_id),
        ("eos_token_id", writer.add_eos_token_id),
        ("pad_token_id", writer.add_pad_token_id),
    ):
        number = getattr(config, name, None)
        if isinstance(number, list):
            number = number[0]
        if number is not None:
            add(number)


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
