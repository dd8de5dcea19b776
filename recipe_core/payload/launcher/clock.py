"""Time as supervision takes it: an argument, so that a test need not wait."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime


class Clock:
    """The clock of this machine; ``waits`` is called before every wait."""

    waits: Callable[[], object] = staticmethod(lambda: None)

    def monotonic(self) -> float:
        """Seconds on a clock that nobody sets."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        self.waits()
        time.sleep(seconds)

    def now(self) -> datetime:
        return datetime.now().astimezone()


CLOCK = Clock()
