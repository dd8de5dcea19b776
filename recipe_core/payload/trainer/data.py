"""Token files to sequences, in an order set by the seed and the step alone."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import torch

from .errors import TrainError
from .rollbacks import Skips
from .shards import Tokens

# The target of a token that is not learned (torch's ``ignore_index``).
IGNORED = -100


class Item(NamedTuple):
    """A sequence, or several (sequences × length): tokens, and what follows each.

    ``positions``: of tokens in their text, where several share a sequence; None where they do not.
    """

    inputs: torch.Tensor
    targets: torch.Tensor
    positions: torch.Tensor | None = None


def positions(items: Iterable[Item]) -> Iterator[torch.Tensor]:
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
        items = [item for number in numbers for item in self.item(self.place(number))]
        inputs = torch.stack([item.inputs for item in items]).chunk(micro_batches)
        targets = torch.stack([item.targets for item in items]).chunk(micro_batches)
        if items[0].positions is None:
            return [Item(*pair) for pair in zip(inputs, targets, strict=True)]
        places = torch.stack(list(positions(items)))
        pieces = zip(inputs, targets, places.chunk(micro_batches), strict=True)
        return [Item(*piece) for piece in pieces]

    def learned(self, step: int) -> int:
        """The tokens that all replicas learn in a step."""
        numbers = range(step * self.items, (step + 1) * self.items)
        items = (item for number in numbers for item in self.item(self.place(number)))
        return sum(int((item.targets != IGNORED).sum()) for item in items)

    def place(self, number: int) -> int:
        """Which item comes as the ``number``-th of the whole run."""
        step, place = divmod(number, self.items)
        epoch, place = divmod(self.skips.batch(step) * self.items + place, self.count)
        if self._shuffled[0] != epoch:
            generator = torch.Generator().manual_seed(self.seed + epoch)
            self._shuffled = (epoch, torch.randperm(self.count, generator=generator))
        return int(self._shuffled[1][place])

    def item(self, place: int) -> list[Item]:
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
        return self.items * self.length

    def item(self, place: int) -> list[Item]:
        """One window."""
        start = place * self.length
        window = self.tokens[start : start + self.length + 1]
        return [Item(window[:-1], window[1:])]


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
        sequences: Order,
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
        """The batch of a step, as `Order.batch` makes it."""
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
