"""Texts to token files to packed sequences, in an order that depends on nothing but the seed and the step."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch

from .errors import TrainError

_PIECE = 1 << 20
"""Characters that are given to the tokenizer at once."""


def documents(path: Path) -> Iterator[Iterator[str]]:
    """Documents of a file, each as pieces of text: a line of ``.jsonl`` (its ``text``) or a whole text file.

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
            f"cannot read {path}: {error}.", hint="Give UTF-8 text or .jsonl: --data FILE."
        ) from None


def _text(line: str, where: str) -> str:
    try:
        return str(json.loads(line)["text"])
    except (ValueError, KeyError, TypeError):
        raise TrainError(f"{where} is no JSON object with a text.") from None


def _pieces(lines: Iterable[str]) -> Iterator[str]:
    """Lines put together, a piece ending with a line."""
    held: list[str] = []
    size = 0
    for line in lines:
        held.append(line)
        size += len(line)
        if size >= _PIECE:
            yield "".join(held)
            held, size = [], 0
    if held:
        yield "".join(held)


def token_file(paths: tuple[Path, ...], tokenizer: Any, folder: Path) -> Path:
    """All documents as one file of 32-bit tokens, an end-of-text token after each; made once for these texts and this tokenizer.

    Nodes that share the folder may do it side by side: each writes a file of its own and moves it
    into place.
    """
    digest = hashlib.sha256(json.dumps(tokenizer.get_vocab(), sort_keys=True).encode())
    for path in paths:
        try:
            with path.open("rb") as file:
                while piece := file.read(_PIECE):
                    digest.update(piece)
        except OSError as error:
            raise TrainError(
                f"cannot read {path}: {error.strerror}.", hint="Say where the text is: --data FILE."
            ) from None
    target = folder / f"tokens-{digest.hexdigest()[:16]}.bin"
    if not target.exists():
        folder.mkdir(parents=True, exist_ok=True)
        part = target.with_suffix(f".{os.uname().nodename}.{os.getpid()}")
        with part.open("wb") as out:
            for path in paths:
                for document in documents(path):
                    for ids in _encoded(document, tokenizer):
                        out.write(torch.tensor(ids, dtype=torch.int32).numpy().tobytes())
        part.replace(target)
    return target


def _encoded(document: Iterator[str], tokenizer: Any) -> Iterator[list[int]]:
    for piece in document:
        yield tokenizer(piece, add_special_tokens=False, verbose=False)["input_ids"]
    if tokenizer.eos_token_id is not None:
        yield [tokenizer.eos_token_id]


class Sequences:
    """Windows of ``length`` tokens (and the one after each) over a token file, shuffled anew each time around.

    Which sequences a step has depends on seed and step alone; ranks take consecutive shares of
    them. So a run goes on exactly where it stopped, also with another number of replicas.
    """

    def __init__(self, path: Path, length: int, global_batch: int, seed: int) -> None:
        size = path.stat().st_size // 4
        self.length, self.global_batch, self.seed = length, global_batch, seed
        self.count = (size - 1) // length
        if self.count < 1:
            raise TrainError(
                f"the texts have {size} tokens; a sequence takes {length} + 1.",
                hint="Give more text or a shorter sequence_length.",
            )
        self.tokens = torch.from_file(str(path), size=size, dtype=torch.int32)
        self._order: tuple[int, torch.Tensor] = (-1, torch.empty(0))

    def batch(
        self, step: int, dp_rank: int, dp: int, micro_batches: int
    ) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """A replica's micro-batches of a step, as inputs and targets (sequences × length)."""
        mine = self.global_batch // dp
        start = step * self.global_batch + dp_rank * mine
        windows = torch.stack([self.sequence(sequence) for sequence in range(start, start + mine)])
        return [(piece[:, :-1], piece[:, 1:]) for piece in windows.chunk(micro_batches)]

    def sequence(self, number: int) -> torch.Tensor:
        """The tokens of a sequence, counted over the whole run, and the one after them."""
        around, place = divmod(number, self.count)
        if self._order[0] != around:
            self._order = (
                around,
                torch.randperm(
                    self.count, generator=torch.Generator().manual_seed(self.seed + around)
                ),
            )
        start = int(self._order[1][place]) * self.length
        return self.tokens[start : start + self.length + 1].long()
