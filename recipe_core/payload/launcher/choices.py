"""Choices of a bundle here: the recipe's first, then its fallbacks in their order.

A fallback was planned for the same objective, and rendered when the bundle was built. It is taken
where the machine is smaller than planned (fewer devices, other devices, less free memory) and where
the engine refuses to start, or runs out of memory while it does.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from . import events
from .checks import MACHINE_CHECKS, find_misfit
from .diagnosis import diagnose
from .errors import LateError, LauncherError, PreflightError, StartError
from .machine import Machine, detect_machine
from .plan import FIRST, LaunchPlan, load_plan

if TYPE_CHECKING:
    from .supervisor import Progress


@dataclass(frozen=True, slots=True)
class Choice:
    """One thing to start. ``kind`` is ``first`` or what a fallback changes."""

    name: str
    kind: str
    title: str
    plan: LaunchPlan

    @property
    def expected(self) -> Path:
        return self.plan.folder / "expected.json"


def list_launch_choices(plan: LaunchPlan) -> tuple[Choice, ...]:
    """The first choice, then the fallbacks, with the parameters of ``plan``.

    Nodes of one bundle cannot agree on a fallback by themselves: there the choice is ``plan``'s.

    Raises:
        InputError: for a fallback whose files cannot be read.
    """
    if plan.node is not None:
        return (Choice(plan.choice, plan.choice, plan.name, plan),)
    parameters = plan.parameters

    def of(name: str) -> LaunchPlan:
        return load_plan(
            plan.root,
            choice=name,
            model=parameters.model,
            host=parameters.host,
            port=parameters.port,
            data=parameters.data,
        )

    first = of(FIRST)
    fallbacks = (
        Choice(fallback.name, fallback.kind, fallback.title, of(fallback.name))
        for fallback in first.fallbacks
    )
    choices = (Choice(FIRST, FIRST, "the recipe's first choice", first), *fallbacks)
    # A fallback over several nodes needs launchers on each.
    return tuple(choice for choice in choices if choice.plan.nodes == 1)


def misfit(choice: Choice, machine: Machine, *, running: bool = False) -> str | None:
    """Say why a machine cannot hold a choice; None where it can.

    ``running``: whatever uses its memory now.
    """
    if (detail := find_misfit(choice.plan, machine, running=running)) is not None:
        return detail
    # Another device of the same vendor only warns at a start that a person asked for.
    needs = choice.plan.needs
    listed = all(needs.lists(device.name) for device in machine.devices)
    return f"it is for {needs.title}" if choice.kind == "other-device" and not listed else None


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
        choice_of_plan = Choice(self.plan.choice, self.plan.choice, self.plan.name, self.plan)
        yield choice_of_plan
        if self.strict:
            return
        candidates, tried = list_launch_choices(self.plan), {choice_of_plan.name}
        while choice := next_choice(candidates, detect_machine(), tried=tried):
            tried.add(choice.name)
            self.progress.say(f"taking the fallback {choice.name} ({choice.title})")
            refused_name, error = self.refused[-1]
            names = {"from": refused_name, "to": choice.name, "title": choice.title}
            events.append(self.plan.own, "fallback", **names, reason=error.message)
            yield choice

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
        first.hint = f"{first.hint or ''} Fallbacks failed too: {names}.".strip()
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
