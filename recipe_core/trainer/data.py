"""Texts to token files to packed sequences, in an order set by the seed and the step alone."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch

from .errors import TrainError
from .rollbacks import Skips
from .shards import Tokens, write_shards

_PIECE = 1 << 20
"""Characters that the tokenizer gets at once."""


def documents(path: Path) -> Iterator[Iterator[str]]:
    """Documents of a file, as pieces of text.

    A document is a line of ``.jsonl`` (its ``text``) or a whole text file.

    Raises:
        TrainError: when the file cannot be read, or a line has no text.
    """
    try:
        with path.open(encoding="utf-8") as file:
            if path.suffix == ".jsonl":
                for number, line in enumerate(file, 1):
                    yield iter([_text(line, f"{path} line {number}")])
            else:
                yield _pieces(file)
    except (OSError, UnicodeDecodeError) as error:
        raise TrainError(
            f"cannot read {path}: {error}.", hint="Use UTF-8 text or .jsonl: --data FILE."
        ) from None


def _text(line: str, place: str) -> str:
    try:
        return str(json.loads(line)["text"])
    except (ValueError, KeyError, TypeError):
        raise TrainError(f"{place} is not a JSON object with a text.") from None


def _pieces(lines: Iterable[str]) -> Iterator[str]:
    """Join lines to pieces that end with a line."""
    piece: list[str] = []
    size = 0
    for line in lines:
        piece.append(line)
        size += len(line)
        if size >= _PIECE:
            yield "".join(piece)
            piece, size = [], 0
    if piece:
        yield "".join(piece)


def token_file(paths: tuple[Path, ...], tokenizer: Any, folder: Path) -> Path:
    """All documents as `shards` of tokens, each followed by an end-of-text token.

    They are written once for these texts and this tokenizer.
    """
    digest = hashlib.sha256(json.dumps(tokenizer.get_vocab(), sort_keys=True).encode())
    for path in paths:
        try:
            with path.open("rb") as file:
                while piece := file.read(_PIECE):
                    digest.update(piece)
        except OSError as error:
            raise TrainError(
                f"cannot read {path}: {error.strerror}.",
                hint="Set the path of the text: --data FILE.",
            ) from None
    target = folder / f"tokens-{digest.hexdigest()[:16]}"
    pieces = (
        ids
        for path in paths
        for document in documents(path)
        for ids in _encoded(document, tokenizer)
    )
    return write_shards(target, pieces, len(tokenizer))


def _encoded(document: Iterator[str], tokenizer: Any) -> Iterator[list[int]]:
    for piece in document:
        yield tokenizer(piece, add_special_tokens=False, verbose=False)["input_ids"]
    if tokenizer.eos_token_id is not None:
        yield [tokenizer.eos_token_id]


class Sequences:
    """Windows of ``length`` tokens, and the next one, over mapped shards; shuffled every epoch.

    The sequences of a step depend on the seed, the step and what is left out alone; ranks take
    consecutive shares of them. So a run resumes exactly where it stopped, also with another number
    of replicas.
    """

    def __init__(
        self, path: Path, length: int, global_batch: int, seed: int, skips: Skips | None = None
    ) -> None:
        self.tokens = Tokens(path)
        size = len(self.tokens)
        self.length, self.global_batch, self.seed = length, global_batch, seed
        self.skips = skips or Skips()
        self.count = (size - 1) // length
        if self.count < 1:
            raise TrainError(
                f"the texts have {size} tokens; a sequence needs {length} + 1.",
                hint="Use more text or a shorter sequence_length.",
            )
        self._order: tuple[int, torch.Tensor] = (-1, torch.empty(0))

    def batch(
        self, step: int, dp_rank: int, dp: int, micro_batches: int
    ) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """A replica's micro-batches of a step, as inputs and targets (sequences × length)."""
        share = self.global_batch // dp
        start = step * self.global_batch + dp_rank * share
        windows = torch.stack([self.sequence(sequence) for sequence in range(start, start + share)])
        return [(piece[:, :-1], piece[:, 1:]) for piece in windows.chunk(micro_batches)]

    def sequence(self, number: int) -> torch.Tensor:
        """The tokens of a sequence, numbered over the whole run, and the one after them."""
        step, place = divmod(number, self.global_batch)
        epoch, place = divmod(self.skips.batch(step) * self.global_batch + place, self.count)
        if self._order[0] != epoch:
            generator = torch.Generator().manual_seed(self.seed + epoch)
            self._order = (epoch, torch.randperm(self.count, generator=generator))
        start = int(self._order[1][place]) * self.length
        return self.tokens[start : start + self.length + 1]
