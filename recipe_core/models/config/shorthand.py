"""Models given by their dimensions alone: ``my-gpt [h=6144,L=44,heads=48,vocab=51200]``.

Papers and benchmark tables describe models that have no checkpoint; a planner of models to come has
nothing else either.
"""

from __future__ import annotations

import re
from typing import Any

from recipe_core.base.errors import ModelError

SHORTHAND = re.compile(r"(?P<name>[^\[\]]{1,100}?)\s*\[(?P<shape>[^\[\]]{1,200})\]")
_NEEDED, _OPTIONAL = ("h", "L", "heads", "vocab"), ("kv", "ffn", "ctx")
GPT_CONTEXT, LLAMA_CONTEXT = 2048, 131_072


def shape_config(text: str) -> tuple[str, dict[str, Any]] | None:
    """Name and config of a model in shorthand; None when the text is not one.

    ``h`` hidden size, ``L`` layers, ``heads``, ``vocab``; optional ``kv`` heads (as many), ``ffn``
    width (4 h with two matrices, as in GPT-3; a stated width means three, as in Llama) and ``ctx``,
    the longest context (2,048 tokens; 131,072 for a Llama).

    Raises:
        ModelError: for a key that is missing, unknown, or not a whole number.
    """
    match = SHORTHAND.fullmatch(text.strip())
    if match is None:
        return None
    shape = dict(part.partition("=")[::2] for part in match["shape"].replace(" ", "").split(","))
    wrong = [key for key in shape if key not in (*_NEEDED, *_OPTIONAL)]
    wrong += [key for key in _NEEDED if key not in shape]
    wrong += [
        f"{key}={value}"
        for key, value in shape.items()
        if not value.isdecimal() or len(value) > 9 or int(value) < 1
    ]
    if wrong:
        needed = ",".join(f"{key}=…" for key in _NEEDED)
        hint = f"Write NAME [{needed}], optionally with {', '.join(_OPTIONAL)}, in whole numbers."
        raise ModelError(
            f"the shape in {text[:80]!r} is wrong at {wrong[0]!r}.", field="model", hint=hint
        )
    n = {key: int(value) for key, value in shape.items()}
    if "ffn" in n or "kv" in n:
        llama = {
            "model_type": "llama",
            "hidden_size": n["h"],
            "num_hidden_layers": n["L"],
            "num_attention_heads": n["heads"],
            "num_key_value_heads": n.get("kv", n["heads"]),
            "intermediate_size": n.get("ffn", 4 * n["h"]),
            "vocab_size": n["vocab"],
            "max_position_embeddings": n.get("ctx", LLAMA_CONTEXT),
            "tie_word_embeddings": False,
        }
        return match["name"], llama
    gpt = {
        "model_type": "gpt2",
        "n_embd": n["h"],
        "n_layer": n["L"],
        "n_head": n["heads"],
        "vocab_size": n["vocab"],
        "n_positions": n.get("ctx", GPT_CONTEXT),
    }
    return match["name"], gpt
