"""Keeps a training run going: restarts it where it breaks, on the devices that are there.

The trainer resumes from its newest checkpoint by itself, with another split of the same model too;
where the loss broke it has gone back before that, and recorded what it leaves out since (module
``trainer.rollbacks``). What is done here is to look, to start again, and to take another choice;
``run_decide`` decides.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from types import FrameType

from . import events, keeping, running, state, supervisor
from .choices import Choice, list_launch_choices, next_choice
from .diagnosis import Diagnosis, with_lost_device
from .errors import LauncherError, PreflightError, StartError
from .files import tail
from .heartbeat import notify_ready, notify_stopping, only_keeper
from .logs import cut_logs
from .machine import Machine
from .metrics import metrics_file
from .plan import LaunchPlan
from .preflight import check_machine, needs_here
from .run_decide import (
    Action,
    Kind,
    Observer,
    Trouble,
    forgiven,
    judge_run,
    log_of,
    names_a_cause,
    respond_for_run,
    rest_s,
    track_started_run,
    waited,
)
from .running import passed_preflight
from .sections import Supervision
from .state import State
from .supervisor import Progress
from .world import HERE, World

# The most seconds between two looks for devices that came back.
DEVICES_S = 30.0
END_S = 600.0  # a checkpoint of a large model takes minutes
_LOCK_S = 60.0
_TICK_S = 0.3
# Checks before a start that may pass by waiting.
_PASSING = ("port", "head")
_QUIET = Progress(quiet=True)


class LeaveError(Exception):
    """The keeper has no business any more: the run was ended, or another keeper is wanted."""


class Keeper:
    """Keeps one run; ``fixed``: no other choice is taken than the one that runs.

    ``shown``: every step after this one is told as it completes; None for none. ``checked`` raises
    where a check before a start fails.
    """

    def __init__(
        self,
        plan: LaunchPlan,
        current: State,
        limits: Supervision,
        progress: Progress,
        *,
        fixed: bool,
        shown: int | None = None,
        world: World = HERE,
        checked: Callable[[LaunchPlan, Progress], object] = passed_preflight,
    ) -> None:
        self.world, self.clock, self.checked = world, world.clock, checked
        self.plan, self.current, self.progress = plan, current, progress
        self.fixed, self.limits, self.me = fixed, limits, keeping.me(limits)
        self.observer = Observer(plan, progress, shown, world=world)
        step = running.start_step(plan)
        self.observer.started(current, step)
        self.track = track_started_run(self.clock.monotonic(), step)
        self.barred: set[str] = set()
        self.leaving = False
        self.looked_at = self.clock.monotonic()
        self.found_at_step: int | None = None
        """The step of the newest checkpoint when the devices of an earlier choice came back."""

    def keep(self) -> int:
        """Stay until the run is done, or somebody ends it.

        Raises:
            StartError: when it cannot go on, with the diagnosis.
        """
        with only_keeper(self.plan, self.limits, self.clock) as heartbeat, self._signals():
            ended = "left"
            try:
                self._note()
                while True:
                    heartbeat.beat()
                    cut_logs(self.plan.own)
                    if heartbeat.follow(self._save_again, self._stop, self.progress.say):
                        raise LeaveError
                    self._still_ours()
                    if (trouble := self._look()) is not None:
                        if self._answer(trouble) is Action.END:
                            ended = trouble.kind.value
                            return 0
                    elif self._came_back():
                        self._take_back()
                    self._wait(self.limits.poll_s)
            except LeaveError:
                return 0
            except StartError:
                ended = "gave up"
                raise
            finally:
                notify_stopping()
                node_folder = heartbeat.moved_to() or self.plan.own
                events.append(node_folder, "keeper_stop", reason=ended)

    def _note(self) -> None:
        """Say in the state that this process keeps the run."""
        with self._alone():
            self.current = replace(self.current, keeper=self.me)
            state.save_state(self.plan.own, self.current)
        events.append(self.plan.own, "keeper_start", choice=self.plan.choice, pid=self.me.pid)
        notify_ready("keeps a training run")

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """Leave on the keeper's signal, at the next moment at which nothing is half done."""

        def leave(_number: int, _frame: FrameType | None) -> None:
            self.leaving = True

        before = signal.signal(keeping.LEAVE, leave)
        try:
            yield
        finally:
            signal.signal(keeping.LEAVE, before)

    def _wait(self, seconds: float) -> None:
        deadline = self.clock.monotonic() + seconds
        while True:
            if self.leaving:
                raise LeaveError
            remaining_s = deadline - self.clock.monotonic()
            if remaining_s <= 0:
                return
            self.clock.sleep(min(remaining_s, _TICK_S))

    def _save_again(self) -> None:
        state.save_state(self.plan.own, self.current)

    def _still_ours(self) -> None:
        recorded = state.load_state(self.plan.own)
        if recorded is None or recorded.mark != self.current.mark:
            raise LeaveError

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Be the only one who starts or stops the run.

        Raises:
            LeaveError: when the run was ended meanwhile, or another command does not let go.
        """
        deadline = self.clock.monotonic() + _LOCK_S
        while True:
            if self.leaving or self.clock.monotonic() > deadline:
                raise LeaveError
            lock = state.exclusive(self.plan.own)
            try:
                lock.__enter__()
                break
            except LauncherError:
                self.clock.sleep(_TICK_S)
        try:
            self._still_ours()
            yield
        finally:
            lock.__exit__(None, None, None)

    def _look(self) -> Trouble | None:
        observation = self.observer.look(self.plan, self.current)
        now, start_s = self.clock.monotonic(), self.plan.startup_timeout_s
        self.track, trouble = judge_run(self.track, observation, now, self.limits, start_s)
        return trouble

    def _answer(self, trouble: Trouble) -> Action:
        if trouble.kind in (Kind.FINISHED, Kind.STOPPED):
            with self._alone():
                self._stop()
            events.append(self.plan.own, trouble.kind.value, step=self.track.step)
            return Action.END
        cause = self.observer.diagnosis(self.plan, self.current, proven=self.track.proven)
        self._tell(trouble, cause)
        checkpoint = running.checkpoint_step(self.plan)
        with self._alone():
            if trouble.kind is Kind.HUNG:  # what is only stopped can end by itself
                processes = self.world.processes
                processes.send(self.current.family(processes), signal.SIGCONT)
            self._stop_run()
        misfit = self._misfit()
        self.track, action = respond_for_run(
            self.track,
            trouble,
            self.clock.monotonic(),
            self.limits,
            checkpoint=checkpoint,
            lasting=not cause.transient,
            cause_known=names_a_cause(cause),
            misfit=misfit is not None,
        )
        if misfit is not None:
            cause = with_lost_device(cause)
        self._carry_out(action, trouble, cause, misfit)
        return action

    def _tell(self, trouble: Trouble, cause: Diagnosis) -> None:
        if trouble.kind is Kind.ROLLED_BACK:
            return  # it has an event of its own
        kind = trouble.kind.value if trouble.kind in (Kind.HUNG, Kind.KILLED) else "died"
        about = {"cause": cause.cause, "lines": list(cause.lines), "choice": self.plan.choice}
        events.append(self.plan.own, kind, reason=trouble.reason, step=self.track.step, **about)
        self.progress.say(f"{kind} after step {self.track.step}: {trouble.reason} ({cause.title})")

    def _stop_run(self) -> None:
        """End what is left of the run; the state says that a keeper will start it again."""
        supervisor.end(self.current, _QUIET, world=self.world)
        self.current = replace(self.current, servers=(), ready=False)
        state.save_state(self.plan.own, self.current)

    def _stop(self) -> None:
        supervisor.stop(self.plan.own, self.current, progress=_QUIET, world=self.world)

    def _misfit(self) -> str | None:
        """Why the machine cannot hold the choice any more; None where it can."""
        checks = check_machine(needs_here(self.plan), self.world.detect())
        misfit = next((check.detail for check in checks if check.status == "FAIL"), None)
        if misfit is not None:
            events.append(self.plan.own, "device_lost", reason=misfit, choice=self.plan.choice)
            self.progress.say(f"the machine is smaller than planned: {misfit}")
        return misfit

    def _carry_out(
        self, action: Action, trouble: Trouble, cause: Diagnosis, misfit: str | None
    ) -> None:
        """Start again, with another choice where that is decided.

        Raises:
            StartError: where there is nothing left to start.
        """
        while True:
            if action is Action.STOP:
                raise self._given_up(trouble, cause)
            if action is Action.LEAVE and not self._next(lost=misfit is not None):
                self.track, worth = waited(self.track, self.clock.monotonic(), self.limits)
                if misfit is None or not worth:
                    raise self._given_up(trouble, cause)
                self.progress.say("no choice fits what is left of the machine; waiting for it")
                self._wait(rest_s(self.track, self.limits, self.world.chance.random()))
                misfit = self._misfit()
                action = Action.RESTART if misfit is None else Action.LEAVE
                continue
            rest = rest_s(self.track, self.limits, self.world.chance.random())
            self.progress.say(f"starting {self.plan.choice} again in {rest:.1f} s")
            self._wait(rest)
            try:
                self._restart(cause.cause)
            except StartError as error:  # its program is gone
                raise self._given_up(Trouble(Kind.DIED, str(error)), cause) from None
            except LauncherError as error:  # a check failed, or the disk is full
                trouble, cause = Trouble(Kind.DIED, error.message), of_error(error)
                with self._alone():
                    supervisor.end(self.current, _QUIET, world=self.world)
                misfit = self._misfit()
                self.track, action = respond_for_run(
                    self.track,
                    trouble,
                    self.clock.monotonic(),
                    self.limits,
                    checkpoint=running.checkpoint_step(self.plan),
                    misfit=misfit is not None,
                )
                if misfit is None and not cause.transient:
                    action = Action.STOP
            else:
                return

    def _restart(self, cause: str) -> None:
        """Start what ``plan`` says.

        Raises:
            PreflightError: when a check fails before.
            LauncherError: when it cannot be started, or noted.
        """
        with self._alone():
            self.checked(self.plan, _QUIET)
            running.note_start(self.plan)
            step, restarts = running.start_step(self.plan), self.current.restarts + 1
            for group in sorted({process.group for process in self.plan.processes}):
                self.current = supervisor.start_group(
                    self.plan, self.current, group, world=self.world
                )
            self.current = replace(self.current, ready=True, restarts=restarts)
            state.save_state(self.plan.own, self.current)
        self.track = track_started_run(self.clock.monotonic(), step, self.track)
        self.observer.started(self.current, step)
        size = running.world_size(self.plan)
        about = {"count": restarts, "choice": self.plan.choice, "world_size": size}
        events.append(self.plan.own, "restart", cause=cause, step=step, **about)

    def _next(self, *, lost: bool) -> bool:
        """Take the next choice, if there is one; what only lost its devices may be taken again."""
        if self.fixed:
            return False
        if not lost:
            self.barred.add(self.plan.choice)
        tried = {*self.barred, self.plan.choice}
        choice = next_choice(list_launch_choices(self.plan), self.world.detect(), tried=tried)
        if choice is None:
            return False
        self._take(choice, "fallback")
        return True

    def _take(self, choice: Choice, kind: str) -> None:
        size = running.world_size(choice.plan)
        about = {"choice": choice.name, "title": choice.title, "world_size": size}
        events.append(self.plan.own, kind, **about)
        self.progress.say(f"taking {choice.name} ({choice.title})")
        self.plan, self.track = choice.plan, forgiven(self.track)
        with self._alone():
            self.current = replace(self.current, choice=choice.name)
            state.save_state(self.plan.own, self.current)

    def _came_back(self) -> bool:
        """Whether to go back to an earlier choice now, whose devices are there again.

        A trainer without a record cannot be asked for a checkpoint: then it is the next one.
        """
        if self.found_at_step is None:
            choice = self._due_look()
            if choice is None:
                return False
            self.found_at_step = running.checkpoint_step(self.plan)
            events.append(self.plan.own, "device_found", choice=choice.name)
            self.progress.say(f"{choice.name} fits again; back to it at the next checkpoint")
        newer = running.checkpoint_step(self.plan) > self.found_at_step
        return newer or metrics_file(self.plan) is not None

    def _due_look(self) -> Choice | None:
        """An earlier choice that fits again, looked for once in a while."""
        interval_s = min(DEVICES_S, 10 * self.limits.poll_s)
        now = self.clock.monotonic()
        if self.fixed or self.plan.choice == list_launch_choices(self.plan)[0].name:
            return None
        if now - self.looked_at < interval_s:
            return None
        self.looked_at = now
        return self._earlier()

    def _earlier(self) -> Choice | None:
        """The first choice before the current one whose devices are there."""
        machine = self.world.detect()
        for choice in list_launch_choices(self.plan):
            if choice.name == self.plan.choice:
                return None
            if choice.name not in self.barred and devices_there(choice.plan, machine):
                return choice
        return None

    def _take_back(self) -> None:
        """Stop with a checkpoint, and go on with an earlier choice."""
        self.found_at_step = None
        if metrics_file(self.plan) is not None:
            with suppress(OSError):
                (self.plan.run / running.STOP).touch()
            deadline = self.clock.monotonic() + END_S
            while (
                supervisor.lives(self.current, world=self.world)
                and self.clock.monotonic() < deadline
            ):
                self._wait(_TICK_S)
        with self._alone():
            self._stop_run()
        if (choice := self._earlier()) is not None:
            first = list_launch_choices(self.plan)[0].name
            self._take(choice, "first_choice" if choice.name == first else "fallback")
        cause = Diagnosis("device-found", "devices are back", (), "", transient=True, device=True)
        trouble = Trouble(Kind.STOPPED, "an earlier choice fits again")
        self._carry_out(Action.RESTART, trouble, cause, None)

    def _given_up(self, trouble: Trouble, cause: Diagnosis) -> StartError:
        """The end of a run that cannot go on: forgotten by the state, explained in the events."""
        end = running.read_trainer_end(self.plan) if trouble.kind is Kind.REFUSED else None
        reason, name = end.message if end else trouble.reason, self.plan.processes[0].name
        about = {"cause": cause.cause, "title": cause.title, "fix": cause.fix}
        if end is not None:
            about = {"cause": "refused", "title": "the trainer refuses to go on", "fix": reason}
        state_of = {"step": self.track.step, "restarts": self.current.restarts}
        lines, log = list(cause.lines), log_of(self.plan, self.current)
        events.append(self.plan.own, "gave_up", reason=reason, lines=lines, **state_of, **about)
        with suppress(LeaveError), self._alone():
            self._stop()
        if end is not None:
            return StartError(f"{name} ended before its last step: {reason}")
        hint = f"Diagnosis: {cause.title}. {cause.fix} The end of {log} follows."
        message = f"{name} ended before its last step: {reason}; it is not started again."
        return StartError(message, hint=hint, detail=tail(log))


def devices_there(plan: LaunchPlan, machine: Machine) -> bool:
    """Whether the devices of a choice are there, whatever uses their memory now."""
    checks = check_machine(needs_here(plan), machine, running=True)
    return all(check.status != "FAIL" for check in checks)


def of_error(error: LauncherError) -> Diagnosis:
    """What stood against a start, as a diagnosis."""
    check = error.check if isinstance(error, PreflightError) else None
    passing = check is None or check in _PASSING
    name = f"preflight-{check}" if check else error.code
    return Diagnosis(name, error.message, (), error.hint or "", passing, device=False)
