"""Whether the machine still holds what runs, and holds the first choice again.

A vendor's tool may take seconds, and may itself hang where a device is lost: it is asked rarely, in
a thread, and at once only after a death.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace

from .choices import Choice, misfit
from .machine import Device, Machine
from .plan import FIRST, LaunchPlan, Needs
from .supervision import Supervision
from .world import HERE, World

# Looks at the servers for one at the machine.
_POLLS = 30.0
# A tool that fails once is asked again before it is believed.
_AGAIN_S = 1.0


class MachineWatch:
    """Asks for the machine now and then; ``left_for_misfit``: a first choice that did not fit.

    ``first_fits``: it has fitted again for as long as a service must last to be stable.
    """

    def __init__(
        self,
        options: Sequence[Choice],
        limits: Supervision,
        *,
        strict: bool = False,
        world: World = HERE,
    ) -> None:
        self.limits, self.strict, self.world = limits, strict, world
        self.first = next((option for option in options if option.name == FIRST), None)
        self.left_for_misfit: bool | None = None  # not known yet
        self.first_fits = False
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
        return freed(self.detect(), plan.needs)

    def misfit_now(self, plan: LaunchPlan, options: Sequence[Choice]) -> str | None:
        """Why the machine cannot hold what runs, after a death; None where it can."""
        reason = None
        for attempt in range(2):
            if attempt:
                self.world.clock.sleep(_AGAIN_S)
            reason = _misfit(plan, options, self.as_if_stopped(plan))
            if reason is None:
                return None
        self.missing = reason
        return reason

    def look(
        self, plan: LaunchPlan, options: Sequence[Choice], *, always: bool
    ) -> list[tuple[str, str]]:
        """Events of a look that was due: ``device_lost`` and ``device_found`` with a reason.

        ``wanted``: whether a machine without devices is looked at too, for its memory.
        """
        now = self.world.clock.monotonic()
        if self._asked is None:
            due = now >= self._next_at and (always or plan.needs.runtime != "cpu")
            if due:
                self._asked = self._pool.submit(self.world.detect)
            return []
        if not self._asked.done():
            return []
        machine, self._asked = freed(self._asked.result(), plan.needs), None
        self._next_at = now + _POLLS * self.limits.poll_s
        return [*self._of_running(plan, options, machine), *self._of_first(plan, machine, now)]

    def _of_running(
        self, plan: LaunchPlan, options: Sequence[Choice], machine: Machine
    ) -> list[tuple[str, str]]:
        before, self.missing = self.missing, _misfit(plan, options, machine)
        if self.missing and not before:
            return [("device_lost", self.missing)]
        if before and not self.missing:
            return [("device_found", f"the machine holds {plan.choice} again")]
        return []

    def _of_first(self, plan: LaunchPlan, machine: Machine, now: float) -> list[tuple[str, str]]:
        if self.first is None or self.strict or plan.choice == FIRST:
            return []
        reason = misfit(self.first, machine)
        if self.left_for_misfit is None:
            self.left_for_misfit = reason is not None
        if reason is not None or not self.left_for_misfit:
            self._fits_since = None
            return []
        if self._fits_since is None:
            self._fits_since = now
            return [("device_found", "the machine holds the first choice again")]
        self.first_fits = now - self._fits_since >= self.limits.stable_s
        return []

    def returned(self) -> None:
        """The first choice is taken again."""
        self.first_fits, self._fits_since, self.left_for_misfit = False, None, None


def _misfit(plan: LaunchPlan, options: Sequence[Choice], machine: Machine) -> str | None:
    choice = next((option for option in options if option.name == plan.choice), None)
    return misfit(choice, machine) if choice is not None else None


def freed(machine: Machine, needs: Needs) -> Machine:
    """A machine with the memory that a plan uses counted as free, as the recipe estimates it."""
    if needs.runtime != "cpu":
        devices = tuple(_freed(device, needs) for device in machine.devices)
        return replace(machine, devices=devices)
    if machine.available_bytes is None:
        return machine
    free = machine.available_bytes + _held_device_bytes(needs, machine.memory_bytes or 0)
    memories = tuple(
        replace(
            memory,
            free_bytes=min(
                memory.total_bytes,
                memory.free_bytes + _held_device_bytes(needs, memory.total_bytes),
            ),
        )
        for memory in machine.memories
    )
    available = min(free, machine.memory_bytes or free)
    return replace(machine, available_bytes=available, memories=memories)


def _freed(device: Device, needs: Needs) -> Device:
    if device.free_bytes is None:
        return device
    free = device.free_bytes + _held_device_bytes(needs, device.memory_bytes or 0)
    return replace(device, free_bytes=min(free, device.memory_bytes or free))


def _held_device_bytes(needs: Needs, total_bytes: int) -> int:
    """What the engine may hold of a memory: what it uses, or all that it has claimed."""
    claimed = needs.claim.of(total_bytes) if needs.claim else 0
    return max(needs.used_bytes or 0, claimed)
