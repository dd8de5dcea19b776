"""Runs the checks of a bundle: of its files, and where they are as built of all that it needs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from .checks import CHECKS, MACHINE_CHECKS, Check, Situation, check_files, run_checks
from .engine import locate_engine
from .machine import Machine, detect_machine
from .plan import LaunchPlan
from .portability import advise_variant


@dataclass(frozen=True, slots=True)
class Preflight:
    """All checks, and what they read (a measurement records it)."""

    checks: tuple[Check, ...]
    machine: Machine
    engine_version: str | None

    @property
    def ok(self) -> bool:
        return not any(check.failed for check in self.checks)

    def require(self, *, only: Collection[str] = (), but: Collection[str] = ()) -> None:
        """Raise for the first check that failed, of all or ``only`` of some, ``but`` of others.

        Raises:
            PreflightError: for that check.
        """
        for check in self.checks:
            if check.failed and (not only or check.name in only) and check.name not in but:
                raise check.error

    def to_json(self) -> dict[str, Any]:
        """The checks as ``--json`` prints them."""
        checks = [asdict(check) for check in self.checks]
        return {
            "ok": self.ok,
            "checks": checks,
            "machine": self.machine.to_json(),
            "engine_version": self.engine_version,
        }


def preflight(plan: LaunchPlan, *, own_ports: frozenset[int] = frozenset()) -> Preflight:
    """Run every check; ``own_ports`` are rightly busy with this bundle's servers."""

    def judge(machine: Machine) -> tuple[Iterable[Check], str | None]:
        installed = locate_engine(plan.engine)
        situation = Situation(plan, machine, installed, own_ports, bool(own_ports), holders=True)
        checks = (
            *run_checks(situation, MACHINE_CHECKS),
            *check_variants(plan, machine),
            *run_checks(situation, CHECKS.keys() - MACHINE_CHECKS),
        )
        return checks, installed.version if installed is not None else None

    return check_whole_bundle(plan, judge)


def check_whole_bundle(
    plan: LaunchPlan, judge: Callable[[Machine], tuple[Iterable[Check], str | None]]
) -> Preflight:
    """Check the files, then what ``judge`` checks, which also returns the engine's version.

    Of a bundle that was changed nothing else is checked: that would run what its files name.
    """
    machine, files = detect_machine(), check_files(plan.root)
    if files.failed:
        return Preflight((files,), machine, None)
    checks, engine_version = judge(machine)
    return Preflight((files, *checks), machine, engine_version)


def check_variants(plan: LaunchPlan, machine: Machine) -> Iterator[Check]:
    """The recipe's variants for this machine, where it is not the recipe's own."""
    needs = Situation(plan, machine).needs
    same_devices = all(needs.lists(device.name) for device in machine.devices)
    enough = needs.runtime == "cpu" or len(machine.devices) >= needs.count
    if machine.runtime == needs.runtime and same_devices and enough:
        return
    if texts := advise_variant(plan.variants, machine, plan.nodes, plan.root):
        yield Check("variant", "warn", *texts)
