"""A calculation that goes on while the page that asked for it stays usable."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from recipe_core.base import budget
from recipe_core.base.budget import Cancelled
from recipe_core.base.errors import NoAnswer, RecipeError
from recipe_core.doors.guard import tell_fault
from recipe_core.doors.pool import Pool

# Seconds without a look of its page after which nobody is taken to wait for a calculation.
LEFT_S = 30.0


class Background:
    """One calculation of the server's workers, in a thread of its own that waits for it.

    Args:
        pool: whose workers calculate.
        function: of this package; called with ``arguments`` and ``options`` of ``Pool.run``.
        clock: seconds that only grow.
    """

    def __init__(
        self,
        pool: Pool,
        function: Callable[..., Any],
        *arguments: Any,
        clock: Callable[[], float] = time.monotonic,
        **options: Any,
    ) -> None:
        self._clock, self._looked = clock, clock()
        self._cancelled = threading.Event()
        self.share, self.stage = 0.0, ""
        self.value: Any = None
        self.error: RecipeError | None = None

        def work() -> None:
            try:
                with budget.watched(self._note):
                    self.value = pool.run(
                        function, *arguments, abandoned=self._is_left, long=True, **options
                    )
            except Cancelled:
                if not self._cancelled.is_set():  # its page may be looked at again
                    self.error = NoAnswer("ended while its page was away.", hint="Ask again.")
            except RecipeError as error:
                self.error = error
            except Exception as error:
                self.error = tell_fault(error, "a calculation in the background")

        self._thread = threading.Thread(target=work, name="background", daemon=True)
        self._thread.start()

    def _note(self, done: int, steps: int, stage: str) -> None:
        self.share, self.stage = min(done / steps, 1.0) if steps else 0.0, stage

    def _is_left(self) -> bool:
        return self._cancelled.is_set() or self._clock() - self._looked > LEFT_S

    @property
    def is_over(self) -> bool:
        """Return whether it has a value or an error, or ended without; to ask is to wait for it."""
        self._looked = self._clock()
        return not self._thread.is_alive()

    def cancel(self) -> None:
        """End it; its value is not wanted any longer."""
        self._cancelled.set()

    def wait(self) -> None:
        """Block until it is over; to block is to wait for it."""
        while not self.is_over:
            self._thread.join(LEFT_S / 2)
