"""What commands do around starts: what of a bundle runs, preflight before, stops after."""

from __future__ import annotations

from . import report, state, supervisor
from .errors import PreflightError
from .plan import LaunchPlan, Parameters, load_plan
from .preflight import Preflight, preflight
from .request import Request
from .sections import option_of
from .state import State
from .supervisor import Progress


def has_recorded_all(plan: LaunchPlan, current: State) -> bool:
    """True unless the launcher was killed before it had started and noted every process."""
    return {process.name for process in plan.processes} <= {s.name for s in current.servers}


def load_running_state(plan: LaunchPlan) -> State | None:
    """The state of a bundle all of whose processes run; else None."""
    current = state.load_state(plan.own)
    if current is None or not current.alive:
        return None
    return current if has_recorded_all(load_started_plan(plan, current), current) else None


def load_started_plan(plan: LaunchPlan, current: State) -> LaunchPlan:
    return load_plan(
        plan.root,
        choice=current.choice,
        model=current.model,
        host=current.host,
        port=current.port,
        node=plan.node,
        head=plan.parameters.head,
        data=plan.parameters.data,
    )


def not_applied(request: Request, parameters: Parameters, current: State) -> list[str]:
    """What a command line asks for that what runs already was not started with."""
    pairs = [
        ("--model", request.model, parameters.model, current.model),
        ("--host", request.host, parameters.host, current.host),
        ("--port", request.port, parameters.port, current.port),
        ("--choice", request.choice, request.choice, current.choice),
    ]
    differ = [
        f"{option} {parameter} (it runs with {running})"
        for option, request_value, parameter, running in pairs
        if request_value is not None and parameter != running
    ]
    limits = [option_of(name) for name, value in request.limits.items() if value is not None]
    started = [*limits, *(["--data"] if request.data else [])] if current.keeper else []
    differ += [f"{option} (it is set at a start)" for option in started]
    return [f"{words}; `down` first, then `up` with it" for words in differ]


def tell_copy(plan: LaunchPlan, progress: Progress) -> None:
    """Say so where the recorded state is another folder's: nothing of it is touched from here."""
    if (origin := state.find_copied_state(plan.own)) is not None:
        progress.say(f"this is a copy of {origin}: what runs there is left alone")


def stop_started(plan: LaunchPlan, progress: Progress) -> None:
    """Stop what this command started, however far it came."""
    current = state.load_state(plan.own)
    if current is not None:
        supervisor.stop(plan.own, current, progress=progress)


def passed_preflight(plan: LaunchPlan, progress: Progress) -> Preflight:
    """Preflight before a start, which is shown.

    Raises:
        PreflightError: for the first check that fails.
    """
    result = preflight(plan)
    progress.say(report.preflight_text(result))
    _require(result, [check.name for check in result.checks])
    return result


def require_files(result: Preflight) -> None:
    """Accept a bundle whose processes run already.

    Raises:
        PreflightError: when its files are not those that were built.
    """
    _require(result, ["bundle"])


def _require(result: Preflight, names: list[str]) -> None:
    for check in result.checks:
        if check.status == "FAIL" and check.name in names:
            raise PreflightError(check.name, check.detail, check.hint)
