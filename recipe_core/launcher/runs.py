"""What the commands do with a training run: start and follow it, say how far it is, measure it, end it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import manifest, report, state, supervisor
from .errors import LauncherError, StartError
from .files import tail, write_json
from .plan import LaunchPlan
from .preflight import Preflight, preflight
from .state import State
from .steps import WARM_UP, Step, comparison, metrics_file, planned_steps, read_steps
from .supervisor import Progress

if TYPE_CHECKING:
    from .commands import Request

STOP = "stop"
"""In the run folder: the trainer ends with a checkpoint after the step in which it finds this."""
_MEASURED = 20
_END_S = 600.0
_LIVES_S = 5.0


def up(request: Request, plan: LaunchPlan) -> int:
    """Start, and wait for the first step; in the foreground follow to the end."""
    progress = Progress()
    with state.exclusive(plan.own):
        current = _running(plan)
        already, since = current is not None, _last(read_steps(metrics_file(plan)))
        if current is None:
            current, _ = _start(plan, progress)
    try:
        if request.foreground:
            return _follow(plan, current, since, progress)
        if not already:
            _first_step(plan, current, since, request.timeout or plan.startup_timeout_s, progress)
    except KeyboardInterrupt:
        supervisor.stop(plan.own, current, progress=progress)
        return 0
    data = _status(plan, current) | {"already": already}
    request.show(
        data, lambda: ("already running\n" if already else "") + report.run_text(plan, data)
    )
    return 0


def _start(plan: LaunchPlan, progress: Progress) -> tuple[State, Preflight]:
    leftover = state.load(plan.own)
    if leftover is not None:
        supervisor.stop(plan.own, leftover, progress=progress)
    (plan.run / STOP).unlink(missing_ok=True)
    result = preflight(plan)
    progress.say(report.preflight_text(result))
    if not result.ok:
        failed = [check for check in result.checks if check.status == "FAIL"]
        raise LauncherError(
            f"preflight: {failed[0].name}: {failed[0].detail}.", hint=failed[0].hint
        )
    return supervisor.start(plan, timeout_s=plan.startup_timeout_s, progress=progress), result


def _running(plan: LaunchPlan) -> State | None:
    current = state.load(plan.own)
    return current if current is not None and current.alive else None


def _first_step(
    plan: LaunchPlan, current: State, since: int, limit_s: float, progress: Progress
) -> None:
    """Until a step of this start is done, the run has ended, or the limit is over; a framework without a record only has to live."""
    path, began = metrics_file(plan), time.monotonic()
    told = began
    while supervisor.lives(current):
        passed = time.monotonic() - began
        if _last(read_steps(path)) > since or passed > (limit_s if path else _LIVES_S):
            return
        if time.monotonic() - told >= supervisor.PROGRESS_S:
            told = time.monotonic()
            progress.say(
                f"waiting for the first step: {passed:.0f} s; {tail(Path(current.servers[0].log), 1)[:100]}"
            )
        time.sleep(0.2)
    if not _finished(plan):
        raise _died(plan, current)


def _follow(plan: LaunchPlan, current: State, since: int, progress: Progress) -> int:
    """Every step as it is done, until the run ends."""
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
    """Steps after ``since`` as they are done, until the run ends."""
    path, seen, alive = metrics_file(plan), since, True
    while alive:
        alive = supervisor.lives(current)
        for step in read_steps(path):
            if step.number > seen:
                seen = step.number
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
    """Always JSON; 0 while it runs and when it is done."""
    data = _status(plan, state.load(plan.own))
    print(json.dumps(data, indent=2, ensure_ascii=False))
    return 0 if data["state"] in ("up", "finished") else 1


def _status(plan: LaunchPlan, current: State | None) -> dict[str, Any]:
    """Step, loss, speed and what is left, from the run's own record."""
    steps, planned = read_steps(metrics_file(plan)), planned_steps(plan)
    alive = (
        current is not None
        and any(server.alive for server in current.servers)
        and current.boot == state.boot_id()
    )
    word = (
        "up"
        if alive
        else "finished"
        if _finished(plan)
        else "down"
        if current is None
        else "failed"
    )
    last = steps[-1] if steps else None
    left = (
        (planned - last.number) * seconds
        if planned and last and (seconds := last.get("step_s"))
        else None
    )
    servers = current.servers if current else ()
    processes = [
        {"name": each.name, "pid": each.pid, "alive": each.alive, "log": each.log}
        for each in servers
    ]
    figures = {
        name: last.get(name) if last else None
        for name in ("loss", "tokens_per_s", "step_s", "peak_memory_bytes")
    }
    model = plan.run / "model"
    return {
        "state": word,
        "step": last.number if last else 0,
        "steps": planned,
        **figures,
        "left_s": left,
        "checkpoint": _newest_checkpoint(plan),
        "model": str(model) if model.is_dir() else None,
        "processes": processes,
    }


def _newest_checkpoint(plan: LaunchPlan) -> str | None:
    found = [
        path
        for path in (plan.run / "checkpoints").glob("*-*")
        if path.name.rpartition("-")[2].isdigit()
    ]
    return str(max(found, key=lambda path: int(path.name.rpartition("-")[2]))) if found else None


def bench(request: Request, plan: LaunchPlan) -> int:
    """Of the steps there are, or of some that are made for it (and kept: the run ends with a checkpoint)."""
    path, progress = metrics_file(plan), Progress()
    if path is None:
        hint = "Read its log in run/, which has the time of each step."
        raise LauncherError(
            f"{plan.engine.name} writes no record that this launcher reads.", hint=hint
        )
    wanted = request.steps or _MEASURED
    with ExitStack() as stack:
        current = _running(plan)
        if current is None and len(read_steps(path)) <= WARM_UP:
            stack.enter_context(state.exclusive(plan.own))
            current, seen = _start(request.plan(starts=True), progress)
            stack.callback(_end, plan, current, progress)
        else:
            seen = preflight(plan, own_ports=current.ports if current else frozenset())
        if current is not None:
            _wait_for(plan, current, wanted + WARM_UP, progress)
    steps = read_steps(path)[WARM_UP:][-wanted:]
    if not steps:
        raise LauncherError(
            f"no step beyond the first {WARM_UP} was made.",
            hint="Let it run longer, or see the logs in run/.",
        )
    measurement = _record(plan, seen, steps)
    write_json(plan.run / "measurement.json", measurement)
    request.show(
        measurement,
        lambda: (
            report.training_bench_text(measurement)
            + f"\n\nwritten: {plan.run / 'measurement.json'}"
        ),
    )
    return 0


def _end(plan: LaunchPlan, current: State, progress: Progress) -> None:
    """After measuring a run that was started for it."""
    _end_with_checkpoint(plan, current, progress)
    supervisor.stop(plan.own, current, progress=progress)


def _wait_for(plan: LaunchPlan, current: State, count: int, progress: Progress) -> None:
    for step in _steps_of(plan, current, _last(read_steps(metrics_file(plan)))):
        progress.say(report.step_line(step, planned_steps(plan)))
        if len(read_steps(metrics_file(plan))) >= count:
            return


def _record(plan: LaunchPlan, seen: Preflight, steps: list[Step]) -> dict[str, Any]:
    return {
        "schema_version": 1,
        "kind": "training",
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "recipe": plan.name,
        "recipe_digest": manifest.digest(plan.root),
        "machine": seen.machine.to_json(),
        "engine": {
            "name": plan.engine.name,
            "version": seen.engine_version,
            "planned_version": plan.engine.version,
        },
        "steps": {"first": steps[0].number, "last": steps[-1].number, "count": len(steps)},
        **comparison(plan, steps),
    }


def down(request: Request, plan: LaunchPlan) -> int:
    """End it: at once, or after a checkpoint; nothing running is fine."""
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
    request.show(
        data,
        lambda: (
            f"stopped; newest checkpoint: {data['checkpoint']}" if ended else "nothing was running"
        ),
    )
    return 0


def _end_with_checkpoint(plan: LaunchPlan, current: State, progress: Progress) -> None:
    if metrics_file(plan) is None:
        raise LauncherError(
            f"{plan.engine.name} cannot be asked for a checkpoint.",
            hint="Leave --checkpoint out; it keeps its last one.",
        )
    if not current.alive:
        return
    plan.run.mkdir(exist_ok=True)
    (plan.run / STOP).touch()
    progress.say("asked for a checkpoint; waiting for the end of the step")
    deadline = time.monotonic() + _END_S
    while supervisor.lives(current) and time.monotonic() < deadline:
        time.sleep(0.2)
