"""Keeps a serving bundle up: looks at its groups, restarts what failed, takes fallbacks, drains.

``decide`` says what is to be done; this module looks, does it and notes it (``events.jsonl``). It
changes what runs only while it holds the bundle's lock, and writes ``state.json`` before it starts
anything, so that it can be killed at any moment.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType

from . import decide, events, keeping, state, supervisor
from .choices import Choice, MachineWatch, list_launch_choices, next_choice, refused_by_machine
from .decide import Kind, Phase, Seen, Step, Track, Trouble
from .diagnosis import Diagnosis, diagnose, with_lost_device
from .errors import BusyError, LauncherError, StartError
from .exporter import Teller
from .heartbeat import notify_ready, notify_stopping, only_keeper, watchdog_period
from .kept import IDLE_LOOKS, Gone, Kept
from .logs import cut_logs
from .plan import FIRST, LaunchPlan
from .procs import CLOCK, Clock, takes_over
from .rolling import Rolling
from .sections import Supervision
from .state import State
from .supervisor import Progress
from .world import HERE, World

# How soon a signal is heeded between two looks.
_NAP_S = 0.1
_NOTED_S = 60.0
# What hangs hardly ends by itself, and other groups are not looked at meanwhile.
_HUNG_GRACE_S = 5.0
_UNKNOWN = ("unknown", "exception", "crashed")


@dataclass(frozen=True, slots=True)
class Log(Progress):
    """Progress in a log: every line has its time."""

    clock: Clock = CLOCK

    def say(self, text: str) -> None:
        """One line, and when it was."""
        now = self.clock.now().isoformat(timespec="seconds")
        Progress.say(self, f"{now} {text}")


class Keeper(Kept):
    """Supervises what ``current`` records of ``plan`` until it is stopped, dismissed, or gives up.

    ``strict``: it takes no fallback. ``metrics_port``: of its own metrics; None for none.
    """

    def __init__(
        self,
        plan: LaunchPlan,
        current: State,
        limits: Supervision,
        progress: Progress,
        *,
        strict: bool = False,
        metrics_port: int | None = None,
        world: World = HERE,
    ) -> None:
        super().__init__(plan, current, limits, progress, world=world)
        self.options = list_launch_choices(plan)
        self.machine = MachineWatch(self.options, limits, strict=strict, world=world)
        self.machine.left_for_misfit = refused_by_machine(self.own)
        self.strict = strict
        self.rolling = Rolling(self, self._start_now)
        self.teller, self.me = Teller(self, metrics_port), keeping.me(limits, metrics_port)
        self.tried: set[str] = set()
        self.asked: list[int] = []  # signals, oldest first
        self._complaint = ""

    # The loop

    def run(self, *, done: Callable[[Keeper], bool] | None = None) -> int:
        """Keep until there is nothing to keep (0), or ``done`` says so after a round.

        Raises:
            StartError: with the diagnosis, when the servers cannot be kept up.
            LauncherError: while another keeper lives.
        """
        with only_keeper(self.plan, self.limits, self.clock) as heartbeat, self._signals():
            self._note_keeper()
            events.append(self.own, "keeper_start", choice=self.plan.choice)
            self.progress.say(f"keeping {self.plan.name}: {self.summary()}")
            if self.current.ready:
                notify_ready(self.summary())
            reason = "failed"
            try:
                while True:
                    heartbeat.beat()
                    if why := heartbeat.follow(self._save_again, self._stop, self.progress.say):
                        raise Gone(why)
                    if (ended := self.step()) or (done is not None and done(self)):
                        reason = ended or "done"
                        return 0
                    self.rest()
            except Gone as why:
                reason = str(why)
                return 0
            finally:
                notify_stopping()
                events.append(heartbeat.moved_to() or self.own, "keeper_stop", reason=reason)
                self.close()

    def close(self) -> None:
        """End the threads that look and answer."""
        self.teller.close()
        self.machine.close()
        self.observer.close()

    def step(self) -> str:
        """One look and what follows from it; why this keeper is to end, else nothing."""
        if self.asked and (reason := self._heed()):
            return reason
        self.check_ours()
        self.teller.export()
        cut_logs(self.own)
        self.looked(asks=bool(self.rolling.groups))
        self.teller.count()
        try:
            plan = self.plan
            for group in sorted(self.look.observations):
                if self.plan is plan:  # else its choice was left: these groups are gone
                    self._judge(group, self.look.observations[group])
            for group, track in list(self.tracks.items()):
                if self.plan is plan and decide.due(track, self.clock.monotonic()):
                    self._start(group)
            self._watch_machine()
            self.rolling.step()
            self._forget()
            self._complaint = ""
        except BusyError:
            pass  # another command is at it: look again
        except StartError:
            raise
        except LauncherError as error:  # a full disk, a process that a driver holds
            if self._complaint != error.message:
                self._complaint = error.message
                self.progress.say(str(error))
        self.teller.tell()
        return ""

    def rest(self) -> None:
        """Until the next look is due, or a signal is to be heeded."""
        pause = self.limits.poll_s
        if (period := watchdog_period()) is not None:
            pause = min(pause, period)
        end = self.clock.monotonic() + pause
        while not self.asked and (remaining_s := end - self.clock.monotonic()) > 0:
            self.clock.sleep(min(remaining_s, _NAP_S))

    def _save_again(self) -> None:
        self.save(self.current)

    def _note_keeper(self) -> None:
        """Write who keeps, for ``status`` and ``down``."""
        end = self.clock.monotonic() + _NOTED_S
        while True:
            try:
                with state.exclusive(self.own):
                    saved = state.load_state(self.own)
                    if saved is None or saved.mark != self.current.mark:
                        hint = "Start it with `up`."
                        raise StartError("nothing runs that could be kept.", hint=hint)
                    self.save(replace(saved, keeper=self.me))
                return
            except BusyError:
                if self.clock.monotonic() > end:
                    raise
                self.clock.sleep(_NAP_S)
            except StartError:
                raise
            except LauncherError as error:  # a full disk must not leave the servers alone
                self.progress.say(f"status will not know of this keeper: {error}")
                return

    # Signals

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """Note signals instead of being interrupted by them; only the main thread gets any."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        numbers = (keeping.LEAVE, keeping.READ, *takes_over())
        before = {number: signal.getsignal(number) for number in numbers}
        for number in numbers:
            signal.signal(number, self._note)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self.asked.append(number)

    def _heed(self) -> str:
        """Do what signals ask for; why this keeper ends, where it does."""
        while self.asked:
            number = self.asked.pop(0)
            if number == keeping.LEAVE:
                return "dismissed"
            if number == keeping.READ:
                self.rolling.ask(keeping.requested(self.own).get("restart"))
            elif number == keeping.DRAIN:
                seconds = keeping.requested(self.own).get("drain_s")
                limit = seconds if isinstance(seconds, (int, float)) else self.limits.drain_s
                self.drain(float(limit))
                return "drained"
            else:
                self._stop_all()
                return "stopped"
        return ""

    # Trouble

    def _judge(self, group: int, observation: Seen) -> None:
        now, before = self.clock.monotonic(), self.tracks[group]
        track, trouble = decide.judge_group(before, observation, now, self.limits, self.target)
        if trouble is not None:
            self._trouble(group, track, trouble, observation)
            return
        self.tracks[group] = track
        if before.phase is Phase.STARTING and track.phase is Phase.SERVING:
            spent = now - before.since
            self.event("ready", group, after_s=round(spent, 3))
            self.progress.say(f"{self.name(group)} is ready after {spent:.1f} s")
        if track.phase is Phase.SERVING:
            self.rolling.admit(group)
            if not self.current.ready and all(t.phase is Phase.SERVING for t in self.all_tracks()):
                with self.acting():
                    self.save(replace(self.current, ready=True))
                notify_ready(self.summary())

    def _trouble(self, group: int, track: Track, trouble: Trouble, observation: Seen) -> None:
        with self.acting():
            diagnosis = self._diagnose(group, track, trouble, observation)
            cause, kind = _trouble_cause(trouble, diagnosis), _event_of(trouble)
            detail = {"reason": trouble.reason, "cause": cause, "title": diagnosis.title}
            self.event(kind, group, **detail, lines=list(diagnosis.lines), fix=diagnosis.fix)
            self.progress.say(f"{self.name(group)} {kind}: {trouble.reason} ({diagnosis.title})")
            misfit = None
            if trouble.kind is not Kind.SLOW:
                misfit = self.machine.misfit_now(self.plan, self.options)
            if misfit:
                self.event("device_lost", group, reason=misfit)
                self.progress.say(f"the machine is smaller than planned: {misfit}")
                diagnosis = with_lost_device(diagnosis)
                cause = _trouble_cause(trouble, diagnosis)
            track, step = decide.respond_for_group(
                track,
                trouble,
                self.clock.monotonic(),
                self.limits,
                lasting=not diagnosis.transient,
                misfit=misfit is not None,
                others_serve=self.serves(without=group),
                jitter=self.world.chance.random(),
            )
            self._answer(group, track, step, cause, diagnosis, misfit)

    def _answer(
        self,
        group: int,
        track: Track,
        step: Step,
        cause: str,
        diagnosis: Diagnosis,
        misfit: str | None,
    ) -> None:
        if step is Step.LEAVE and cause == "slow" and not self._may_leave():
            self.progress.say("no other choice fits: slow is better than stopped")
            track, step = replace(track, told_slow=True), Step.KEEP
        if step is Step.KEEP:
            self.tracks[group] = track
            return
        self.causes[cause] = self.causes.get(cause, 0) + 1
        grace = _HUNG_GRACE_S if cause == "hang" else supervisor.GRACE_S
        self._stop_group(group, grace)
        parked = tuple(
            sorted({*self.current.parked} | {group} if step is Step.PARK else self.current.parked)
        )
        self.tracks[group] = track
        self.save(self.without(group, parked=parked))
        if step is Step.LEAVE:
            self._leave_choice(cause, diagnosis, misfit)
        elif step is Step.PARK:
            self.event("gave_up", group, cause=cause, reason=misfit or diagnosis.title)
            self.progress.say(f"{self.name(group)} stays down, others serve; {diagnosis.fix}")
        else:
            pause = track.until - track.since
            self.event("restart", group, cause=cause, attempt=track.attempt, in_s=round(pause, 3))
            self.progress.say(f"{self.name(group)} restarts in {pause:.1f} s")

    def _diagnose(self, group: int, track: Track, trouble: Trouble, observation: Seen) -> Diagnosis:
        """The cause, from the log of what ended first, or of the group's first process."""
        names = observation.ended or tuple(p.name for p in self.plan.processes if p.group == group)
        logs = {server.name: server.log for server in self.current.servers}
        texts = [self.log_of(Path(logs[name])) for name in names if name in logs]
        code = next((code for code in observation.codes if code is not None), None)
        return diagnose(
            "\n".join(texts),
            code,
            kernel="oom_kill 1" if trouble.kind is Kind.KILLED else "",
            ready=track.phase is not Phase.STARTING,
        )

    def _start(self, group: int) -> None:
        before = self.tracks[group]
        with self.acting():
            self._stop_group(group)  # what a killed start left
            self._start_now(group, before)

    def _start_now(self, group: int, before: Track | None) -> None:
        try:
            self.start(group, before)
        except StartError as error:
            self._not_started(group, self.tracks[group], error)
        except LauncherError:  # a full disk, say: nothing runs that is not written down
            attempt = before.attempt if before is not None else 0
            now = self.clock.monotonic()
            pause = decide.backoff_s(attempt, self.limits, self.world.chance.random())
            self.tracks[group] = replace(
                self.tracks[group],
                phase=Phase.RESTING,
                since=now,
                until=now + pause,
                attempt=attempt + 1,
            )
            raise

    def _not_started(self, group: int, track: Track, error: StartError) -> None:
        """A program that cannot be started at all."""
        hint = error.hint or ""
        diagnosis = Diagnosis("program", error.message.rstrip("."), (), hint, False, False)
        self.event("died", group, cause="program", reason=error.message, fix=hint)
        trouble = Trouble(Kind.DIED, error.message)
        track, step = decide.respond_for_group(
            track,
            trouble,
            self.clock.monotonic(),
            self.limits,
            lasting=True,
            others_serve=self.serves(without=group),
            jitter=self.world.chance.random(),
        )
        self._answer(group, track, step, "program", diagnosis, None)

    # Choices

    def _may_leave(self) -> bool:
        """Whether another choice fits, as if nothing of this one ran."""
        if self.strict:
            return False
        machine = self.machine.as_if_stopped(self.plan)
        tried = {*self.tried, self.plan.choice}
        return next_choice(self.options, machine, tried=tried) is not None

    def _leave_choice(self, cause: str, diagnosis: Diagnosis, misfit: str | None) -> None:
        """Take the next choice that fits, or stop everything with the diagnosis.

        Raises:
            StartError: with the diagnosis, where no choice is left.
        """
        left_name = self.plan.choice
        if misfit is None:
            self.tried.add(left_name)
        supervisor.end(self.current, self.progress, world=self.world)
        following = None
        if not self.strict:
            tried = {*self.tried, left_name}
            following = next_choice(self.options, self.machine.detect(), tried=tried)
        if following is None:
            raise self._given_up(cause, diagnosis, misfit)
        if left_name == FIRST:
            self.machine.left_for_misfit = misfit is not None
        names = {"from": left_name, "to": following.name, "title": following.title}
        reason = misfit or diagnosis.title
        kind = "first_choice" if following.name == FIRST else "fallback"
        events.append(self.own, kind, **names, cause=cause, reason=reason)
        self.progress.say(
            f"taking {following.name} ({following.title}) instead of {left_name}: {reason}"
        )
        self._begin(following)

    def _given_up(self, cause: str, diagnosis: Diagnosis, misfit: str | None) -> StartError:
        """Stop everything; the error that says why."""
        reason = misfit or diagnosis.title
        fields = {"lines": list(diagnosis.lines), "fix": diagnosis.fix}
        events.append(self.own, "gave_up", cause=cause, reason=reason, **fields)
        self._stop()
        return StartError(
            f"the servers cannot be kept up: {reason.rstrip('.')}.",
            hint=diagnosis.fix,
            detail="\n".join(diagnosis.lines),
        )

    def _begin(self, choice: Choice) -> None:
        """Start all groups of a choice; nothing else runs."""
        self.rolling.forget()
        self.begin(choice)
        for group in list(self.tracks):
            if self.plan is not choice.plan:  # one could not be started: it is left already
                return
            self._start_now(group, None)

    def _watch_machine(self) -> None:
        """Note lost and found devices; return to the first choice once it fits again."""
        misses_devices = bool(self.current.parked) or self.plan.choice != FIRST
        for kind, reason in self.machine.look(self.plan, self.options, always=misses_devices):
            events.append(self.own, kind, reason=reason)
            self.progress.say(f"{kind.replace('_', ' ')}: {reason}")
            if kind == "device_found":
                now = self.clock.monotonic()
                for group, track in self.tracks.items():
                    if track.phase is Phase.PARKED:
                        self.tracks[group] = replace(track, until=now)
        if self.machine.first_fits and not self.rolling.groups:
            with self.acting():
                self._quiesce(self.limits.drain_s, "the first choice fits again")
                if not self.asked:
                    first = next(option for option in self.options if option.name == FIRST)
                    names = {"from": self.plan.choice, "to": FIRST}
                    supervisor.end(self.current, self.progress, world=self.world)
                    events.append(self.own, "first_choice", **names, reason="it fits again")
                    self.progress.say(f"returning to the first choice from {self.plan.choice}")
                    self.machine.returned()
                    self._begin(first)
            self.refusing = ""

    def _forget(self) -> None:
        """After enough time of service, choices that failed may be tried again."""
        now = self.clock.monotonic()
        stable = all(
            track.phase is Phase.SERVING and now - track.since >= self.limits.stable_s
            for track in self.all_tracks()
        )
        if stable and self.tried:
            self.tried.clear()

    # Draining and rolling

    def drain(self, limit_s: float) -> None:
        """Welcome no requests, let those that run finish, then stop everything."""
        self._quiesce(limit_s, "draining")
        self._stop_all()

    def _quiesce(self, limit_s: float, reason: str) -> None:
        """Say that no requests are welcome, end routers, and wait until nothing runs.

        Servers have no way to refuse what is new: ``/healthz`` says so, and routers end as they
        do on SIGTERM: they take no connection and finish those that they have.
        """
        self.refusing = reason
        self.teller.tell()
        events.append(self.own, "drain", reason=reason, limit_s=limit_s)
        self.progress.say(f"{reason}: waiting up to {limit_s:.0f} s for running requests")
        routers = {p.name for p in self.plan.processes if p.role == "router"}
        leaving = [s.identity for s in self.current.servers if s.name in routers]
        self.world.processes.send(leaving, signal.SIGTERM)
        began, idle = self.clock.monotonic(), 0
        while idle < IDLE_LOOKS and self.clock.monotonic() - began < limit_s and not self.asked:
            self.looked(asks=True)
            idle = idle + 1 if all(self.is_idle(group) for group in self.active()) else 0
            self.teller.tell()
            if idle < IDLE_LOOKS:
                self.clock.sleep(min(self.limits.poll_s, _NAP_S * 3))
        spent = round(self.clock.monotonic() - began, 3)
        events.append(self.own, "drained", finished=idle >= IDLE_LOOKS, after_s=spent)

    def _stop_all(self) -> None:
        """Stop everything, unless another launcher does so.

        Raises:
            BusyError: while another command holds the lock for too long.
        """
        end = self.clock.monotonic() + _NOTED_S
        while True:
            try:
                with self.acting():
                    events.append(self.own, "stop")
                    self._stop()
                return
            except BusyError:
                if self.clock.monotonic() > end:
                    raise
            self.clock.sleep(_NAP_S)

    def _stop_group(self, group: int, grace_s: float = supervisor.GRACE_S) -> None:
        supervisor.stop_group(self.plan, self.current, group, grace_s=grace_s, world=self.world)

    def _stop(self) -> None:
        supervisor.stop(
            self.own, self.current, progress=self.progress, recorded=True, world=self.world
        )


def _event_of(trouble: Trouble) -> str:
    return "hung" if trouble.kind is Kind.LATE else trouble.kind.value


def _trouble_cause(trouble: Trouble, diagnosis: Diagnosis) -> str:
    """The cause's id: what the log shows, else the kind of trouble."""
    if trouble.kind is Kind.SLOW:
        return "slow"
    if trouble.kind in (Kind.HUNG, Kind.LATE) and diagnosis.cause in _UNKNOWN:
        return "hang"
    return diagnosis.cause
