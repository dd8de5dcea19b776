"""The start that a state records: its plan, what of it runs, and the checks before another."""

from __future__ import annotations

from . import report, state
from .limits import option_of
from .plan import LaunchPlan, Parameters, load_plan
from .preflight import Preflight, preflight
from .request import Request
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
    """Say what a command line asks for that what runs already was not started with."""
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


def passed_preflight(plan: LaunchPlan, progress: Progress) -> Preflight:
    """Preflight before a start, which is shown.

    Raises:
        PreflightError: for the first check that fails.
    """
    result = preflight(plan)
    progress.say(report.preflight_text(result))
    result.require()
    return result
