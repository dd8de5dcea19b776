"""Progress of a long calculation, reported to a watcher in the same thread.

A watcher that raises ends the calculation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from recipe_core.base import budget

# Called with the steps done and the steps in all.
Watcher = Callable[[int, int], None]


@dataclass(slots=True)
class _Task:
    steps: int
    done: int = 0


_watcher: ContextVar[Watcher | None] = ContextVar("watcher", default=None)
_task: ContextVar[_Task | None] = ContextVar("task", default=None)


@contextmanager
def watched(watcher: Watcher) -> Iterator[None]:
    """Report to ``watcher`` every task that begins inside the block."""
    token = _watcher.set(watcher)
    try:
        yield
    finally:
        _watcher.reset(token)


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
    budget.spend()
    if current := _task.get():
        current.done += 1
        _report_task()


def report_steps(done: int, steps: int) -> None:
    if watcher := _watcher.get():
        watcher(done, steps)


def _report_task() -> None:
    if (current := _task.get()) and current.steps:
        report_steps(current.done, current.steps)
