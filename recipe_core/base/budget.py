"""The budget of a request: candidates, seconds, and whether somebody still waits for it.

Long calculations count what they are about to make (``count_planned``), and ask between chunks
whether to go on (``spend``). Without a budget only candidates are limited, to ``CANDIDATES``.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field

from recipe_core.base.errors import LimitError


def process_resident_bytes() -> int:
    """Memory of this process that lies in RAM; 0 where the system does not tell."""
    return _statm_bytes(1)


@contextmanager
def limited_memory(more_bytes: int) -> Iterator[None]:
    """Let allocations fail (MemoryError) that need more than this beyond what the process has now.

    It holds for all threads of the process; a limit that is there already may be narrower.
    """
    before, has = None, _statm_bytes(5)
    with suppress(ImportError, ValueError, OSError):
        import resource

        kind = resource.RLIMIT_DATA  # private writable memory, as the sixth column of statm
        soft, hard = resource.getrlimit(kind)
        if has:
            limits = [limit for limit in (soft, hard) if limit != resource.RLIM_INFINITY]
            resource.setrlimit(kind, (min([has + more_bytes, *limits]), hard))
            before = soft, hard
    try:
        yield
    finally:
        if before is not None:
            resource.setrlimit(kind, before)


def _statm_bytes(column: int) -> int:
    """A column of the kernel's page counts of this process, in bytes; 0 where there are none."""
    try:
        with open("/proc/self/statm") as file:  # noqa: PTH123 - read between chunks
            return int(file.read().split()[column]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return 0


# Candidates of one plan: some ten seconds and one GB.
CANDIDATES = 1_000_000


class Cancelled(BaseException):
    """Nobody waits for the answer any longer; no error, so that nothing but its sender takes it."""


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits of one request; None is no limit.

    ``candidates`` of each plan, ``seconds`` from the start of the block in which it applies.
    """

    candidates: int | None = CANDIDATES
    seconds: float | None = None


@dataclass(slots=True)
class Account:
    """The part of its budget that a request has used.

    ``planned`` and ``evaluated`` are candidates of the latest plan.
    """

    budget: Budget
    abandoned: Callable[[], bool] = lambda: False
    began: float = field(default_factory=time.monotonic)
    planned: int = 0
    evaluated: int = 0

    def progress(self) -> str:
        """Say how far the latest plan is, as the end of a sentence; empty before the first."""
        if not self.planned:
            return ""
        return f", with {self.evaluated:,} of {self.planned:,} candidates evaluated"


_account: ContextVar[Account | None] = ContextVar("account", default=None)


@contextmanager
def apply_budget(
    budget: Budget, abandoned: Callable[[], bool] = lambda: False
) -> Iterator[Account]:
    """Hold what runs in this block to a budget; ``abandoned`` says that nobody waits any longer."""
    account = Account(budget, abandoned)
    token = _account.set(account)
    try:
        yield account
    finally:
        _account.reset(token)


def most_candidates() -> int | None:
    """Return how many candidates a plan may have here; None for any number."""
    account = _account.get()
    return CANDIDATES if account is None else account.budget.candidates


def count_planned(candidates: int) -> None:
    if (account := _account.get()) is not None:
        account.planned, account.evaluated = candidates, 0


def raise_planned(candidates: int) -> None:
    if (account := _account.get()) is not None:
        account.planned = max(account.planned, candidates)


def spend(evaluated: int = 0) -> None:
    """Count evaluated candidates, and end the calculation where it must not go on.

    Raises:
        LimitError: when the time of the request is over.
        Cancelled: when nobody waits for the answer.
    """
    if (account := _account.get()) is None:
        return
    account.evaluated += evaluated
    if account.abandoned():
        raise Cancelled
    seconds = account.budget.seconds
    if seconds is not None and time.monotonic() - account.began > seconds:
        raise out_of_time_error(account)


def out_of_time_error(account: Account) -> LimitError:
    """The refusal of a request that took longer than its budget."""
    hint = "Ask for fewer devices, loads or formats."
    if 0 < account.evaluated < account.planned:
        hint = f"About {account.evaluated:,} candidates fit in that time: ask for fewer devices, "
        hint += "loads or formats."
    return LimitError(
        f"took longer than the {account.budget.seconds:g} s that a request may take here"
        f"{account.progress()}.",
        field="request",
        hint=hint,
    )


def out_of_memory_error(account: Account, memory_bytes: int) -> LimitError:
    return LimitError(
        f"needs more than the {memory_bytes / 2**30:.1f} GiB of memory that a request may use here"
        f"{account.progress()}.",
        field="request",
        hint="Ask for fewer devices, loads or formats.",
    )


# Called with the steps done, the steps in all, and what goes on where no steps say it.
Watcher = Callable[[int, int, str], None]


@dataclass(slots=True)
class _Task:
    steps: int
    done: int = 0


@dataclass(slots=True)
class _Watch:
    watcher: Watcher
    done: int = 0
    steps: int = 0


_watch: ContextVar[_Watch | None] = ContextVar("watch", default=None)
_task: ContextVar[_Task | None] = ContextVar("task", default=None)


@contextmanager
def watched(watcher: Watcher) -> Iterator[None]:
    """Report to ``watcher`` every task that begins inside the block."""
    token = _watch.set(_Watch(watcher))
    try:
        yield
    finally:
        _watch.reset(token)


@contextmanager
def track_task(steps: int) -> Iterator[None]:
    """A task of this many steps."""
    token = _task.set(_Task(steps))
    try:
        _report_task()
        yield
    finally:
        _task.reset(token)


def count_step() -> None:
    """Count one step of the current task, and end where the request's budget does."""
    spend()
    if current := _task.get():
        current.done += 1
        _report_task()


def report_steps(done: int, steps: int, stage: str = "") -> None:
    if watch := _watch.get():
        watch.done, watch.steps = done, steps
        watch.watcher(done, steps, stage)


def report_stage(stage: str) -> None:
    """Say what goes on, where no steps say it: those that were counted last stay."""
    if watch := _watch.get():
        watch.watcher(watch.done, watch.steps, stage)


def _report_task() -> None:
    if (current := _task.get()) and current.steps:
        report_steps(current.done, current.steps)
