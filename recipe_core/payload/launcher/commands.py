"""The five commands, each from a request to an exit code; module `runs` has training's part."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any

from . import (
    compress,
    events,
    keeper_process,
    report,
    runs,
    state,
    supervision,
    supervisor,
)
from .bench import Options, measure_serving
from .errors import InputError, LauncherError
from .files import refuse_odd_run
from .keeper import Log
from .metrics import metrics_file
from .plan import LaunchPlan
from .preflight import preflight
from .report import print_json
from .request import Request
from .run_record import last_step, newest_checkpoint
from .starts import (
    has_recorded_all,
    load_running_state,
    load_started_plan,
    not_applied,
    running_bundle,
    start_bundle,
    stop_started,
    tell_copy,
)
from .state import State
from .supervisor import Progress
from .world import HERE


def run_preflight(request: Request) -> int:
    """Check everything, start nothing."""
    plan = request.plan(starts=True)
    result = preflight(plan, own_ports=_own_ports(plan))
    request.show(result.to_json(), lambda: report.preflight_text(result))
    return 0 if result.ok else 1


def run_up(request: Request) -> int:
    """Start the servers and wait until they answer; already up is fine."""
    plan = request.plan(starts=True)
    if plan.kind == "training":
        return runs.up(request, plan)
    if request.compress and plan.making is not None and not plan.making.finished:
        with state.exclusive(plan.making.output.parent):
            compress.make(request, plan, plan.making, Progress())
    progress, before, parameters = Progress(), state.load_state(plan.own), plan.parameters
    tell_copy(plan, progress)
    refuse_odd_run(plan.run)
    try:
        plan, current, already = _ensure_up(request, plan, progress)
        left_out = not_applied(request, parameters, current) if already else []
        if not request.foreground:
            if not (request.no_keep or keeper_process.is_kept(plan.own, current)):
                current = _keep_in_background(request, plan, progress)
                plan = load_started_plan(plan, current)
            _show_up(request, plan, current, already, left_out)
            return 0
        keeper_process.dismiss(current.keeper)
        with suppress(OSError):  # nobody reads it any more; the servers stay all the same
            _show_up(request, plan, current, already, left_out)
        return supervision.stay(request, plan, current, progress)
    except KeyboardInterrupt:
        started = state.load_state(plan.own)
        if started is None:
            raise
        of_others = before is not None and before.mark == started.mark
        if request.foreground or not of_others:
            supervisor.stop(plan.own, started, progress=progress)
        if not request.foreground:
            raise
        return 0


def _ensure_up(
    request: Request, plan: LaunchPlan, progress: Progress
) -> tuple[LaunchPlan, State, bool]:
    supervision.dismiss_silent(plan.own, progress)
    current = state.load_state(plan.own)
    if keeper_process.is_kept(plan.own, current):
        supervision.revive(plan, current)
        timeout_s = request.timeout or plan.startup_timeout_s
        current = supervision.wait_kept(plan, timeout_s=timeout_s, progress=progress)
        return load_started_plan(plan, current), current, True
    with state.exclusive(plan.own):
        current = load_running_state(plan)
        if current is None:
            orphaned = state.load_state(plan.own)
            if orphaned is not None and supervision.left_alone(orphaned) and not request.no_keep:
                return load_started_plan(plan, orphaned), orphaned, True
            plan, current, _ = start_bundle(request, plan, progress, HERE)
            return plan, current, False
        plan = load_started_plan(plan, current)
        if not current.ready:  # its launcher was killed while it waited
            supervisor.wait_healthy(
                plan,
                current,
                timeout_s=request.timeout or plan.startup_timeout_s,
                progress=progress,
            )
            current = replace(current, ready=True)
            state.save_state(plan.own, current)
        return plan, current, True


def _keep_in_background(request: Request, plan: LaunchPlan, progress: Progress) -> State:
    """Leave a keeper, which first brings back what of the servers is missing."""
    supervision.leave_keeper(request, plan)
    timeout_s = request.timeout or plan.startup_timeout_s
    return supervision.wait_kept(plan, timeout_s=timeout_s, progress=progress)


def _show_up(
    request: Request, plan: LaunchPlan, current: State, already: bool, left_out: list[str]
) -> None:
    answering = {process.name for process in plan.answering}
    servers = [
        {
            "name": s.name,
            "pid": s.pid,
            "port": s.port,
            "address": plan.address(s.port) if s.name in answering else None,
            "log": s.log,
        }
        for s in current.servers
    ]
    data = {
        "state": "up",
        "already": already,
        "choice": plan.choice,
        "api": f"{plan.address(plan.entrances[0].port)}{plan.api.path}" if plan.entrances else None,
        "model": plan.api.model,
        "servers": servers,
    } | ({"not_applied": left_out} if left_out else {})
    words = ["already up", *(f"not applied: {option}" for option in left_out)] if already else []
    request.show(data, lambda: "\n".join([*words, report.up_text(plan, current)]))


def run_keep_command(request: Request) -> int:
    """Be the keeper in the background of what `up` started; people do not call it."""
    plan = request.plan()
    current = state.load_state(plan.own)
    if current is None:
        raise LauncherError("nothing runs that could be kept.", hint="Start it with `up`.")
    return supervision.stay(request, load_started_plan(plan, current), current, Log())


def run_bench(request: Request) -> int:
    """On the running servers, or on ones that are started for it and stopped afterwards."""
    plan = request.plan()
    if plan.kind == "training":
        return runs.bench(request, plan)
    if not plan.entrances:
        raise InputError(
            f"no server answers on node {plan.node}.",
            field="--node",
            hint="Measure on the node of the servers: --node 0.",
        )
    progress = Progress()
    options = Options(request.requests, request.concurrency, request.duration_limit)
    supervision.dismiss_silent(plan.own, progress)
    if keeper_process.is_kept(plan.own, state.load_state(plan.own)):
        # What fails just now is the keeper's to restart.
        supervision.wait_kept(plan, timeout_s=plan.startup_timeout_s, progress=progress)
    with running_bundle(request, plan, progress, stop=stop_started) as (plan, _, checked):
        measurement = measure_serving(plan, checked, options, progress)
    return request.show_measurement(plan, measurement, report.bench_text)


def run_status(request: Request) -> int:
    """Print JSON; 0 only when every server runs and answers."""
    plan = request.plan()
    if plan.kind == "training":
        return runs.print_run_status(plan)
    current = state.load_state(plan.own)
    if current is None:
        strays = [pid for pid, _ in sorted(supervisor.strays(plan))]
        nothing: dict[str, Any] = {"state": "degraded" if strays else "down", "servers": []}
        if (origin := state.find_copied_state(plan.own)) is not None:
            nothing["copy_of"] = origin
        print_json(nothing | keeper_process.described(plan, None) | keeper_process.remains(strays))
        return 1
    plan = load_started_plan(plan, current)
    answering = {process.name for process in plan.answering}
    servers = [
        {
            "name": server.name,
            "pid": server.pid,
            "port": server.port,
            "address": plan.address(server.port),
            "alive": (alive := current.here and server.alive),
            "healthy": alive
            and (server.name not in answering or supervisor.healthy(plan, server.port)),
            "log": server.log,
        }
        for server in current.servers
    ]
    complete = has_recorded_all(plan, current)
    healthy = complete and all(server["healthy"] for server in servers)
    unrecorded = [] if complete else current.unrecorded()
    survivors = sorted({*current.left_behind(), *unrecorded})
    word = "degraded" if survivors or any(server["alive"] for server in servers) else "down"
    if healthy:
        word = "up"
    answer = {
        "state": word,
        "model": current.model,
        "choice": current.choice,
        "servers": servers,
        **keeper_process.described(plan, current),
    }
    print_json(
        answer
        | ({"unrecorded": unrecorded} if unrecorded else {})
        | keeper_process.remains(survivors)
    )
    return 0 if healthy else 1


def run_down(request: Request) -> int:
    """Stop what was started; it is fine if nothing runs."""
    progress, stopped = Progress(request.as_json), list[str]()
    try:
        plan = request.plan()
    except InputError as error:
        return _down_by_state(request, error, progress)
    tell_copy(plan, progress)
    current, trains = state.load_state(plan.own), plan.kind == "training"
    if trains and current is not None and request.checkpoint and metrics_file(plan) is None:
        raise LauncherError(
            f"{plan.engine.name} cannot save a checkpoint on request.",
            hint="Leave --checkpoint out; its last checkpoint remains.",
        )
    if current is not None and current.here:
        if request.drain is not None and not trains:
            stopped = supervision.drain(request, plan, current, progress)
        # It may hold the lock while it restarts something.
        keeper_process.dismiss(current.keeper)
    with state.exclusive(plan.own):
        current = state.load_state(plan.own)
        if current:
            if trains and request.checkpoint:
                runs.end_with_checkpoint(plan, current, progress)
            events.append(plan.own, "stop", **({"step": last_step(plan)} if trains else {}))
            stopped += supervisor.stop(plan.own, current, progress=progress)
        stopped += supervisor.stop_strays(plan, progress)
    return (
        _show_ended_run(request, plan, current, stopped) if trains else _show_down(request, stopped)
    )


def _show_ended_run(
    request: Request, plan: LaunchPlan, current: State | None, stopped: list[str]
) -> int:
    checkpoint = newest_checkpoint(plan)
    data = {
        "state": "down",
        "stopped": [server.name for server in current.servers] if current else [],
        "checkpoint": str(checkpoint[1]) if checkpoint else None,
    }
    ended = bool(stopped) or current is not None
    text = f"stopped; newest checkpoint: {data['checkpoint']}" if ended else "nothing was running"
    request.show(data, lambda: text)
    return 0


def _show_down(request: Request, stopped: list[str]) -> int:
    request.show(
        {"state": "down", "stopped": stopped},
        lambda: f"stopped {', '.join(stopped)}" if stopped else "nothing was running",
    )
    return 0


def _down_by_state(request: Request, error: InputError, progress: Progress) -> int:
    """Stop what is recorded, though the bundle cannot be read.

    Raises:
        InputError: where nothing is recorded, or the command line is what is wrong.
    """
    run = request.root / "run"
    wrong = (error.field or "").startswith("--") or request.drain is not None or request.checkpoint
    if wrong or not state.folders(run):
        raise error
    progress.say(f"launch: {error}")
    progress.say("stopping by what run/ records")
    return _show_down(request, supervisor.stop_all_recorded(run, progress))


def _own_ports(plan: LaunchPlan) -> frozenset[int]:
    current = load_running_state(plan)
    return current.ports if current else frozenset()
