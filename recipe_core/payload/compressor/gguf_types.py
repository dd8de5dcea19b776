"""Which type llama.cpp's mixtures give each tensor, as ``llama-quantize`` chooses it.

From ``llama_tensor_get_type_impl`` and ``tensor_type_fallback`` of llama.cpp's
``src/llama-quant.cpp``, for dense models and without an importance matrix.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from .errors import CompressError

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
