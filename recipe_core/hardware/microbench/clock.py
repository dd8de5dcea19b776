"""Timing of kernels within a budget: medians of batches of calls, and how far they vary."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any, Protocol

# Seconds of one timed batch of calls: long enough that the clock, and an interruption that every
# call meets now and then, are a part of it like any other.
BATCH_S = 5e-3
# Batches of a case.
FEWEST, MOST = 3, 40
# Standard deviation of a normal distribution over its median absolute deviation.
_NORMAL = 1.4826

Work = Callable[[], object]


class Clock(Protocol):
    """How seconds of a device are read."""

    def seconds(self, work: Work, calls: int) -> float:
        """Seconds that so many calls take on the device."""
        ...


class HostClock:
    """The time on the wall, for work that is done when a call returns."""

    def seconds(self, work: Work, calls: int) -> float:
        """Seconds of so many calls."""
        start = time.perf_counter()
        for _ in range(calls):
            work()
        return time.perf_counter() - start


class EventClock:
    """Events on the stream of an accelerator, which count only what it does."""

    def __init__(self, cuda: Any) -> None:
        self.cuda = cuda

    def seconds(self, work: Work, calls: int) -> float:
        """Seconds between an event before the calls and one behind them."""
        start, end = (self.cuda.Event(enable_timing=True) for _ in range(2))
        self.cuda.synchronize()
        start.record()
        for _ in range(calls):
            work()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / 1e3


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds of one call: the median over batches, and the spread of their logarithms."""

    seconds: float
    spread: float
    batches: int


def time_work(work: Work, clock: Clock, budget_s: float, batch_s: float = BATCH_S) -> Timing:
    """The time of a call, measured for about ``budget_s`` seconds after one that is not counted.

    A batch has as many calls as fit in ``batch_s``. At least ``FEWEST`` batches are timed, however
    long they take.
    """
    clock.seconds(work, 1)
    first_s = max(clock.seconds(work, 1), 1e-9)
    calls = max(1, math.ceil(batch_s / first_s))
    until, times = time.perf_counter() + budget_s, list[float]()
    while len(times) < FEWEST or (len(times) < MOST and time.perf_counter() < until):
        times.append(max(clock.seconds(work, calls) / calls, 1e-9))
    return Timing(median(times), log_spread(times), len(times))


def log_spread(values: list[float]) -> float:
    """Standard deviation of the logarithms of positive values, by their median deviation."""
    logs = [math.log(value) for value in values]
    middle = median(logs)
    return _NORMAL * median(abs(value - middle) for value in logs)


class Deadline:
    """A total time, of which each section of a run gets a share of what is left."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.start = time.monotonic()

    @property
    def left_s(self) -> float:
        """Seconds that are left; never below 0."""
        return max(0.0, self.start + self.seconds - time.monotonic())

    @property
    def spent_s(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.start
