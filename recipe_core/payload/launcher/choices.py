"""Choices of a bundle here, in the order of its ``launch.json``: each a condition and a launch.

Variants are for just their devices, so they go before the recipe's first choice; fallbacks, which
were planned for the same objective, come after it. Another choice is taken where the machine is
smaller than planned (fewer devices, other devices, less free memory) and where the engine refuses
to start, or runs out of memory while it does.

While something runs, a vendor's tool, which may take seconds or itself hang where a device is lost,
is asked rarely, in a thread, and at once only after a death.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING

from . import events
from .diagnosis import diagnose
from .errors import LateError, LauncherError, PreflightError, StartError
from .machine import Device, Machine, detect_machine
from .plan import FIRST, VARIANT, LaunchPlan, Needs, load_plan
from .preflight import needs_here, unmet
from .sections import Supervision
from .world import HERE, World

if TYPE_CHECKING:
    from .supervisor import Progress


# Checks that another choice may pass on the same machine.
MACHINE_CHECKS = frozenset({"device", "memory"})
# Kinds that only the devices that they name can hold. Of others another device of the same vendor
# is only warned of.
_OF_DEVICE = ("other-device", VARIANT)


@dataclass(frozen=True, slots=True)
class Choice:
    """One thing to start. ``kind`` is ``first``, ``variant`` or what a fallback changes."""

    name: str
    kind: str
    title: str
    plan: LaunchPlan

    @property
    def expected(self) -> Path:
        return self.plan.folder / "expected.json"


def list_launch_choices(plan: LaunchPlan) -> tuple[Choice, ...]:
    """All that can be started of a bundle, in its order, with the parameters of ``plan``.

    Nodes of one bundle cannot agree on another choice by themselves: there it is ``plan``'s.

    Raises:
        InputError: for a choice whose files cannot be read.
    """
    if plan.node is not None:
        return (Choice(plan.choice, plan.choice, plan.name, plan),)
    same = {name: getattr(plan.parameters, name) for name in ("model", "host", "port", "data")}
    choices = (
        Choice(item.name, item.kind, item.title, load_plan(plan.root, choice=item.name, **same))
        for item in plan.choices
        if not item.advised
    )
    # A choice over several nodes needs launchers on each.
    return tuple(choice for choice in choices if choice.plan.nodes == 1)


def misfit(choice: Choice, machine: Machine, *, running: bool = False) -> str | None:
    """Say why a machine cannot hold a choice; None where it can.

    ``running``: whatever uses its memory now.
    """
    exact = choice.kind in _OF_DEVICE
    return unmet(needs_here(choice.plan), machine, exact=exact, running=running)


def next_choice(
    candidates: Sequence[Choice], machine: Machine, *, tried: Collection[str]
) -> Choice | None:
    """The first that fits the machine and was not tried."""
    return next(
        (
            choice
            for choice in candidates
            if choice.name not in tried and misfit(choice, machine) is None
        ),
        None,
    )


class Attempts:
    """The choices to start one after the other, until one does.

    ``failure``: of the first choice that was tried, with what else was.
    """

    def __init__(self, plan: LaunchPlan, progress: Progress, *, strict: bool) -> None:
        self.plan, self.progress, self.strict = plan, progress, strict
        self.refused: list[tuple[str, LauncherError]] = []

    def __iter__(self) -> Iterator[Choice]:
        candidates, tried, asked_for = list_launch_choices(self.plan), set[str](), self.plan.choice
        earlier = list(takewhile(lambda option: option.name != asked_for, candidates))
        choice: Choice | None = candidates[len(earlier)]
        if earlier and not self.strict:
            choice = next_choice(earlier, detect_machine(), tried=()) or choice
        while choice is not None:
            if choice.name != asked_for:
                self.progress.say(f"taking {choice.name} ({choice.title})")
            if self.refused:
                refused_name, error = self.refused[-1]
                about = {"from": refused_name, "to": choice.name, "title": choice.title}
                events.append(self.plan.own, "fallback", **about, reason=error.message)
            tried.add(choice.name)
            yield choice
            choice = next_choice(candidates, detect_machine(), tried=tried)

    @contextmanager
    def trying(self, choice: Choice) -> Iterator[None]:
        """Go on with the next choice where this one failed for want of the machine.

        Raises:
            LauncherError: what another choice would not cure.
        """
        try:
            yield
        except LauncherError as error:
            cause = error.check if isinstance(error, PreflightError) else _diagnose_refusal(error)
            words = {"reason": error.message, "cause": cause, "fix": error.hint}
            events.append(self.plan.own, "refused", choice=choice.name, **words)
            if self.strict or not curable(error):
                raise
            self.refused.append((choice.name, error))
            self.progress.say(f"{choice.name}: {error.message}")

    @property
    def failure(self) -> LauncherError:
        """The first error, and which choices were tried beside."""
        (_, first), *later_refusals = self.refused
        if not later_refusals:
            return first
        names = ", ".join(name for name, _ in later_refusals)
        first.hint = f"{first.hint or ''} Others failed too: {names}.".strip()
        return first


def refused_by_machine(node_folder: Path) -> bool | None:
    """Return whether `up` last left the first choice for the machine's size; None if unknown.

    The machine may hold it again before anybody looks.
    """
    for event in reversed(events.read_events(node_folder)):
        if event.get("event") in ("first_choice", "stop"):
            return None
        if event.get("event") == "refused" and event.get("choice") == FIRST:
            return True if event.get("cause") in MACHINE_CHECKS else None
    return None


def _diagnose_refusal(error: LauncherError) -> str:
    """The cause that the end of the log shows, else the kind of error."""
    cause = diagnose(error.detail, None, ready=False).cause if error.detail else "unknown"
    return error.code if cause == "unknown" else cause


def curable(error: LauncherError) -> bool:
    """Return whether another choice may start where this one failed."""
    if isinstance(error, LateError):
        return False
    if isinstance(error, PreflightError):
        return error.check in MACHINE_CHECKS
    return isinstance(error, StartError)


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
        return freed(self.detect(), plan.needs)

    def misfit_now(
        self, plan: LaunchPlan, options: Sequence[Choice], *, stopped: bool = False
    ) -> str | None:
        """Say why the machine cannot hold what ran, after a death; None where it can.

        ``stopped``: nothing of it runs any more.
        """
        reason = None
        for attempt in range(2):
            if attempt:
                self.world.clock.sleep(_AGAIN_S)
            machine = self.detect() if stopped else self.as_if_stopped(plan)
            reason = _misfit(plan, options, machine)
            if reason is None:
                return None
        self.missing = reason
        return reason

    def look(
        self, plan: LaunchPlan, options: Sequence[Choice], *, always: bool
    ) -> list[tuple[str, str]]:
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
        machine, self._asked = freed(self._asked.result(), plan.needs), None
        self._next_at = now + self.every_s
        return [*self._of_running(plan, options, machine), *self._of_earlier(plan, machine, now)]

    def _of_running(
        self, plan: LaunchPlan, options: Sequence[Choice], machine: Machine
    ) -> list[tuple[str, str]]:
        before, self.missing = self.missing, _misfit(plan, options, machine)
        if self.missing and not before:
            return [("device_lost", self.missing)]
        if before and not self.missing:
            return [("device_found", f"the machine holds {plan.choice} again")]
        return []

    def _of_earlier(self, plan: LaunchPlan, machine: Machine, now: float) -> list[tuple[str, str]]:
        earlier = list(takewhile(lambda option: option.name != plan.choice, self.options))
        if self.strict or not earlier:
            return []
        candidates = [c for c in earlier if self.trains or c.kind == FIRST]
        fitting = [c for c in candidates if misfit(c, machine, running=self.trains) is None]
        if not self.told_why:
            self.told_why = True
            self.barred |= {choice.name for choice in fitting}
        choice = next((choice for choice in fitting if choice.name not in self.barred), None)
        if choice is None:
            self._fits_since = self.returning = None
            return []
        known, self._fits_since = self._fits_since is not None, self._fits_since or now
        if now - self._fits_since >= self.stable_s:
            self.returning = choice
        words = "the first choice" if choice.name == FIRST else choice.name
        return [] if known else [("device_found", f"the machine holds {words} again")]

    def left(self, name: str, *, for_misfit: bool) -> None:
        """A choice is left; for its devices, it is taken again when they are back."""
        self.told_why = True
        self._fits_since = self.returning = None
        self.barred = self.barred - {name} if for_misfit else self.barred | {name}


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
    """Return what the engine may hold of a memory: what it uses, or all that it has claimed."""
    claimed = needs.claim.of(total_bytes) if needs.claim else 0
    return max(needs.used_bytes or 0, claimed)
