"""Looks at the machine while something runs on it: lost devices, and those that are found again.

A vendor's tool, which may take seconds or itself hang where a device is lost, is asked rarely, in a
thread, and at once only after a death.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from itertools import takewhile

from .choices import Choice, misfit, refused_by_machine
from .limits import Supervision
from .machine import Machine
from .needs import as_if_stopped
from .plan import FIRST, LaunchPlan
from .world import HERE, World

# Looks at what runs for one at the machine: of servers, and of a training run.
_POLLS, _RUN_POLLS = 30.0, 10.0
# A tool that fails once is asked again before it is believed.
_AGAIN_S = 1.0


class MachineWatch:
    """Asks for the machine now and then; ``missing``: why it cannot hold what runs.

    ``returning``: an earlier choice, left for want of devices, that fits again: the first one for
    as long as a service must last to be stable, of a training run any at once.
    """

    def __init__(
        self,
        plan: LaunchPlan,
        options: Sequence[Choice],
        limits: Supervision,
        *,
        strict: bool = False,
        world: World = HERE,
    ) -> None:
        self.options, self.strict, self.world = options, strict, world
        self.trains = plan.kind == "training"
        polls = _RUN_POLLS if self.trains else _POLLS
        self.every_s, self.stable_s = polls * limits.poll_s, 0.0 if self.trains else limits.stable_s
        # The machine may hold the first choice again before anybody looks.
        self.told_why = self.trains or refused_by_machine(plan.own) is True
        self.barred: set[str] = set()  # left for another reason: nothing returns to them
        self.returning: Choice | None = None
        self.missing: str | None = None
        self._fits_since: float | None = None
        self._pool = world.threads(1, "machine")
        self._asked: Future[Machine] | None = None
        self._next_at = 0.0

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def detect(self) -> Machine:
        return self.world.detect()

    def as_if_stopped(self, plan: LaunchPlan) -> Machine:
        """The machine now, with the memory that ``plan`` uses counted as free."""
        return as_if_stopped(self.detect(), plan.needs)

    def misfit_now(self, plan: LaunchPlan, *, stopped: bool = False) -> str | None:
        """Say why the machine cannot hold what ran, after a death; None where it can.

        ``stopped``: nothing of it runs any more.
        """
        reason = None
        for attempt in range(2):
            if attempt:
                self.world.clock.sleep(_AGAIN_S)
            machine = self.detect() if stopped else self.as_if_stopped(plan)
            reason = self._find_misfit(plan, machine)
            if reason is None:
                return None
        self.missing = reason
        return reason

    def look(self, plan: LaunchPlan, *, always: bool) -> list[tuple[str, str]]:
        """Events of a look that was due: ``device_lost`` and ``device_found`` with a reason.

        ``always``: a machine without devices is looked at too, for its memory.
        """
        now = self.world.clock.monotonic()
        if self._asked is None:
            due = now >= self._next_at and (always or plan.needs.runtime != "cpu")
            if due:
                self._asked = self._pool.submit(self.world.detect)
            return []
        if not self._asked.done():
            return []
        machine, self._asked = as_if_stopped(self._asked.result(), plan.needs), None
        self._next_at = now + self.every_s
        return [
            *self._note_running(plan, machine),
            *self._note_earlier(plan, machine, now),
        ]

    def _note_running(self, plan: LaunchPlan, machine: Machine) -> list[tuple[str, str]]:
        before, self.missing = self.missing, self._find_misfit(plan, machine)
        if self.missing and not before:
            return [("device_lost", self.missing)]
        if before and not self.missing:
            return [("device_found", f"the machine holds {plan.choice} again")]
        return []

    def _note_earlier(
        self, plan: LaunchPlan, machine: Machine, now: float
    ) -> list[tuple[str, str]]:
        earlier = list(takewhile(lambda option: option.name != plan.choice, self.options))
        if self.strict or not earlier:
            return []
        candidates = [option for option in earlier if self.trains or option.kind == FIRST]
        fitting = [c for c in candidates if misfit(c, machine, running=self.trains) is None]
        if not self.told_why:
            self.told_why = True
            self.barred |= {choice.name for choice in fitting}
        choice = next((choice for choice in fitting if choice.name not in self.barred), None)
        if choice is None:
            self._fits_since = self.returning = None
            return []
        was_found, self._fits_since = self._fits_since is not None, self._fits_since or now
        if now - self._fits_since >= self.stable_s:
            self.returning = choice
        words = "the first choice" if choice.name == FIRST else choice.name
        return [] if was_found else [("device_found", f"the machine holds {words} again")]

    def leave_choice(self, name: str, *, for_misfit: bool) -> None:
        """A choice is left; for its devices, it is taken again when they are back."""
        self.told_why = True
        self._fits_since = self.returning = None
        self.barred = self.barred - {name} if for_misfit else self.barred | {name}

    def _find_misfit(self, plan: LaunchPlan, machine: Machine) -> str | None:
        choice = next((option for option in self.options if option.name == plan.choice), None)
        return misfit(choice, machine) if choice is not None else None
