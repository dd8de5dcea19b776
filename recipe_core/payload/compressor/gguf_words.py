"""Tokens of a byte-level BPE tokenizer in GGUF's metadata."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from .errors import CompressError

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
