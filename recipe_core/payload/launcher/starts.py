"""Starts of a bundle: what of it runs, preflight before, stops after."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from . import events, keeper_process, report, run_record, state, supervisor
from .choices import Attempts
from .files import refuse_odd_run
from .limits import option_of
from .plan import LaunchPlan, Parameters, load_plan
from .preflight import Preflight, preflight
from .request import Request
from .state import State
from .supervisor import Progress
from .world import HERE, World


@dataclass
class Deployment:
    """A bundle as a command meets it: what is asked, the plan that it means, and who is told."""

    request: Request
    plan: LaunchPlan
    progress: Progress
    world: World = HERE

    shows_first = False
    """Whether what runs is shown before a keeper stays in the foreground."""

    @property
    def timeout_s(self) -> float:
        """Seconds that a start may take."""
        return self.request.timeout or self.plan.startup_timeout_s

    def adopts(self, _leftover: State) -> bool:
        """Return whether what a dead keeper left is kept, not started again."""
        return False

    def wait_ready(self, _current: State) -> None:
        """Wait until what a killed launcher waited for answers; a run is ready at once."""

    def find_shown_step(self, *, already: bool) -> int | None:  # noqa: ARG002 - see `runs`
        """The step of a run after which a keeper in the foreground tells of steps."""
        return None

    def end(self, _current: State) -> dict[str, Any]:
        """Let what runs prepare its end; what the event of the stop says beside."""
        return {}

    def _with_keeper(
        self, answer: dict[str, Any], current: State | None, survivors: list[int]
    ) -> dict[str, Any]:
        """An answer of `status` with who keeps the bundle, and what outlives its processes."""
        kept = keeper_process.described(self.plan, current, world=self.world)
        return {**answer, **kept, **keeper_process.remains(survivors)}


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
    result.require()
    return result


def start_bundle(bundle: Deployment) -> tuple[State, Preflight]:
    """Preflight, then start; a half-dead deployment is stopped first.

    Where the machine holds less than planned, or a start fails for want of it, the next fallback
    is taken, which is the bundle's plan then, unless the request is strict or names its choice.
    """
    request, plan, progress, world = bundle.request, bundle.plan, bundle.progress, bundle.world
    leftover = state.load_state(plan.own)
    if leftover is not None:
        supervisor.stop(plan.own, leftover, progress=progress, world=world)
    supervisor.stop_strays(plan, progress, world=world)
    fixed, trains = request.strict or request.choice is not None, plan.kind == "training"
    attempts, began = Attempts(plan, progress, strict=fixed), world.clock.monotonic()
    for choice in attempts:
        bundle.plan = choice.plan
        about = {"world_size": run_record.world_size(choice.plan)} if trains else {}
        events.append(plan.own, "start", choice=choice.name, **about)
        with attempts.trying(choice):
            result = passed_preflight(choice.plan, progress)
            if trains:
                run_record.note_start(choice.plan)
            current = supervisor.start_processes(
                choice.plan, timeout_s=bundle.timeout_s, progress=progress, world=world
            )
            if not trains:  # a run is ready with its first step
                spent = world.clock.monotonic() - began
                events.append(plan.own, "ready", choice=choice.name, after_s=round(spent, 3))
                progress.say(f"ready after {spent:.1f} s")
            return current, result
    raise attempts.failure


@contextmanager
def running_bundle(
    bundle: Deployment, stop: Callable[[], object], *, needed: bool = True
) -> Iterator[tuple[State | None, Preflight]]:
    """Yield what runs of a bundle, else what is started where ``needed``, and ended by ``stop``."""
    own = bundle.plan.own
    with ExitStack() as stack:
        stack.enter_context(state.exclusive(own))
        current = load_running_state(bundle.plan)
        if current is None and needed:
            refuse_odd_run(bundle.plan.run)
            stack.callback(stop)
            bundle.plan = bundle.request.plan(starts=True)
            yield start_bundle(bundle)
            return
        stack.close()  # others may stop what they started
        if current is not None:
            bundle.plan = load_started_plan(bundle.plan, current)
        checked = preflight(bundle.plan, own_ports=current.ports if current else frozenset())
        checked.require(only=["bundle"])  # its processes run already
        yield current, checked
