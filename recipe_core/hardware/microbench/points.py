"""What a micro-benchmark leaves: work and seconds of each case, as the estimator counts work."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from recipe_core.hardware.microbench.clock import Clock, Deadline, Timing, Work, time_work
from recipe_core.hardware.profile import Dtype, Family

if TYPE_CHECKING:
    import torch

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
