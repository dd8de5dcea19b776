"""Signals to this process: what interrupts it, and parts that must not be cut in two."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

from .procs import CLOCK, Clock

_NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# A closed terminal signals twice, once by the kernel and once by the shell: both mean one end.
_ECHO_S = 1.0


class _Held:
    """Signals during parts that must not be cut in two; ``raised``: when the last one was not."""

    clock = CLOCK
    depth = 0
    pending = False
    raised = float("-inf")


@contextmanager
def interruptible(clock: Clock = CLOCK) -> Iterator[None]:
    """Raise KeyboardInterrupt for the three signals; outside the main thread this does nothing.

    SIGHUP and SIGINT that are ignored from the start (nohup, a background job of a shell) stay so.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {
        number: handler for number in _NUMBERS if (handler := signal.getsignal(number)) is not None
    }
    _Held.depth, _Held.pending, _Held.raised = 0, False, float("-inf")
    _Held.clock = clock
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, _interrupt)
        elif number == signal.SIGINT:
            # What is ignored stays so in the servers; a handler is their default again.
            signal.signal(number, lambda *_: None)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def takes_over() -> tuple[signal.Signals, ...]:
    """The signals that interrupt now: whoever notes them instead leaves ignored ones alone."""
    return tuple(number for number in _NUMBERS if signal.getsignal(number) is _interrupt)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    if _Held.clock.monotonic() - _Held.raised < _ECHO_S:
        return
    if _Held.depth:
        _Held.pending = True
        return
    _raise_interrupt()


def _raise_interrupt() -> NoReturn:
    _Held.pending, _Held.raised = False, _Held.clock.monotonic()
    raise KeyboardInterrupt


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Hold the signals back until the end of this part, which must be bounded in time."""
    _Held.depth += 1
    try:
        yield
    finally:
        _Held.depth -= 1
    if _Held.pending and not _Held.depth:
        _raise_interrupt()
