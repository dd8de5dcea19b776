"""Batches made ahead of the step that takes them, so that no step waits for its data."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from .data import Order


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
