"""Points of micro-benchmarks: work and seconds of each case, as the estimator counts work."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any, Protocol

from recipe_core.hardware.profile import Dtype, Family

if TYPE_CHECKING:
    import torch


# Seconds of one timed batch of calls: long enough that the clock, and an interruption that every
# call meets now and then, are a part of it like any other.
BATCH_S = 5e-3
# Batches of a case.
FEWEST, MOST = 3, 40
# Standard deviation of a normal distribution over its median absolute deviation.
_NORMAL = 1.4826

Work = Callable[[], object]


class Clock(Protocol):
    """A clock of a device's seconds."""

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


# Bytes of an activation value, as `recipe_core.estimates` counts them for 16-bit formats.
ACTIVATION_BYTES = 2.0


@dataclass(frozen=True, slots=True)
class Point:
    """One measured case of a family: its flops, the bytes it moves, and its time."""

    family: Family
    dtype: Dtype
    shape: str
    flops: float
    moved_bytes: float
    timing: Timing


@dataclass(frozen=True, slots=True)
class Case:
    """One case to measure; ``make`` allocates what its calls work on.

    It raises what torch raises where a format or a size is not supported.
    """

    family: Family
    dtype: Dtype
    shape: str
    flops: float
    moved_bytes: float
    make: Callable[[], Work]


@dataclass(frozen=True, slots=True)
class Bench:
    """The device that is measured: torch's word for it, its clock and its last-level cache."""

    device: torch.device
    clock: Clock
    cache_bytes: float
    memory_bytes: float

    @property
    def accelerated(self) -> bool:
        return self.device.type != "cpu"


@dataclass(slots=True)
class Rates:
    """The best rates so far, by which a case that would take too long is seen beforehand."""

    flops_per_s: dict[str, float]
    bytes_per_s: float

    def seconds(self, case: Case) -> float:
        """The time that a case takes at the best rates so far; 0 where none is known."""
        rate = self.flops_per_s.get(case.dtype)
        compute_s = case.flops / rate if rate else 0.0
        return max(compute_s, case.moved_bytes / self.bytes_per_s if self.bytes_per_s else 0.0)

    def learn(self, point: Point) -> None:
        """Take up a measured point."""
        best = self.flops_per_s.get(point.dtype, 0.0)
        self.flops_per_s[point.dtype] = max(best, point.flops / point.timing.seconds)
        self.bytes_per_s = max(self.bytes_per_s, point.moved_bytes / point.timing.seconds)


def measure_cases(
    cases: list[Case],
    bench: Bench,
    deadline: Deadline,
    seconds: float,
    notes: list[str],
    *,
    needed: int = 0,
) -> Iterator[Point]:
    """The cases that fit in so many seconds, in their order; what is left out is noted.

    A case that the device refuses (an unsupported format, too little memory) is left out; one that
    would take more than a sixth of what is left is too. The first ``needed`` cases are measured
    whatever is left.
    """
    ends = deadline.spent_s + min(seconds, deadline.left_s)
    rates, refused, late = Rates({}, 0.0), dict[str, str](), 0
    for place, case in enumerate(cases):
        left_s = ends - deadline.spent_s
        if case.dtype in refused:
            continue
        if place >= needed and (left_s <= 0 or 6 * rates.seconds(case) > left_s):
            late += 1
            continue
        try:
            work = case.make()
            timing = time_work(work, bench.clock, max(left_s, 0.0) / (len(cases) - place))
        except (RuntimeError, NotImplementedError, TypeError, ValueError) as error:
            first = next(iter(str(error).splitlines()), type(error).__name__)
            refused[case.dtype] = f"{case.family} {case.dtype} {case.shape}: {first[:160]}"
            continue
        point = Point(case.family, case.dtype, case.shape, case.flops, case.moved_bytes, timing)
        rates.learn(point)
        yield point
    notes += [f"not measured, {reason}" for reason in refused.values()]
    if late:
        family = cases[0].family
        notes.append(f"{late} of {len(cases)} shapes of {family} did not fit in the time")


def in_turn(calls: Sequence[Callable[[], Any]]) -> Work:
    """Calls one after the other, so that what one reads is not in a cache when it comes again."""
    place = -1

    def work() -> Any:
        nonlocal place
        place = (place + 1) % len(calls)
        return calls[place]()

    return work
