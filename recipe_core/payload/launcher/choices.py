"""Choices of a bundle here, in the order of its ``launch.json``: each a condition and a launch.

Variants are for just their devices, so they go before the recipe's first choice; fallbacks, which
were planned for the same objective, come after it. Another choice is taken where the machine is
smaller than planned (fewer devices, other devices, less free memory) and where the engine refuses
to start, or runs out of memory while it does.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING

from . import events
from .checks import MACHINE_CHECKS, Situation, find_unmet
from .diagnosis import diagnose
from .errors import LateError, LauncherError, PreflightError, StartError
from .machine import Machine, detect_machine
from .plan import FIRST, VARIANT, LaunchPlan, load_plan

if TYPE_CHECKING:
    from .supervisor import Progress


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
    needs, exact = Situation(choice.plan, machine).needs, choice.kind in _OF_DEVICE
    return find_unmet(needs, machine, exact=exact, running=running)


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
