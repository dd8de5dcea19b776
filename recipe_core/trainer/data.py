"""Data to token files to sequences, in an order set by the seed and the step alone."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch

from .errors import TrainError
from .rollbacks import Skips
from .shards import Tokens, write_shards

_PIECE = 1 << 20
"""Characters that the tokenizer gets at once."""
IGNORED = -100
"""The target of a token that is not learned (torch's ``ignore_index``)."""


class Item(NamedTuple):
    """A sequence, or several (sequences × length): tokens, and what follows each.

    ``positions``: of tokens in their text, where several share a sequence; None where they do not.
    """

    inputs: torch.Tensor
    targets: torch.Tensor
    positions: torch.Tensor | None = None


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


def token_file(
    paths: tuple[Path, ...], tokenizer: Any, folder: Path, data_format: str = "text"
) -> Path:
    """All data as tokens, written once for these files and this tokenizer.

    Texts become `shards`, each followed by an end-of-text token; chats and preferences `examples`.

    Nodes that share the folder may write side by side: each moves what it wrote into place.
    """
    name = f"tokens-{_digest(paths, tokenizer, data_format)[:16]}"
    if data_format == "text":
        return write_shards(folder / name, _tokens(paths, tokenizer), len(tokenizer))
    from .chats import Reader
    from .examples import write_examples

    reader = Reader(tokenizer)
    found = (example for path in paths for example in reader.examples(path, data_format))
    return write_examples(folder / f"{name}.bin", found)


def _digest(paths: tuple[Path, ...], tokenizer: Any, data_format: str) -> str:
    """The name of what tokens are made from: files, vocabulary and, for chats, the template."""
    digest = hashlib.sha256(json.dumps(tokenizer.get_vocab(), sort_keys=True).encode())
    if data_format != "text":
        digest.update(f"{data_format} {tokenizer.chat_template}".encode())
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
    return digest.hexdigest()


def _tokens(paths: tuple[Path, ...], tokenizer: Any) -> Iterator[list[int]]:
    for path in paths:
        for document in documents(path):
            yield from _encoded(document, tokenizer)


def _encoded(document: Iterator[str], tokenizer: Any) -> Iterator[list[int]]:
    for piece in document:
        yield tokenizer(piece, add_special_tokens=False, verbose=False)["input_ids"]
    if tokenizer.eos_token_id is not None:
        yield [tokenizer.eos_token_id]


def positions(items: Iterable[Item]) -> Iterator[torch.Tensor]:
    """Those of items that have some."""
    for item in items:
        if item.positions is not None:
            yield item.positions


class Order:
    """``count`` items, shuffled every epoch: the first of what a run needs of data.

    The items of a step depend on the seed, the step and what is left out alone; ranks take
    consecutive shares of them. So a run resumes exactly where it stopped, also with another number
    of replicas.
    """

    sequences_each = 1
    """Sequences of an item, which stay together."""
    left_out = 0
    """Items without anything to learn."""

    def __init__(self, count: int, global_batch: int, seed: int, skips: Skips | None) -> None:
        self.count, self.seed = count, seed
        self.items = global_batch // self.sequences_each
        self.skips = skips or Skips()
        self._shuffled: tuple[int, torch.Tensor] = (-1, torch.empty(0))

    def batch(self, step: int, dp_rank: int, dp: int, micro_batches: int) -> list[Item]:
        """A replica's micro-batches of a step."""
        share = self.items // dp
        start = step * self.items + dp_rank * share
        numbers = range(start, start + share)
        found = [item for number in numbers for item in self.item(self.place(number))]
        inputs = torch.stack([item.inputs for item in found]).chunk(micro_batches)
        targets = torch.stack([item.targets for item in found]).chunk(micro_batches)
        if found[0].positions is None:
            return [Item(*pair) for pair in zip(inputs, targets, strict=True)]
        places = torch.stack(list(positions(found)))
        pieces = zip(inputs, targets, places.chunk(micro_batches), strict=True)
        return [Item(*piece) for piece in pieces]

    def learned(self, step: int) -> int:
        """The tokens that all replicas learn in a step."""
        numbers = range(step * self.items, (step + 1) * self.items)
        found = (item for number in numbers for item in self.item(self.place(number)))
        return sum(int((item.targets != IGNORED).sum()) for item in found)

    def place(self, number: int) -> int:
        """Which item comes as the ``number``-th of the whole run."""
        step, place = divmod(number, self.items)
        epoch, place = divmod(self.skips.batch(step) * self.items + place, self.count)
        if self._shuffled[0] != epoch:
            generator = torch.Generator().manual_seed(self.seed + epoch)
            self._shuffled = (epoch, torch.randperm(self.count, generator=generator))
        return int(self._shuffled[1][place])

    def item(self, place: int) -> list[Item]:
        """The sequences of an item."""
        raise NotImplementedError


class Sequences(Order):
    """Windows of ``length`` tokens, and the next one, over a token file."""

    def __init__(
        self, path: Path, length: int, global_batch: int, seed: int, skips: Skips | None = None
    ) -> None:
        self.tokens, self.length = Tokens(path), length
        size = len(self.tokens)
        count = (size - 1) // length
        if count < 1:
            raise TrainError(
                f"the texts have {size} tokens; a sequence needs {length} + 1.",
                hint="Use more text or a shorter sequence_length.",
            )
        super().__init__(count, global_batch, seed, skips)

    def learned(self, step: int) -> int:  # noqa: ARG002 - the same in each
        """All tokens of the step."""
        return self.items * self.length

    def item(self, place: int) -> list[Item]:
        """One window."""
        start = place * self.length
        window = self.tokens[start : start + self.length + 1]
        return [Item(window[:-1], window[1:])]
