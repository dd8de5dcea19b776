"""Token files on disk as shards, and the sequences of them that the seed and step alone order.

Shards are a folder with ``index.json`` (the number type and the tokens of each shard) and
``00000.bin`` and so on: numbers of 16 bits where the vocabulary has at most 65,536, else of 32. It
appears whole or not at all, under a name that says what is in it.
"""

from __future__ import annotations

import copy
import json
import os
import shutil
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from .disk import put_in_place
from .errors import TrainError
from .rollbacks import Skips

# Tokens of a full shard: 0.5 or 1 GiB.
SHARD_TOKENS = 1 << 28
INDEX = "index.json"
# Tokens that are collected before they are written.
_CHUNK = 1 << 20


def write_shards(
    target: Path, pieces: Iterable[list[int]], vocabulary: int, shard_tokens: int = SHARD_TOKENS
) -> Path:
    """The folder ``target`` with the tokens of all pieces, one after another.

    Processes may write it side by side: each fills a folder of its own, the first moves it into
    place, the others drop theirs.
    """
    if (target / INDEX).exists():
        return target
    part = target.with_name(f"{target.name}.{os.uname().nodename}.{os.getpid()}")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    kind = np.dtype("<u2" if vocabulary <= 1 << 16 else "<u4")
    sizes = [
        _write_shard(part / _shard_name(k), shard)
        for k, shard in enumerate(_cut_shards(pieces, kind, shard_tokens))
    ]
    index = {"dtype": kind.str, "tokens": sizes}
    (part / INDEX).write_text(json.dumps(index), encoding="utf-8")
    try:
        put_in_place(part, target)
    except OSError:
        shutil.rmtree(part, ignore_errors=True)
        if not (target / INDEX).exists():
            raise
    return target


def _shard_name(number: int) -> str:
    return f"{number:05d}.bin"


def _cut_shards(
    pieces: Iterable[list[int]], kind: np.dtype[Any], shard_tokens: int
) -> Iterator[Iterator[np.ndarray[Any, Any]]]:
    """Shards as chunks of numbers; each has to be taken whole before the next."""
    chunks = _chunks(pieces, kind, shard_tokens)
    chunk: np.ndarray[Any, Any] | None = next(chunks, None)

    def shard() -> Iterator[np.ndarray[Any, Any]]:
        nonlocal chunk
        room = shard_tokens
        while chunk is not None and room > 0:
            yield chunk[:room]
            rest = chunk[room:]
            room -= len(chunk) - len(rest)
            chunk = rest if len(rest) else next(chunks, None)

    while chunk is not None:
        yield shard()


def _chunks(
    pieces: Iterable[list[int]], kind: np.dtype[Any], shard_tokens: int
) -> Iterator[np.ndarray[Any, Any]]:
    """Pieces joined to arrays that are worth a write."""
    tokens: list[int] = []
    for piece in pieces:
        tokens += piece
        if len(tokens) >= min(_CHUNK, shard_tokens):
            yield np.asarray(tokens, dtype=kind)
            tokens = []
    if tokens:
        yield np.asarray(tokens, dtype=kind)


def _write_shard(path: Path, chunks: Iterator[np.ndarray[Any, Any]]) -> int:
    """The tokens written."""
    tokens = 0
    with path.open("wb") as file:
        for chunk in chunks:
            file.write(chunk.tobytes())
            tokens += len(chunk)
    return tokens


class Tokens:
    """All tokens of a folder, mapped; a slice is read as 64-bit numbers, across shards.

    Copies, and what other processes get of it, map the same files.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            index = json.loads((folder / INDEX).read_text(encoding="utf-8"))
            kind, sizes = np.dtype(index["dtype"]), [int(size) for size in index["tokens"]]
            self._shards = [
                np.memmap(folder / _shard_name(k), dtype=kind, mode="r", shape=(size,))
                for k, size in enumerate(sizes)
            ]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise TrainError(
                f"cannot read the tokens in {folder}: {error}.",
                hint="Remove the folder: it is made again from the texts.",
            ) from None
        self._starts = [0, *accumulate(sizes)]

    def __len__(self) -> int:
        return self._starts[-1]

    def __getitem__(self, span: slice) -> torch.Tensor:
        start, stop, _ = span.indices(len(self))
        parts: list[np.ndarray[Any, Any]] = []
        shard = bisect_right(self._starts, start) - 1
        while start < stop:
            first, end = self._starts[shard], min(self._starts[shard + 1], stop)
            parts.append(self._shards[shard][start - first : end - first])
            start, shard = end, shard + 1
        joined = np.concatenate(parts) if parts else np.empty(0)
        return torch.from_numpy(joined.astype(np.int64))

    def __reduce__(self) -> tuple[type[Tokens], tuple[Path]]:
        return Tokens, (self.folder,)


class Item(NamedTuple):
    """Sequences (sequences × length): tokens, and what follows each."""

    inputs: torch.Tensor
    targets: torch.Tensor


class Sequences:
    """Windows of ``length`` tokens, and the next one, over a token file, shuffled every epoch.

    The windows of a step depend on the seed, the step and what is left out alone; ranks take
    consecutive shares of them. So a run resumes exactly where it stopped, also with another number
    of replicas.
    """

    def __init__(
        self, path: Path, length: int, global_batch: int, seed: int, skips: Skips | None = None
    ) -> None:
        self.tokens, self.length, self.global_batch = Tokens(path), length, global_batch
        size = len(self.tokens)
        self.count = (size - 1) // length
        if self.count < 1:
            raise TrainError(
                f"the texts have {size} tokens; a sequence needs {length} + 1.",
                hint="Use more text or a shorter sequence_length.",
            )
        self.seed, self.skips = seed, skips or Skips()
        self._shuffled: tuple[int, torch.Tensor] = (-1, torch.empty(0))

    def batch(self, step: int, dp_rank: int, dp: int, micro_batches: int) -> list[Item]:
        """A replica's micro-batches of a step."""
        share = self.global_batch // dp
        start = step * self.global_batch + dp_rank * share
        windows = torch.stack([self.window(number) for number in range(start, start + share)])
        return [Item(part[:, :-1], part[:, 1:]) for part in windows.chunk(micro_batches)]

    def window(self, number: int) -> torch.Tensor:
        """The ``number``-th window of the whole run, and the token behind it."""
        start = self.place(number) * self.length
        return self.tokens[start : start + self.length + 1]

    def place(self, number: int) -> int:
        """Which window comes as the ``number``-th of the whole run."""
        step, place = divmod(number, self.global_batch)
        epoch, place = divmod(self.skips.batch(step) * self.global_batch + place, self.count)
        if self._shuffled[0] != epoch:
            generator = torch.Generator().manual_seed(self.seed + epoch)
            self._shuffled = (epoch, torch.randperm(self.count, generator=generator))
        return int(self._shuffled[1][place])


class Ahead:
    """Batches of a replica, step after step, the next ``prefetch`` of them made by ``workers``.

    A batch depends on its step alone, so that how many are ahead, and who makes them, changes
    nothing in a run or in its resumption. With ``prefetch`` 0 each is made when it is taken.

    Args:
        sequences: what batches are made of; each worker has a copy over the same mapped tokens.
        part: the replica, how many there are, and the micro-batches of a step.
        workers: threads; reading and copying tokens leaves Python's lock.
        prefetch: batches ahead.
        steps: of the whole run; none is made beyond them.
    """

    def __init__(
        self,
        sequences: Sequences,
        part: tuple[int, int, int],
        workers: int,
        prefetch: int,
        steps: int,
    ) -> None:
        self.sequences, self.part = sequences, part
        self.prefetch, self.steps = prefetch, steps
        self._own = threading.local()
        self._made: dict[int, Future[Any]] = {}
        self._pool = ThreadPoolExecutor(workers, "loader") if prefetch else None

    def batch(self, step: int) -> Any:
        """The batch of a step, as `Sequences.batch` makes it."""
        if self._pool is None:
            return self._make(step)
        for ahead in range(step, min(step + self.prefetch + 1, self.steps)):
            if ahead not in self._made:
                self._made[ahead] = self._pool.submit(self._make, ahead)
        return self._made.pop(step).result()

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def _make(self, step: int) -> Any:
        # The order of an epoch is kept from call to call, which threads must not share.
        if not hasattr(self._own, "batch"):
            batch: Callable[..., Any] = copy.copy(self.sequences).batch
            self._own.batch = batch
        return self._own.batch(step, *self.part)
