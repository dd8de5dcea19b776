"""What the words of a launch say, read back by flag and by what the engine's options mean."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from recipe_core.engines.grammar import meanings
from recipe_core.engines.spec import Engine

CACHE = {
    "auto": None,
    "fp8": "fp8",
    "fp8_e4m3": "fp8",
    "fp8_e4m3fn": "fp8",
    "f16": "fp16",
    "bf16": "bf16",
    "f32": "fp32",
}
"""Cache formats by the words that engines have for them; None: as the activations."""

_NAMES = {
    "max_context": "context",
    "kv_dtype": "kv",
    "dtype": "weight_dtype",
    "quantization": "weight_dtype",
}
_READ = {"tp", "pp", "dp", "ep", "max_num_seqs", "max_batched_tokens", "memory_fraction", *_NAMES}
_LIMITS = {"max_num_seqs", "max_batched_tokens", "memory_fraction"}


def options(words: Sequence[str]) -> dict[str, Any]:
    """Options of words: flag as a name → value (True for switches)."""
    out: dict[str, Any] = {}
    for word, after in zip(words, (*words[1:], "--"), strict=True):
        if word.startswith("--"):
            out[word.lstrip("-").replace("-", "_")] = True if after.startswith("--") else after
    return out


def read_by_meaning(engine: Engine, words: Sequence[str]) -> dict[str, Any]:
    """What a server is told about its candidate; an option that nothing means is passed over."""
    means, table = meanings(engine), engine.options.by_name
    told: dict[str, Any] = dict.fromkeys(("tp", "pp", "dp", "ep"), 1)
    for name, value in options(words).items():
        meaning = means.get(name, "")
        if meaning not in _READ or (meaning == "dtype" and "weight_dtype" in told):
            continue
        if meaning == "kv_dtype":
            value = CACHE.get(value, value)
        number = {"int": int, "float": float}.get(table[name].type, str)
        told[_NAMES.get(meaning, meaning)] = value if value is None else number(value)
    assert _LIMITS & set(told), f"no option of {engine.name} means a limit: add a reader"
    return told
