"""Training runs as the commands start, measure, show and stop them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from . import events, keeper_process, report, state, supervisor
from .deployment import Deployment
from .errors import LateError, LauncherError, StartError, file_error
from .files import tail
from .measurement import record_measurement
from .plan import LaunchPlan
from .preflight import Preflight
from .run_probe import end_after_checkpoint, log_of
from .run_record import (
    WARM_UP,
    has_finished,
    last_step,
    metrics_file,
    newest_checkpoint,
    planned_steps,
    read_rollbacks,
    read_steps,
    start_step,
    step_figures,
    step_of_start,
    world_size,
)
from .starts import has_recorded_all, load_started_plan
from .state import State
from .supervisor import Progress
from .world import HERE, World

_MEASURED = 20  # steps by default
_LOOK_S = 0.2
_LIVES_S = 5.0  # a run without a record that lives this long counts as started
_ADOPTED_S = 5.0  # a keeper that has just ended may not have told the last of it


class Run(Deployment):
    """The training run of a bundle."""

    words = "already running"

    def take_kept(self, current: State) -> State | None:
        """Return what is kept; in the foreground its keeper makes way."""
        if not self.request.foreground:
            return current
        keeper_process.dismiss(current.keeper, world=self.world)
        return None

    def settle(self, current: State, *, already: bool) -> State | None:
        """Leave a keeper, and wait for the first step; None for a run that is over by then."""
        if not (self.request.no_keep or self.is_kept(current)):
            try:
                self.leave_keeper()
            except StartError:  # a short run may be over before it says that it is there
                if state.load_state(self.plan.own) is not None:
                    raise
        if not already:
            self.wait_first_step(current)
        return state.load_state(self.plan.own)

    def find_shown_step(self, *, already: bool) -> int | None:
        """The step after which a keeper in the foreground tells of steps."""
        return last_step(self.plan) if already else start_step(self.plan)

    def wait_first_step(self, current: State) -> None:
        """Wait for the first step of this start, the end of the run, or the time limit.

        A framework without a record only has to stay alive. With a keeper the start may be another
        one by then.

        Raises:
            StartError: when the run ended before its first step, and nobody will start it again.
            LateError: when somebody stopped it before.
        """
        plan, world, unkept = self.plan, self.world, self.request.no_keep
        limit_s = self.timeout_s if metrics_file(plan) else _LIVES_S
        began = reported_at = world.clock.monotonic()
        while (now := current if unkept else state.load_state(plan.own)) is not None:
            passed = world.clock.monotonic() - began
            if step_of_start(plan) > start_step(plan) or passed > limit_s:
                return
            lives = supervisor.lives(now, world=world)
            if not lives and not self.is_kept(now):
                break
            if world.clock.monotonic() - reported_at >= supervisor.PROGRESS_S:
                reported_at = world.clock.monotonic()
                line = tail(log_of(plan, now), 1)[:100]
                self.progress.say(f"waiting for the first step: {passed:.0f} s; {line}")
            world.clock.sleep(_LOOK_S)
        if has_finished(plan):
            return
        raise self._run_died_error(current) if unkept else self._given_up_error(current)

    def _given_up_error(self, current: State) -> LauncherError:
        """Return what the keeper said before it ended."""
        plan, clock = self.plan, self.world.clock
        deadline = clock.monotonic() + _ADOPTED_S
        while clock.monotonic() < deadline:
            for event in reversed(events.read_events(plan.own)):
                if event["event"] == "gave_up":
                    reason, fix = str(event.get("reason")), str(event.get("fix") or "")
                    log = log_of(plan, current)
                    message = f"{plan.processes[0].name} ended before its first step: {reason}"
                    hint = None if fix == reason else f"{fix} The end of {log} follows."
                    return StartError(message, hint=hint, detail=tail(log))
                if event["event"] in ("start", "finished", "stopped"):
                    break
            clock.sleep(_LOOK_S)
        log = plan.own / keeper_process.LOG
        return LateError("the run was stopped before its first step.", hint=f"See {log}.")

    def _run_died_error(self, current: State) -> StartError:
        supervisor.stop(self.plan.own, current, progress=Progress(quiet=True), world=self.world)
        log = Path(current.servers[0].log)
        return StartError(
            f"{current.servers[0].name} ended before its last step.",
            hint=f"The end of {log} follows.",
            detail=tail(log),
        )

    def describe(self, current: State | None) -> tuple[dict[str, Any], str]:
        """Return what `up` answers, as JSON and in words."""
        data = status_data(self.plan, current, world=self.world)
        return data, report.run_text(self.plan, data)

    def show_status(self, current: State | None) -> tuple[dict[str, Any], bool]:
        """Return what `status` answers, and whether the run goes on or is done."""
        data = status_data(self.plan, current, world=self.world)
        return data, data["state"] in ("up", "finished")

    def prepare_bench(self) -> bool:
        """Return whether the run has to train for it: its record has no steps to be measured.

        Raises:
            LauncherError: for a framework that writes no record.
        """
        path = metrics_file(self.plan)
        if path is None:
            hint = "Its log in run/ has the time of every step."
            message = f"{self.plan.engine.name} writes no record that this launcher can read."
            raise LauncherError(message, hint=hint)
        return len(read_steps(path)) <= WARM_UP

    def measure(self, current: State | None, checked: Preflight) -> dict[str, Any]:
        """Measure the last steps, of a run that goes on once there are enough."""
        count = self.request.steps or _MEASURED
        if current is not None:
            self.wait_steps(current, count + WARM_UP)
        steps = read_steps(metrics_file(self.plan))[WARM_UP:][-count:]
        if not steps:
            raise LauncherError(
                f"the run has not passed its first {WARM_UP} steps, which are not measured.",
                hint="Let it run longer, or see the logs in run/.",
            )
        now = self.world.clock.now()
        return {
            **record_measurement(self.plan, checked, step_figures(steps), now),
            "kind": "training",
            "steps": {"first": steps[0].number, "last": steps[-1].number, "count": len(steps)},
        }

    def wait_steps(self, current: State, count: int) -> None:
        """Tell steps as they complete, until there are ``count`` or the run ends."""
        plan, newest, lives = self.plan, last_step(self.plan), True
        while lives:
            lives = supervisor.lives(current, world=self.world)
            steps = read_steps(metrics_file(plan))
            for step in steps:
                if step.number > newest:
                    newest = step.number
                    self.progress.say(report.step_line(step, planned_steps(plan)))
                    if len(steps) >= count:
                        return
            if lives:
                self.world.clock.sleep(_LOOK_S)

    def end_bench(self) -> None:
        """End a run that was started only to be measured with a checkpoint, however far it came."""
        try:
            current = state.load_state(self.plan.own)
            if current is not None and current.ready:
                self.save_checkpoint(current)
        finally:
            self.stop_started()

    def prepare_end(self, _current: State) -> list[str]:
        """Refuse to ask for a checkpoint where the trainer cannot be asked; nothing drains.

        Raises:
            LauncherError: for a framework without a record.
        """
        if self.request.checkpoint and metrics_file(self.plan) is None:
            raise LauncherError(
                f"{self.plan.engine.name} cannot save a checkpoint on request.",
                hint="Leave --checkpoint out; its last checkpoint remains.",
            )
        return []

    def end(self, current: State) -> dict[str, Any]:
        """Let the trainer save where that is wanted; what the event of the stop says beside."""
        if self.request.checkpoint:
            self.save_checkpoint(current)
        return {"step": last_step(self.plan)}

    def save_checkpoint(self, current: State) -> None:
        """Ask for a checkpoint, and wait for the end of the run for as long as one may take."""
        if not (current.here and supervisor.lives(current, world=self.world)):
            return
        self.progress.say("requested a checkpoint; waiting for the end of the step")
        try:
            end_after_checkpoint(self.plan, current, world=self.world)
        except OSError as error:
            raise file_error(error) from None

    def describe_end(self, current: State | None, stopped: list[str]) -> tuple[dict[str, Any], str]:
        """Return what `down` answers, as JSON and in words."""
        checkpoint = newest_checkpoint(self.plan)
        path = str(checkpoint[1]) if checkpoint else None
        names = [server.name for server in current.servers] if current else []
        ended = bool(stopped) or current is not None
        text = f"stopped; newest checkpoint: {path}" if ended else "nothing was running"
        return {"state": "down", "stopped": names, "checkpoint": path}, text


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
        **keeper_process.describe_supervision(plan, current, world=world),
        "processes": listed,
        **keeper_process.describe_survivors(current.left_behind(processes) if current else []),
    }


def _name_run_state(plan: LaunchPlan, current: State | None, world: World) -> str:
    processes = world.processes
    if current and current.here and any(processes.alive(*s.identity) for s in current.servers):
        return "up"
    if current and current.left_behind(processes):
        return "degraded"  # workers outlive their parent
    if current and not has_recorded_all(plan, current) and current.unrecorded(processes):
        return "degraded"  # its launcher was killed before it noted the process
    if has_finished(plan):
        return "finished"
    if current is None:
        return "down"
    return "restarting" if keeper_process.is_kept(plan.own, current, world=world) else "failed"
