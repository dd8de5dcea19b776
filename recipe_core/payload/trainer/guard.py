"""Whether a run still learns: losses that are no numbers, gradients that are none, spikes.

A spike is told by robust statistics, so that one odd step among the usual ones moves neither the
middle nor the spread: a loss above median + k · 1.4826 · MAD of the last calm steps (1.4826 makes
the median absolute deviation the standard deviation of a normal distribution; Rousseeuw and Croux,
J. Am. Stat. Assoc. 88, 1993), for several steps in a row.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

from .settings import Guard

# What a step was: as usual; perhaps the first of a spike, so nothing is saved; the run stops.
CALM, SUSPICIOUS, BROKEN = 0, 1, 2
# Calm steps before losses can be unusual.
_FEWEST = 10
# Of the median: a curve that became flat has hardly any spread of its own.
_LEAST_SPREAD = 0.01
_NORMAL = 1.4826
# Steps in a row: 16 halvings bring fp16's first loss scale, 65,536, to 1.
_SCALED_GRADIENTS = 20


@dataclass(frozen=True)
class Event:
    """Why a run stopped: ``kind`` nan, gradient or spike, and the steps from first to last.

    ``loss`` is the last one, None where it is no number; ``usual`` the median before it (nats).
    """

    kind: str
    first: int
    last: int
    loss: float | None
    usual: float | None

    def __str__(self) -> str:
        if self.kind == "nan":
            return f"the loss of step {self.last} is not a number"
        if self.kind == "gradient":
            return f"the gradients of steps {self.first} to {self.last} are not finite"
        figures = f"{self.loss:.4f} after {self.usual:.4f}"
        return f"the loss of steps {self.first} to {self.last} is a spike ({figures})"


class Watch:
    """Sees every step of a run, on one rank; ``earlier`` are the losses of the steps before."""

    def __init__(self, guard: Guard, earlier: Iterable[float] = (), *, scaled: bool = False):
        self.guard = guard
        self.calm: deque[float] = deque(filter(math.isfinite, earlier), maxlen=guard.window)
        self.gradients = _SCALED_GRADIENTS if scaled else guard.patience
        self.event: Event | None = None
        self._first: int | None = None
        self._lost = 0

    def see(self, step: int, loss: float, gradient_norm: float) -> int:
        """Judge a step (counted from 1) by its mean loss and the norm of its gradient."""
        if not math.isfinite(loss):
            return self._broken("nan", self._first or step, step, None)
        self._lost = 0 if math.isfinite(gradient_norm) else self._lost + 1
        if self._lost >= self.gradients:
            return self._broken("gradient", step - self._lost + 1, step, loss)
        limit = self.limit()
        if limit is None or loss <= limit:
            self.calm.append(loss)
            self._first = None
            return CALM
        self._first = self._first or step
        if step - self._first + 1 >= self.guard.patience:
            return self._broken("spike", self._first, step, loss)
        return SUSPICIOUS

    def limit(self) -> float | None:
        """The largest usual loss; None while too few steps are known, or spikes are not judged."""
        if len(self.calm) < min(_FEWEST, self.guard.window) or not self.guard.deviations:
            return None
        middle = median(self.calm)
        spread = _NORMAL * median(abs(loss - middle) for loss in self.calm)
        return middle + self.guard.deviations * max(spread, _LEAST_SPREAD * abs(middle))

    def _broken(self, kind: str, first: int, last: int, loss: float | None) -> int:
        self.event = Event(kind, first, last, loss, median(self.calm) if self.calm else None)
        return BROKEN
