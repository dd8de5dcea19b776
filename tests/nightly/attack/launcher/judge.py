"""One fault, done and judged: what became of it, and everything that is wrong afterwards."""

from __future__ import annotations

import time
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.nightly.attack.harness import Result
from tests.nightly.attack.launcher.deployments import LIMITS
from tests.nightly.attack.launcher.faults import DEATHS, REFUSED, SLOW, Fault
from tests.nightly.attack.launcher.trial import LateError, Trial


def play(trial: Trial, fault: Fault) -> Result:
    """One fault, to a deployment that serves; afterwards it serves again, undisturbed."""
    result = Result(fault.name, trial.deployment.kind)
    trial.found.clear()
    trial.others.renew()
    before, began = len(trial.events()), time.monotonic()
    harm = fault.harm(trial)
    try:
        if fault.down:
            trial.require("down")
        next(harm)
        if fault.heals_itself:
            next(harm, None)
        result.outcome = _outcome(trial, fault, before, result)
        if result.outcome in ("recovered", "fell back"):
            result.seconds = round(time.monotonic() - began, 3)
        if result.outcome != "refused":  # what it was refused for may be the state
            result.findings += trial.lies()
        next(harm, None)
        _again(trial, fault, result)
    except LateError as error:
        result.outcome = "late"
        result.findings.append(str(error))
    finally:
        with suppress(Exception):
            next(harm, None)
    result.findings += trial.found + trial.others.ended()
    happened = trial.events(before)
    result.events = [str(event["event"]) for event in happened]
    result.cause = result.cause or _cause(happened)
    result.findings += _unexplained(fault, result, budget_spent=_spent(trial))
    return result


def _outcome(trial: Trial, fault: Fault, before: int, result: Result) -> str:
    """Wait for an end: serving, stopped, or refused."""
    if fault.ends >= REFUSED:
        full = 0 if fault.name == "up on a full disk" else None
        # A terminal that others write to is where this command writes, too.
        code, text = trial.run("up", file_bytes=full, stdout=trial.others.slave)
        lines = [line for line in text.splitlines() if line.startswith("launch: ")]
        result.cause = lines[-1] if lines else ""
        if code or fault.ends == REFUSED:
            return "refused" if code == 1 and lines else f"up gave {code}"
    if fault.shows:
        # An event may be lost on a full disk: that all serve again is enough there.
        trial.wait(f"one of {sorted(fault.shows)}", lambda: fault.shows & set(trial.kinds(before)))
    if fault.up:
        trial.require("up")
    trial.wait("an end", lambda: _ended(trial, before))
    current = trial.state()
    if current is None or current.parked:
        return "degraded" if current else "stopped"
    return "recovered" if current.choice == "first" else "fell back"


def _ended(trial: Trial, before: int) -> bool:
    """Whether it serves again, after what happened was noticed, or was given up."""
    kinds = trial.kinds(before)
    if "gave_up" in kinds:
        current = trial.state()
        if current is None or current.parked:  # everything is stopped, or one of several replicas
            return current is not None or trial.keeper() is None
    if not trial.serves():
        return False
    # A device that is lost is noted; what still serves is not stopped for it.
    troubles = [n for n, kind in enumerate(kinds) if kind in (DEATHS | SLOW) - {"device_lost"}]
    well = ("ready", "keeper_start", "device_found", *(["restart"] if trial.trains else []))
    calm = [n for n, kind in enumerate(kinds) if kind in well]
    return not troubles or bool(calm and calm[-1] > troubles[0])


def _again(trial: Trial, fault: Fault, result: Result) -> None:
    """With the fault undone `up` works, and brings the first choice."""
    trial.require("up")
    trial.wait("it serves again", trial.serves)
    if not _first(trial):
        # The keeper returns by itself once the device has been there for a while; not where the
        # choice was left for another reason.
        if "devices" in trial.deployment.features and "device" in fault.name:
            trial.wait("the first choice again", lambda: _first(trial) and trial.serves())
        else:
            trial.require("down")
            trial.require("up")
    if trial.keeper() is None:
        result.findings.append("nobody supervises after up")
    result.findings += trial.lies()


def _first(trial: Trial) -> bool:
    current = trial.state()
    return current is not None and current.choice == "first"


def _cause(happened: list[dict[str, Any]]) -> str:
    """The last cause that events name."""
    kinds = DEATHS | SLOW | {"gave_up", "fallback"}
    named = [event for event in reversed(happened) if event["event"] in kinds]
    causes = (event.get("cause") or event.get("reason") for event in named)
    return next((str(cause) for cause in causes if cause), "")


def _spent(trial: Trial) -> bool:
    """Whether faults before this one, too, have used up the budget of crashes."""
    newest = datetime.now(UTC) - timedelta(seconds=LIMITS["window_s"] + trial.patience_s)
    failures = [event["time"] for event in trial.events() if event["event"] in DEATHS | SLOW]
    late = [time for time in failures if datetime.fromisoformat(time) > newest]
    return len(late) > LIMITS["crash_budget"]


def _unexplained(fault: Fault, result: Result, *, budget_spent: bool) -> list[str]:
    """What neither events nor the command's own words explain."""
    found = []
    ends = fault.ends | ({"stopped", "degraded", "fell back"} if budget_spent else set())
    if result.outcome not in ends and result.outcome != "late":
        found.append(f"unexpected outcome: {result.outcome}")
    if fault.shows and not fault.shows & set(result.events):
        found.append("unexplained: no event shows it")
    if result.outcome not in ("recovered", "late") and result.cause in ("unknown", ""):
        found.append(f"unexplained: {result.outcome} without a cause")
    return found
