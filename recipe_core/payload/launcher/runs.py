"""The commands on a training run: start and follow it, report, measure, end it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from . import events, keeper_process, report, state, supervision, supervisor
from .errors import LateError, LauncherError, StartError, file_error
from .files import refuse_odd_run, tail
from .metrics import (
    WARM_UP,
    Step,
    comparison,
    metrics_file,
    planned_steps,
    read_steps,
)
from .plan import LaunchPlan
from .preflight import measurement_head
from .report import print_json
from .request import Request
from .run_probe import END_S, log_of
from .run_record import (
    STOP,
    checkpoint_step,
    finished,
    last_step,
    newest_checkpoint,
    read_rollbacks,
    start_step,
    step_of_start,
    world_size,
)
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
from .world import HERE, World

_MEASURED = 20  # steps by default
_LOOK_S = 0.2
_LIVES_S = 5.0  # a run without a record that lives this long counts as started
_ADOPTED_S = 5.0  # a keeper that has just ended may not have told the last of it


def up(request: Request, plan: LaunchPlan, *, world: World = HERE) -> int:
    """Start, and wait for the first step; with --foreground keep the run to its end."""
    progress, already, parameters = Progress(), False, plan.parameters
    try:
        tell_copy(plan, progress)
        refuse_odd_run(plan.run)
        supervision.dismiss_silent(plan.own, progress, world=world)
        recorded = state.load_state(plan.own)
        is_supervised = keeper_process.is_kept(plan.own, recorded, world=world)
        already = is_supervised or load_running_state(plan) is not None
        if is_supervised and request.foreground and recorded is not None:
            keeper_process.dismiss(recorded.keeper, world=world)
        if not keeper_process.is_kept(plan.own, state.load_state(plan.own), world=world):
            with state.exclusive(plan.own):
                current = load_running_state(plan)
                already = current is not None
                shown = last_step(plan) if already else checkpoint_step(plan)
                if current is None:
                    plan, current, _ = start_bundle(request, plan, progress, world)
                elif not current.ready:  # its launcher was killed before it had written that
                    current = replace(current, ready=True)
                    state.save_state(plan.own, current)
            plan = load_started_plan(plan, current)
            if request.foreground:
                return supervision.stay(request, plan, current, progress, shown=shown, world=world)
            if not request.no_keep:
                _leave_keeper(request, plan)
            if not already:
                wait_first_step(request, plan, current, progress, world=world)
    except KeyboardInterrupt:
        if already and not request.foreground:
            raise
        stop_started(plan, progress)
        if not request.foreground:
            raise
        return 0
    current = state.load_state(plan.own)
    data = {**status_data(plan, current, world=world), "already": already}
    left_out = not_applied(request, parameters, current) if already and current is not None else []
    if left_out:
        data["not_applied"] = left_out
    words = (
        ["already running", *(f"not applied: {option}" for option in left_out)] if already else []
    )
    request.show(data, lambda: "\n".join([*words, report.run_text(plan, data)]))
    return 0


def _leave_keeper(request: Request, plan: LaunchPlan) -> None:
    """Leave a keeper; a short run may be over before it says that it is there."""
    try:
        supervision.leave_keeper(request, plan)
    except StartError:
        if state.load_state(plan.own) is not None:
            raise


def wait_first_step(
    request: Request,
    plan: LaunchPlan,
    current: State,
    progress: Progress,
    *,
    world: World = HERE,
) -> None:
    """Wait for the first step of this start, the end of the run, or the time limit.

    A framework without a record only has to stay alive. With a keeper the start may be another one
    by then.

    Raises:
        StartError: when the run ended before its first step, and nobody will start it again.
        LateError: when somebody stopped it before.
    """
    clock = world.clock
    limit_s = request.timeout or plan.startup_timeout_s
    path, began = metrics_file(plan), clock.monotonic()
    reported_at = began
    while True:
        now = current if request.no_keep else state.load_state(plan.own)
        if now is None:
            break
        passed = clock.monotonic() - began
        stepped = step_of_start(plan) > start_step(plan)
        if stepped or passed > (limit_s if path else _LIVES_S):
            return
        lives = supervisor.lives(now, world=world)
        if not lives and not keeper_process.is_kept(plan.own, now, world=world):
            break
        if clock.monotonic() - reported_at >= supervisor.PROGRESS_S:
            reported_at = clock.monotonic()
            line = tail(log_of(plan, now), 1)[:100]
            progress.say(f"waiting for the first step: {passed:.0f} s; {line}")
        clock.sleep(_LOOK_S)
    if finished(plan):
        return
    if request.no_keep:
        raise _run_died_error(plan, current, world)
    raise _given_up(plan, current, world)


def _given_up(plan: LaunchPlan, current: State, world: World) -> LauncherError:
    """Return what the keeper said before it ended."""
    deadline = world.clock.monotonic() + _ADOPTED_S
    while world.clock.monotonic() < deadline:
        for event in reversed(events.read_events(plan.own)):
            if event["event"] == "gave_up":
                reason, fix = str(event.get("reason")), str(event.get("fix") or "")
                log = log_of(plan, current)
                message = f"{plan.processes[0].name} ended before its first step: {reason}"
                hint = None if fix == reason else f"{fix} The end of {log} follows."
                return StartError(message, hint=hint, detail=tail(log))
            if event["event"] in ("start", "finished", "stopped"):
                break
        world.clock.sleep(_LOOK_S)
    log = plan.own / keeper_process.LOG
    return LateError("the run was stopped before its first step.", hint=f"See {log}.")


def _steps_of(plan: LaunchPlan, current: State, since: int, world: World) -> Iterator[Step]:
    """Steps after ``since`` as they complete, until the run ends."""
    path, newest, alive = metrics_file(plan), since, True
    while alive:
        alive = supervisor.lives(current, world=world)
        for step in read_steps(path):
            if step.number > newest:
                newest = step.number
                yield step
        if alive:
            world.clock.sleep(_LOOK_S)


def _run_died_error(plan: LaunchPlan, current: State, world: World) -> StartError:
    supervisor.stop(plan.own, current, progress=Progress(quiet=True), world=world)
    log = Path(current.servers[0].log)
    return StartError(
        f"{current.servers[0].name} ended before its last step.",
        hint=f"The end of {log} follows.",
        detail=tail(log),
    )


def print_run_status(plan: LaunchPlan) -> int:
    """Print JSON; 0 while it runs and once it is done."""
    data = status_data(plan, state.load_state(plan.own))
    print_json(data)
    return 0 if data["state"] in ("up", "finished") else 1


def bench(request: Request, plan: LaunchPlan, *, world: World = HERE) -> int:
    """Measure the last steps, or train some for it; such a run ends with a checkpoint."""
    path, progress = metrics_file(plan), Progress()
    if path is None:
        hint = "Its log in run/ has the time of every step."
        message = f"{plan.engine.name} writes no record that this launcher can read."
        raise LauncherError(message, hint=hint)
    count, needed = request.steps or _MEASURED, len(read_steps(path)) <= WARM_UP
    with running_bundle(
        request, plan, progress, stop=_end_measured_run, needed=needed, world=world
    ) as (plan, current, checked):
        if current is not None:
            wait_steps(plan, current, count + WARM_UP, progress, world=world)
    steps = read_steps(path)[WARM_UP:][-count:]
    if not steps:
        raise LauncherError(
            f"the run has not passed its first {WARM_UP} steps, which are not measured.",
            hint="Let it run longer, or see the logs in run/.",
        )
    measurement = {
        **measurement_head(plan, checked, world.clock.now()),
        "kind": "training",
        "steps": {"first": steps[0].number, "last": steps[-1].number, "count": len(steps)},
        **comparison(plan, steps),
    }
    return request.show_measurement(plan, measurement, report.training_bench_text)


def _end_measured_run(plan: LaunchPlan, progress: Progress, world: World = HERE) -> None:
    """End a run that was started only to be measured, however far it came."""
    try:
        current = state.load_state(plan.own)
        if current is not None and current.ready:
            end_with_checkpoint(plan, current, progress, world=world)
    finally:
        stop_started(plan, progress)


def wait_steps(
    plan: LaunchPlan, current: State, count: int, progress: Progress, *, world: World = HERE
) -> None:
    for step in _steps_of(plan, current, last_step(plan), world):
        progress.say(report.step_line(step, planned_steps(plan)))
        if len(read_steps(metrics_file(plan))) >= count:
            return


def end_with_checkpoint(
    plan: LaunchPlan, current: State, progress: Progress, *, world: World = HERE
) -> None:
    """Ask for a checkpoint, and wait for the end of the run for as long as one may take."""
    if not (current.here and supervisor.lives(current, world=world)):
        return
    try:
        (plan.run / STOP).touch()
    except OSError as error:
        raise file_error(error, plan.run / STOP) from None
    progress.say("requested a checkpoint; waiting for the end of the step")
    deadline = world.clock.monotonic() + END_S
    while supervisor.lives(current, world=world) and world.clock.monotonic() < deadline:
        world.clock.sleep(_LOOK_S)


def status_data(plan: LaunchPlan, current: State | None, *, world: World = HERE) -> dict[str, Any]:
    """Step, loss, speed and remaining time, from the run's own record; and who keeps it."""
    if current is not None:
        plan = load_started_plan(plan, current)
    steps, planned = read_steps(metrics_file(plan)), planned_steps(plan)
    last = steps[-1] if steps else None
    remaining_s = None
    if planned and last and (seconds := last.get("step_s")):
        remaining_s = (planned - last.number) * seconds
    servers, processes = current.servers if current else (), world.processes
    listed = [
        {"name": s.name, "pid": s.pid, "alive": processes.alive(*s.identity), "log": s.log}
        for s in servers
    ]
    names = ("loss", "tokens_per_s", "step_s", "peak_memory_bytes")
    figures = {name: last.get(name) if last else None for name in names}
    model, checkpoint = plan.run / "model", newest_checkpoint(plan)
    return {
        "state": _name_run_state(plan, current, world),
        "step": last.number if last else 0,
        "steps": planned,
        **figures,
        "left_s": remaining_s,
        "checkpoint": str(checkpoint[1]) if checkpoint else None,
        "model": str(model) if model.is_dir() else None,
        "choice": plan.choice,
        "world_size": world_size(plan),
        "rollbacks": len(read_rollbacks(plan)),
        **keeper_process.described(plan, current, world=world),
        "processes": listed,
        **keeper_process.remains(current.left_behind(processes) if current else []),
    }


def _name_run_state(plan: LaunchPlan, current: State | None, world: World) -> str:
    processes = world.processes
    if current and current.here and any(processes.alive(*s.identity) for s in current.servers):
        return "up"
    if current and current.left_behind(processes):
        return "degraded"  # workers outlive their parent
    if current and not has_recorded_all(plan, current) and current.unrecorded(processes):
        return "degraded"  # its launcher was killed before it noted the process
    if finished(plan):
        return "finished"
    if current is None:
        return "down"
    return "restarting" if keeper_process.is_kept(plan.own, current, world=world) else "failed"
