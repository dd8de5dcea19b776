"""Starts of a bundle: what of it runs, preflight before, stops after."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from . import events, report, run_record, state, supervisor
from .choices import Attempts
from .errors import PreflightError
from .files import refuse_odd_run
from .plan import LaunchPlan, Parameters, load_plan
from .preflight import Preflight, preflight
from .request import Request
from .sections import option_of
from .state import State
from .supervisor import Progress
from .world import HERE, World


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


def _require(result: Preflight, names: list[str]) -> None:
    for check in result.checks:
        if check.status == "FAIL" and check.name in names:
            raise PreflightError(check.name, check.detail, check.hint)


def start_bundle(
    request: Request, plan: LaunchPlan, progress: Progress, world: World
) -> tuple[LaunchPlan, State, Preflight]:
    """Preflight, then start; a half-dead deployment is stopped first.

    Where the machine holds less than planned, or a start fails for want of it, the next fallback
    is taken, unless the request is strict or names its choice.
    """
    leftover = state.load_state(plan.own)
    if leftover is not None:
        supervisor.stop(plan.own, leftover, progress=progress, world=world)
    supervisor.stop_strays(plan, progress, world=world)
    fixed, trains = request.strict or request.choice is not None, plan.kind == "training"
    attempts, began = Attempts(plan, progress, strict=fixed), world.clock.monotonic()
    for choice in attempts:
        about = {"world_size": run_record.world_size(choice.plan)} if trains else {}
        events.append(plan.own, "start", choice=choice.name, **about)
        with attempts.trying(choice):
            result = passed_preflight(choice.plan, progress)
            if trains:
                run_record.note_start(choice.plan)
            timeout_s = request.timeout or choice.plan.startup_timeout_s
            current = supervisor.start_processes(
                choice.plan, timeout_s=timeout_s, progress=progress, world=world
            )
            if not trains:  # a run is ready with its first step
                spent = world.clock.monotonic() - began
                events.append(plan.own, "ready", choice=choice.name, after_s=round(spent, 3))
                progress.say(f"ready after {spent:.1f} s")
            return choice.plan, current, result
    raise attempts.failure


@contextmanager
def running_bundle(
    request: Request,
    plan: LaunchPlan,
    progress: Progress,
    *,
    stop: Callable[[LaunchPlan, Progress], object],
    needed: bool = True,
    world: World = HERE,
) -> Iterator[tuple[LaunchPlan, State | None, Preflight]]:
    """Yield what runs of a bundle, else what is started where ``needed``, and ended by ``stop``."""
    with ExitStack() as stack:
        stack.enter_context(state.exclusive(plan.own))
        current = load_running_state(plan)
        if current is None and needed:
            refuse_odd_run(plan.run)
            stack.callback(stop, plan, progress)
            yield start_bundle(request, request.plan(starts=True), progress, world)
            return
        stack.close()  # others may stop what they started
        plan = load_started_plan(plan, current) if current is not None else plan
        checked = preflight(plan, own_ports=current.ports if current else frozenset())
        _require(checked, ["bundle"])  # its processes run already
        yield plan, current, checked
