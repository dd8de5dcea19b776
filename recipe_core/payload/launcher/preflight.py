"""Runs the checks of a bundle: of its files, and where they are as built of all that it needs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .checks import CHECKS, MACHINE_CHECKS, Check, Situation, check_files, find_unmet, run_checks
from .engine import locate_engine
from .machine import Machine, detect_machine
from .plan import VARIANT, LaunchPlan, Listed


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
        checks = list(run_checks(situation, MACHINE_CHECKS))
        if find_unmet(situation.needs, machine, running=True):
            checks += check_variants(plan.choices, machine, plan.nodes, plan.root)
        checks += run_checks(situation, CHECKS.keys() - MACHINE_CHECKS)
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


def check_variants(
    choices: Sequence[Listed], machine: Machine, nodes: int, bundle: Path
) -> Iterator[Check]:
    """The recipe's variants for a machine that is not its own; nothing where it has none."""
    variants = [choice for choice in choices if choice.kind == VARIANT]
    pairs = [(choice, needs) for choice in variants for needs in choice.needs]
    fitting = [pair for pair in pairs if find_unmet(pair[1], machine, running=True) is None]
    titles = ", ".join(dict.fromkeys(choice.title for choice, _ in fitting or pairs))
    if fitting:
        hardware = f"{fitting[0][1].device}:{max(len(machine.devices), 1) * nodes}"
        hint = f"Build its bundle: recipe resolve {bundle} --hardware {hardware} -o OTHER.zip"
        if started := next((choice.name for choice, _ in fitting if not choice.advised), None):
            hint = f"`up` takes it: --choice {started}"
        noun = "variant" if len(fitting) == 1 else "variants"
        yield Check("variant", "warn", f"for {hardware} the recipe has the {noun} {titles}", hint)
    elif titles:
        detail = f"none of the recipe's variants ({titles}) is for this machine"
        yield Check("variant", "warn", detail, "Plan again for it: `recipe plan`.")
