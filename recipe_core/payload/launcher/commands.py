"""The commands, each from a request to an exit code; what differs is asked of what is deployed."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from . import compress, events, keeper_process, report, state, supervisor
from .errors import InputError, LauncherError
from .files import refuse_odd_run
from .keeper import Log
from .preflight import preflight
from .report import print_json
from .request import Request
from .runs import Run
from .servers import Servers, describe_stopped
from .starts import load_running_state, load_started_plan, not_applied
from .state import State
from .supervisor import Progress
from .world import HERE, World


def meet_bundle(request: Request, *, starts: bool = False, world: World = HERE) -> Servers | Run:
    """The servers or the training run that a command line means."""
    plan = request.plan(starts=starts)
    kind = Run if plan.kind == "training" else Servers
    return kind(request, plan, Progress(), world)


def run_preflight(request: Request) -> int:
    """Check everything, start nothing."""
    plan = request.plan(starts=True)
    current = load_running_state(plan)
    result = preflight(plan, own_ports=current.ports if current else frozenset())
    request.show(result.to_json(), lambda: report.preflight_text(result))
    return 0 if result.ok else 1


def run_up(request: Request, *, world: World = HERE) -> int:
    """Start what a bundle has and wait until it answers or trains; already up is fine.

    With ``--foreground`` this keeps it until it is stopped, or done.
    """
    bundle = meet_bundle(request, starts=True, world=world)
    plan, progress = bundle.plan, bundle.progress
    if request.compress and plan.making is not None and not plan.making.finished:
        with state.exclusive(plan.making.output.parent):
            compress.make_checkpoint(request, plan, plan.making, Progress())
    before, parameters = state.load_state(plan.own), plan.parameters
    bundle.tell_copy()
    refuse_odd_run(plan.run)
    try:
        current, already = _take_up(bundle)
        left_out = not_applied(request, parameters, current) if already else []
        if request.foreground:
            keeper_process.dismiss(current.keeper, world=world)
            if bundle.shows_first:
                with suppress(OSError):  # nobody reads it any more; the servers stay all the same
                    _show_up(bundle, current, already, left_out)
            return bundle.build_keeper(current, bundle.find_shown_step(already=already)).run()
        _show_up(bundle, bundle.settle(current, already=already), already, left_out)
    except KeyboardInterrupt:
        started = state.load_state(plan.own)
        if started is None:
            raise
        of_others = before is not None and before.mark == started.mark
        if request.foreground or not of_others:
            supervisor.stop(plan.own, started, progress=progress, world=world)
        if not request.foreground:
            raise
    return 0


def _take_up(bundle: Servers | Run) -> tuple[State, bool]:
    """Return what runs of a bundle, and whether it ran already; else start it."""
    plan = bundle.plan
    bundle.dismiss_silent()
    recorded = state.load_state(plan.own)
    if recorded is not None and bundle.is_kept(recorded):
        current = bundle.take_kept(recorded)
        if current is not None:
            bundle.plan = load_started_plan(plan, current)
            return current, True
    with state.exclusive(plan.own):
        current = load_running_state(plan)
        if current is None:
            leftover = state.load_state(plan.own)
            if leftover is None or not bundle.adopts(leftover):
                current, _ = bundle.start()
                return current, False
            bundle.plan = load_started_plan(plan, leftover)
            return leftover, True
        bundle.plan = load_started_plan(plan, current)
        if not current.ready:  # its launcher was killed while it waited
            bundle.wait_ready(current)
            current = replace(current, ready=True)
            state.save_state(plan.own, current)
        return current, True


def _show_up(
    bundle: Servers | Run, current: State | None, already: bool, left_out: list[str]
) -> None:
    data, text = bundle.describe(current)
    data |= {"already": already} | ({"not_applied": left_out} if left_out else {})
    words = [bundle.words, *(f"not applied: {option}" for option in left_out)] if already else []
    bundle.request.show(data, lambda: "\n".join([*words, text]))


def run_keep_command(request: Request) -> int:
    """Be the keeper in the background of what `up` started; people do not call it."""
    bundle = replace(meet_bundle(request), progress=Log())
    current = state.load_state(bundle.plan.own)
    if current is None:
        raise LauncherError("nothing runs that could be kept.", hint="Start it with `up`.")
    bundle.plan = load_started_plan(bundle.plan, current)
    return bundle.build_keeper(current).run()


def run_bench(request: Request, *, world: World = HERE) -> int:
    """On what runs, or on what is started for it and stopped afterwards."""
    bundle = meet_bundle(request, world=world)
    needed = bundle.prepare_bench()
    with bundle.running(bundle.end_bench, needed=needed) as (current, checked):
        measurement = bundle.measure(current, checked)
    return request.show_measurement(bundle.plan, measurement, report.measurement_text)


def run_restart(request: Request, *, world: World = HERE) -> int:
    """Restart one group of servers after the other, or those of named servers."""
    bundle = replace(meet_bundle(request, world=world), progress=Progress(request.as_json))
    if isinstance(bundle, Run):
        raise InputError(
            "a training run is not restarted in turns.",
            field="restart",
            hint="Stop it with `down --checkpoint`, then start it with `up`.",
        )
    current = state.load_state(bundle.plan.own)
    if current is None or not current.here:
        raise LauncherError("nothing is running.", hint="Start it: python launch.py up")
    names = bundle.restart(current)
    request.show({"state": "up", "restarted": names}, lambda: f"restarted {', '.join(names)}")
    return 0


def run_status(request: Request) -> int:
    """Print JSON; 0 only when every server runs and answers, or a run goes on or is done."""
    bundle = meet_bundle(request)
    data, well = bundle.show_status(state.load_state(bundle.plan.own))
    print_json(data)
    return 0 if well else 1


def run_down(request: Request) -> int:
    """Stop what was started; it is fine if nothing runs."""
    progress, stopped = Progress(request.as_json), list[str]()
    try:
        bundle = replace(meet_bundle(request), progress=progress)
    except InputError as error:
        return _down_by_state(request, error, progress)
    plan = bundle.plan
    bundle.tell_copy()
    current = state.load_state(plan.own)
    if current is not None:
        stopped = bundle.prepare_end(current)
        # It may hold the lock while it restarts something.
        keeper_process.dismiss(current.keeper if current.here else None)
    with state.exclusive(plan.own):
        current = state.load_state(plan.own)
        if current:
            events.append(plan.own, "stop", **bundle.end(current))
            stopped += supervisor.stop(plan.own, current, progress=progress)
        stopped += supervisor.stop_strays(plan, progress)
    data, text = bundle.describe_end(current, stopped)
    request.show(data, lambda: text)
    return 0


def _down_by_state(request: Request, error: InputError, progress: Progress) -> int:
    """Stop what is recorded, though the bundle cannot be read.

    Raises:
        InputError: where nothing is recorded, or the command line is what is wrong.
    """
    run = request.root / "run"
    wrong = (error.field or "").startswith("--") or request.drain is not None or request.checkpoint
    if wrong or not state.list_state_folders(run):
        raise error
    progress.say(f"launch: {error}")
    progress.say("stopping by what run/ records")
    data, text = describe_stopped(supervisor.stop_all_recorded(run, progress))
    request.show(data, lambda: text)
    return 0
