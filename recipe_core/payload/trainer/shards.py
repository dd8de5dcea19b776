"""Tokens on disk as shards that all processes of a node map into memory, written once.

A folder with ``index.json`` (the number type and the tokens of each shard) and ``00000.bin`` and so
on: numbers of 16 bits where the vocabulary has at most 65,536, else of 32. It appears whole or not
at all, under a name that says what is in it.
"""

from __future__ import annotations

import json
import os
import shutil
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import torch

from .disk import put_in_place
from .errors import TrainError

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
