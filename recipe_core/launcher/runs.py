"""The commands on a training run: start and follow it, report, measure, end it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from . import manifest, report, state, supervisor
from .errors import LauncherError, StartError, file_error
from .files import tail
from .output import print_json
from .plan import LaunchPlan
from .preflight import Preflight, preflight
from .request import Request
from .running import passed_preflight, recorded, require_files, running, stop_started
from .state import State
from .steps import WARM_UP, Step, comparison, metrics_file, planned_steps, read_steps
from .supervisor import Progress

STOP = "stop"
"""A file in the run folder: the trainer saves a checkpoint and ends once it exists."""
_MEASURED = 20  # steps by default
_END_S = 600.0  # a checkpoint of a large model takes minutes
_LIVES_S = 5.0  # a run without a record that lives this long counts as started


def up(request: Request, plan: LaunchPlan) -> int:
    """Start, and wait for the first step; with --foreground follow to the end."""
    progress, already = Progress(), False
    try:
        with state.exclusive(plan.own):
            current = running(plan)
            already, since = current is not None, _last(read_steps(metrics_file(plan)))
            if current is None:
                current, _ = _start(plan, progress)
        if request.foreground:
            return _follow(plan, current, since, progress)
        if not already:
            _first_step(plan, current, since, request.timeout or plan.startup_timeout_s, progress)
    except KeyboardInterrupt:
        if already and not request.foreground:
            raise
        stop_started(plan, progress)
        if not request.foreground:
            raise
        return 0
    data = {**_status(plan, current), "already": already}
    prefix = "already running\n" if already else ""
    request.show(data, lambda: prefix + report.run_text(plan, data))
    return 0


def _start(plan: LaunchPlan, progress: Progress) -> tuple[State, Preflight]:
    leftover = state.load(plan.own)
    if leftover is not None:
        supervisor.stop(plan.own, leftover, progress=progress)
    (plan.run / STOP).unlink(missing_ok=True)
    result = passed_preflight(plan, progress)
    return supervisor.start(plan, timeout_s=plan.startup_timeout_s, progress=progress), result


def _first_step(
    plan: LaunchPlan, current: State, since: int, limit_s: float, progress: Progress
) -> None:
    """Wait for the first step of this start, the end of the run, or the time limit.

    A framework without a record only has to stay alive.
    """
    path, began = metrics_file(plan), time.monotonic()
    told = began
    while supervisor.lives(current):
        passed = time.monotonic() - began
        if _last(read_steps(path)) > since or passed > (limit_s if path else _LIVES_S):
            return
        if time.monotonic() - told >= supervisor.PROGRESS_S:
            told = time.monotonic()
            line = tail(Path(current.servers[0].log), 1)[:100]
            progress.say(f"waiting for the first step: {passed:.0f} s; {line}")
        time.sleep(0.2)
    if not _finished(plan):
        raise _died(plan, current)


def _follow(plan: LaunchPlan, current: State, since: int, progress: Progress) -> int:
    """Print every step as it completes, until the run ends."""
    for step in _steps_of(plan, current, since):
        progress.say(report.step_line(step, planned_steps(plan)))
    with state.exclusive(plan.own):
        ended = state.load(plan.own)
        if ended is None:  # another launcher's `down` ended it
            return 0
        failed = supervisor.exit_codes(current)
        supervisor.stop(plan.own, current, progress=progress)
    if any(failed):
        raise _died(plan, current)
    return 0


def _steps_of(plan: LaunchPlan, current: State, since: int) -> Iterator[Step]:
    """Steps after ``since`` as they complete, until the run ends."""
    path, newest, alive = metrics_file(plan), since, True
    while alive:
        alive = supervisor.lives(current)
        for step in read_steps(path):
            if step.number > newest:
                newest = step.number
                yield step
        time.sleep(0.3 if alive else 0)


def _last(steps: list[Step]) -> int:
    return steps[-1].number if steps else 0


def _finished(plan: LaunchPlan) -> bool:
    """Whether the last planned step is done."""
    steps = planned_steps(plan)
    return steps is not None and _last(read_steps(metrics_file(plan))) >= steps


def _died(plan: LaunchPlan, current: State) -> StartError:
    supervisor.stop(plan.own, current, progress=Progress(quiet=True))
    log = Path(current.servers[0].log)
    return StartError(
        f"{current.servers[0].name} ended before its last step.",
        hint=f"The end of {log} follows.",
        detail=tail(log),
    )


def status(plan: LaunchPlan) -> int:
    """Print JSON; 0 while it runs and once it is done."""
    data = _status(plan, state.load(plan.own))
    print_json(data)
    return 0 if data["state"] in ("up", "finished") else 1


def _status(plan: LaunchPlan, current: State | None) -> dict[str, Any]:
    """Step, loss, speed and remaining time, from the run's own record."""
    steps, planned = read_steps(metrics_file(plan)), planned_steps(plan)
    last = steps[-1] if steps else None
    left = None
    if planned and last and (seconds := last.get("step_s")):
        left = (planned - last.number) * seconds
    servers = current.servers if current else ()
    processes = [
        {"name": server.name, "pid": server.pid, "alive": server.alive, "log": server.log}
        for server in servers
    ]
    names = ("loss", "tokens_per_s", "step_s", "peak_memory_bytes")
    figures = {name: last.get(name) if last else None for name in names}
    model = plan.run / "model"
    return {
        "state": _word(plan, current),
        "step": last.number if last else 0,
        "steps": planned,
        **figures,
        "left_s": left,
        "checkpoint": _newest_checkpoint(plan),
        "model": str(model) if model.is_dir() else None,
        "processes": processes,
    }


def _word(plan: LaunchPlan, current: State | None) -> str:
    """The state of the run in one word."""
    if current and current.here and any(server.alive for server in current.servers):
        return "up"
    if current and not recorded(plan, current) and current.unrecorded():
        return "degraded"  # its launcher was killed before it noted the process
    if _finished(plan):
        return "finished"
    return "down" if current is None else "failed"


def _newest_checkpoint(plan: LaunchPlan) -> str | None:
    steps = {}
    for path in (plan.run / "checkpoints").glob("*-*"):
        name, _, number = path.name.rpartition("-")
        cut_short = name == "step" and not (path / ".metadata").is_file()
        if number.isdigit() and not cut_short:
            steps[int(number)] = path
    return str(steps[max(steps)]) if steps else None


def bench(request: Request, plan: LaunchPlan) -> int:
    """Measure the last steps, or train some for it; such a run ends with a checkpoint."""
    path, progress = metrics_file(plan), Progress()
    if path is None:
        hint = "Its log in run/ has the time of every step."
        message = f"{plan.engine.name} writes no record that this launcher can read."
        raise LauncherError(message, hint=hint)
    count = request.steps or _MEASURED
    with ExitStack() as stack:
        stack.enter_context(state.exclusive(plan.own))
        current = running(plan)
        if current is None and len(read_steps(path)) <= WARM_UP:
            stack.callback(_end, plan, progress)
            current, checked = _start(request.plan(starts=True), progress)
        else:
            stack.close()  # others may stop what they started
            checked = preflight(plan, own_ports=current.ports if current else frozenset())
            require_files(checked)
        if current is not None:
            _wait_for(plan, current, count + WARM_UP, progress)
    steps = read_steps(path)[WARM_UP:][-count:]
    if not steps:
        raise LauncherError(
            f"the run has not passed its first {WARM_UP} steps, which are not measured.",
            hint="Let it run longer, or see the logs in run/.",
        )
    measurement = _record(plan, checked, steps)
    return request.show_measurement(plan, measurement, report.training_bench_text)


def _end(plan: LaunchPlan, progress: Progress) -> None:
    """End a run that was started only to be measured, however far it came."""
    try:
        current = state.load(plan.own)
        if current is not None and current.ready:
            _end_with_checkpoint(plan, current, progress)
    finally:
        stop_started(plan, progress)


def _wait_for(plan: LaunchPlan, current: State, count: int, progress: Progress) -> None:
    for step in _steps_of(plan, current, _last(read_steps(metrics_file(plan)))):
        progress.say(report.step_line(step, planned_steps(plan)))
        if len(read_steps(metrics_file(plan))) >= count:
            return


def _record(plan: LaunchPlan, checked: Preflight, steps: list[Step]) -> dict[str, Any]:
    return {
        "schema_version": 1,
        "kind": "training",
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "recipe": plan.name,
        "recipe_digest": manifest.digest(plan.root),
        "machine": checked.machine.to_json(),
        "engine": {
            "name": plan.engine.name,
            "version": checked.engine_version,
            "planned_version": plan.engine.version,
        },
        "steps": {"first": steps[0].number, "last": steps[-1].number, "count": len(steps)},
        **comparison(plan, steps),
    }


def down(request: Request, plan: LaunchPlan) -> int:
    """End the run, at once or after a checkpoint; it is fine if nothing runs."""
    progress = Progress(request.as_json)
    with state.exclusive(plan.own):
        current = state.load(plan.own)
        if current is not None and request.checkpoint:
            _end_with_checkpoint(plan, current, progress)
        stopped = supervisor.stop(plan.own, current, progress=progress) if current else []
    ended = bool(stopped) or current is not None
    data = {
        "state": "down",
        "stopped": [server.name for server in current.servers] if current else [],
        "checkpoint": _newest_checkpoint(plan),
    }
    text = f"stopped; newest checkpoint: {data['checkpoint']}" if ended else "nothing was running"
    request.show(data, lambda: text)
    return 0


def _end_with_checkpoint(plan: LaunchPlan, current: State, progress: Progress) -> None:
    if metrics_file(plan) is None:
        raise LauncherError(
            f"{plan.engine.name} cannot save a checkpoint on request.",
            hint="Leave --checkpoint out; its last checkpoint remains.",
        )
    if not current.alive:
        return
    try:
        (plan.run / STOP).touch()
    except OSError as error:
        raise file_error(error, plan.run / STOP) from None
    progress.say("requested a checkpoint; waiting for the end of the step")
    deadline = time.monotonic() + _END_S
    while supervisor.lives(current) and time.monotonic() < deadline:
        time.sleep(0.2)
