"""Token files on disk, and the sequences of them that the seed and step alone order.

A file holds nothing but numbers: of 16 bits where the vocabulary has at most 65,536, else of 32, as
the end of its name says.
"""

from __future__ import annotations

import copy
import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from .disk import put_in_place
from .errors import TrainError
from .rollbacks import Skips


def write_tokens(folder: Path, name: str, pieces: Iterable[list[int]], vocabulary: int) -> Path:
    """Write the tokens of all pieces one after another, where there is no such file yet.

    Processes may write it side by side: each fills a file of its own and moves it into place.
    """
    target = folder / f"{name}.{'u2' if vocabulary <= 1 << 16 else 'u4'}"
    if not target.exists():
        folder.mkdir(parents=True, exist_ok=True)
        part = target.with_name(f"{target.name}.{os.uname().nodename}.{os.getpid()}")
        with part.open("wb") as file:
            for piece in pieces:
                file.write(np.asarray(piece, dtype=f"<{target.suffix[1:]}").tobytes())
        put_in_place(part, target)
    return target


class Tokens:
    """All tokens of a file, mapped; a slice is read as 64-bit numbers.

    Copies, and what other processes get of it, map the same file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._numbers = np.memmap(path, dtype=f"<{path.suffix[1:]}", mode="r")
        except (OSError, ValueError, TypeError) as error:
            raise TrainError(
                f"cannot read the tokens in {path}: {error}.",
                hint="Remove the file: it is made again from the texts.",
            ) from None

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, span: slice) -> torch.Tensor:
        return torch.from_numpy(self._numbers[span].astype(np.int64))

    def __reduce__(self) -> tuple[type[Tokens], tuple[Path]]:
        return Tokens, (self.path,)


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
        """Return which window comes as the ``number``-th of the whole run."""
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
