"""How far a long calculation has come, told to whoever watches it in the same thread. A watcher that raises ends the calculation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

Watcher = Callable[[int, int], None]
"""Is told the steps that are done, and how many there are."""


@dataclass(slots=True)
class _Task:
    steps: int
    done: int = 0


_watcher: ContextVar[Watcher | None] = ContextVar("watcher", default=None)
_task: ContextVar[_Task | None] = ContextVar("task", default=None)


@contextmanager
def watched(watcher: Watcher) -> Iterator[None]:
    """Tell a watcher of all tasks that begin within."""
    token = _watcher.set(watcher)
    try:
        yield
    finally:
        _watcher.reset(token)


@contextmanager
def task(steps: int) -> Iterator[None]:
    """A task of so many steps begins."""
    token = _task.set(_Task(steps))
    try:
        _tell()
        yield
    finally:
        _task.reset(token)


def step() -> None:
    """A step of the task is done; nothing where none has begun."""
    if found := _task.get():
        found.done += 1
        _tell()


def _tell() -> None:
    watcher, found = _watcher.get(), _task.get()
    if watcher and found and found.steps:
        watcher(found.done, found.steps)
