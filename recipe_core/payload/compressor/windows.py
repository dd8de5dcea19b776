"""Windows of a text's tokens, to calibrate with and to predict."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import CompressError


@dataclass(frozen=True)
class Window:
    """Tokens that are read, of which the last ``scored`` are predicted."""

    tokens: list[int]
    scored: int


def text_tokens(tokenizer: Any, path: Path) -> list[int]:
    """A text as token ids, with the special tokens that the tokenizer adds.

    A ``.jsonl`` file has a text in the field ``text`` of every line.

    Raises:
        CompressError: when the file cannot be read, or is too short to predict anything.
    """
    try:
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".jsonl":
            rows = [json.loads(line) for line in text.splitlines() if line.strip()]
            text = "\n\n".join(row["text"] for row in rows)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CompressError(f"cannot read the text {path}: {error}.") from None
    tokens: list[int] = tokenizer(text, verbose=False)["input_ids"]
    if len(tokens) < 2:
        raise CompressError(f"{path} has {len(tokens)} tokens.", hint="Name a longer text.")
    return tokens


def sliding(tokens: Sequence[int], width: int) -> Iterator[Window]:
    """Windows of ``width`` that move by half: each token but the first is predicted once.

    Those of the first window are predicted from all before them, every other one from at least
    half a window.
    """
    stride, end = max(1, width // 2), min(width, len(tokens))
    yield Window(list(tokens[:end]), end - 1)
    while end < len(tokens):
        last = min(end + stride, len(tokens))
        yield Window(list(tokens[max(0, last - width) : last]), last - end)
        end = last


def samples(tokens: Sequence[int], count: int, width: int) -> list[list[int]]:
    """``count`` windows of ``width`` tokens at even distances; they overlap in a short text."""
    width = min(width, len(tokens))
    room = len(tokens) - width
    count = min(count, room + 1)
    starts = [room * i // max(1, count - 1) for i in range(count)]
    return [list(tokens[start : start + width]) for start in starts]
