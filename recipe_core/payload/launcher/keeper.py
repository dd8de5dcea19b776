"""Keeps a bundle up: looks at its groups, restarts what failed, takes fallbacks, lets requests end.

A probe looks (``serving_probe``, ``run_probe``), ``tracks`` says what is to be done; this module
does it and notes it (``events.jsonl``). It changes what runs only while it holds the bundle's lock,
and writes ``state.json`` before it starts anything, so that it can be killed at any moment.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace

from . import events, keeper_process, state, supervisor, tracks
from .choices import Choice, list_launch_choices, next_choice
from .diagnosis import Diagnosis, with_lost_device
from .errors import BusyError, LauncherError, PreflightError, StartError
from .exporter import Teller
from .groups import Gone, Groups, groups_of
from .heartbeat import notify_ready, notify_stopping, only_keeper, watchdog_period
from .limits import Supervision
from .logs import cut_logs
from .machine_watch import MachineWatch
from .plan import FIRST, LaunchPlan
from .procs import CLOCK, Clock, takes_over
from .rolling import Rolling
from .run_probe import RunProbe
from .serving_probe import ServingProbe
from .starts import passed_preflight
from .state import State
from .supervisor import Progress
from .tracks import Kind, Phase, Step, Track, Trouble
from .world import HERE, World

# How soon a signal is heeded between two looks.
_NAP_S = 0.1
_NOTED_S = 60.0
_UNKNOWN = ("unknown", "exception", "crashed")
# Checks before a start that may pass by waiting.
_PASSING = ("port", "head")


@dataclass(frozen=True, slots=True)
class Log(Progress):
    """Progress in a log: every line has its time."""

    clock: Clock = CLOCK

    def say(self, text: str) -> None:
        """One line, and when it was."""
        now = self.clock.now().isoformat(timespec="seconds")
        Progress.say(self, f"{now} {text}")


class Keeper(Groups):
    """Supervises what ``current`` records of ``plan`` until it is stopped, dismissed, or gives up.

    ``strict``: it takes no fallback. ``metrics_port``: of its own metrics; None for none. Of a run,
    steps after ``shown`` are told, and ``checked`` raises where a check before a start fails.

    ``causes``: restarts by their cause; ``asked``: signals, oldest first.
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
        shown: int | None = None,
        checked: Callable[[LaunchPlan, Progress], object] = passed_preflight,
        world: World = HERE,
    ) -> None:
        super().__init__(plan, current)
        self.world, self.clock = world, world.clock
        self.limits, self.progress, self.strict = limits, progress, strict
        self.options = list_launch_choices(plan)
        self.machine = MachineWatch(plan, self.options, limits, strict=strict, world=world)
        self.causes: dict[str, int] = {}
        self.reasons: dict[int, str] = {}  # for which groups are started again
        self._complaint = ""
        self.tried: set[str] = set()
        self.awaited: tuple[Trouble, str, Diagnosis] | None = None  # for which devices are lost
        self.asked: list[int] = []
        self.probe = RunProbe(self, shown, checked) if self.trains else ServingProbe(self)
        now = self.clock.monotonic()
        self.tracks = {group: self.probe.adopt_track(now) for group in groups_of(plan)}
        self.rolling = Rolling(self)
        self.teller = Teller(self, metrics_port)
        self.me = keeper_process.me(limits, metrics_port)

    # The loop

    def run(self, *, done: Callable[[Keeper], bool] | None = None) -> int:
        """Keep until there is nothing to keep (0), or ``done`` says so after a round.

        Raises:
            StartError: with the diagnosis, when it cannot be kept up.
            LauncherError: while another keeper lives.
        """
        with only_keeper(self.plan, self.limits, self.clock) as heartbeat, self._signals():
            try:
                self._when_free(self._note_keeper)
            except (BusyError, StartError):
                raise
            except LauncherError as error:  # a full disk must not leave the servers alone
                self.progress.say(f"status will not know of this keeper: {error}")
            events.append(self.own, "keeper_start", choice=self.plan.choice, pid=self.me.pid)
            self.progress.say(f"keeping {self.plan.name}: {self.summary()}")
            if self.current.ready:
                notify_ready(self.summary())
            reason = "failed"
            try:
                while True:
                    heartbeat.beat()
                    if why := heartbeat.follow(
                        lambda: self.save(self.current), self._stop, self.progress.say
                    ):
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
        self.probe.close()

    def step(self) -> str:
        """One look and what follows from it; why this keeper is to end, else nothing."""
        if self.asked and (reason := self._heed()):
            return reason
        self.check_ours()
        self.teller.export()
        cut_logs(self.own)
        groups = self.probe.looked(asks=bool(self.rolling.groups))
        self.teller.count()
        try:
            plan = self.plan
            for group in groups:
                if self.plan is plan and (ended := self._judge(group)):
                    return ended
            # Where its choice was left, these groups are gone.
            for group, track in list(self.tracks.items()):
                if self.plan is plan and tracks.due(track, self.clock.monotonic()):
                    self._start_again(group)
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

    def _when_free(self, act: Callable[[], None]) -> None:
        """Act once no other command holds the lock.

        Raises:
            BusyError: while one holds it for too long.
        """
        end = self.clock.monotonic() + _NOTED_S
        while True:
            try:
                return act()
            except BusyError:
                if self.clock.monotonic() > end:
                    raise
            self.clock.sleep(_NAP_S)

    def _note_keeper(self) -> None:
        """Write who keeps, for ``status`` and ``down``."""
        with state.exclusive(self.own):
            saved = state.load_state(self.own)
            if saved is None or saved.mark != self.current.mark:
                hint = "Start it with `up`."
                raise StartError("nothing runs that could be kept.", hint=hint)
            self.save(replace(saved, keeper=self.me))

    # Signals

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """Note signals instead of being interrupted by them; only the main thread gets any."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        numbers = (keeper_process.LEAVE, keeper_process.READ, *takes_over())
        before = {number: signal.getsignal(number) for number in numbers}
        for number in numbers:
            signal.signal(number, lambda number, _frame: self.asked.append(number))
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _heed(self) -> str:
        """Do what signals ask for; why this keeper ends, where it does."""
        while self.asked:
            number = self.asked.pop(0)
            if number == keeper_process.LEAVE:
                return "dismissed"
            if number == keeper_process.READ:
                names = keeper_process.requested(self.own).get("restart")
                if not self.trains:
                    self.rolling.ask(names)
            elif number == keeper_process.DRAIN and not self.trains:
                seconds = keeper_process.requested(self.own).get("drain_s")
                limit = seconds if isinstance(seconds, (int, float)) else self.limits.drain_s
                self.drain(float(limit))
                return "drained"
            else:
                self._when_free(self._stop_all)
                return "stopped"
        return ""

    def drain(self, limit_s: float) -> None:
        """Welcome no requests, let those that run finish, then stop everything."""
        self.probe.quiesce(limit_s, "draining")
        self._when_free(self._stop_all)

    # Trouble

    def _judge(self, group: int) -> str:
        """Act on what the last look shows of a group; why this keeper is to end, else nothing."""
        now, before = self.clock.monotonic(), self.tracks[group]
        track, trouble = self.probe.judge(group, before, now)
        if trouble is not None:
            return self._trouble(group, track, trouble)
        self.tracks[group] = track
        if self.trains:
            return ""
        if before.phase is Phase.STARTING and track.phase is Phase.SERVING:
            spent = now - before.since
            self.event("ready", group, after_s=round(spent, 3))
            self.progress.say(f"{self.name(group)} is ready after {spent:.1f} s")
        if track.phase is Phase.SERVING:
            self.rolling.admit(group)
            if not self.current.ready and all(
                t.phase is Phase.SERVING for t in self.tracks.values()
            ):
                with self.acting():
                    self.save(replace(self.current, ready=True))
                notify_ready(self.summary())
        return ""

    def _trouble(self, group: int, track: Track, trouble: Trouble) -> str:
        with self.acting():
            if trouble.kind in (Kind.FINISHED, Kind.STOPPED):
                self._stop()
                events.append(self.own, trouble.kind.value, step=track.step)
                return str(trouble.kind.value)
            diagnosis = self.probe.diagnose(group, track, trouble)
            cause = _trouble_cause(trouble, diagnosis)
            self.tracks[group] = track
            self._note_trouble(group, trouble, cause, diagnosis)
            if self.trains:  # what it still holds of the machine is not counted
                self.stop_group(group)
            misfit = None
            if trouble.kind is not Kind.SLOW:
                misfit = self.machine.misfit_now(self.plan, self.options, stopped=self.trains)
            if misfit:
                self.event("device_lost", group, reason=misfit, choice=self.plan.choice)
                self.progress.say(f"the machine is smaller than planned: {misfit}")
                diagnosis = with_lost_device(diagnosis)
                cause = _trouble_cause(trouble, diagnosis)
            self._respond(group, track, trouble, cause, diagnosis, misfit)
        return ""

    def _note_trouble(self, group: int, trouble: Trouble, cause: str, diagnosis: Diagnosis) -> None:
        if trouble.kind is Kind.ROLLED_BACK:
            return  # it has an event of its own
        names = {Kind.LATE: Kind.HUNG, Kind.REFUSED: Kind.DIED}
        kind = names.get(trouble.kind, trouble.kind).value
        about = {"reason": trouble.reason, "cause": cause, "title": diagnosis.title}
        more = {"lines": list(diagnosis.lines), "fix": diagnosis.fix, **self.probe.facts()}
        self.event(kind, group, **about, **more)
        self.progress.say(f"{self.name(group)} {kind}: {trouble.reason} ({diagnosis.title})")

    def _respond(
        self,
        group: int,
        track: Track,
        trouble: Trouble,
        cause: str,
        diagnosis: Diagnosis,
        misfit: str | None,
    ) -> None:
        """Do what follows from trouble: the lock is held.

        Raises:
            StartError: with the diagnosis, where nothing is left to be tried.
        """
        track, step = tracks.respond(
            track,
            trouble,
            self.clock.monotonic(),
            self.limits,
            lasting=self.probe.is_lasting(diagnosis),
            misfit=misfit is not None,
            others_serve=self.serves(without=group),
            checkpoint=self.probe.checkpoint(),
            jitter=self.world.chance.random(),
        )
        if step is Step.LEAVE and cause == "slow" and not self._may_leave():
            self.progress.say("no other choice fits: slow is better than stopped")
            track, step = replace(track, told_slow=True), Step.KEEP
        self.tracks[group] = track
        if step is Step.KEEP:
            return
        self.causes[cause] = self.causes.get(cause, 0) + 1
        self.reasons[group] = cause
        hung = cause == "hang"
        self.stop_group(group, self.probe.hung_grace_s if hung else supervisor.GRACE_S)
        parked = {*self.current.parked, group} if step is Step.PARK else self.current.parked
        self.save(self.without(group, parked=tuple(sorted(parked))))
        if step is Step.STOP:
            raise self._given_up(cause, trouble, diagnosis, misfit)
        if step is Step.LEAVE:
            self._leave_choice(group, trouble, cause, diagnosis, misfit)
        elif step is Step.PARK:
            self.event("gave_up", group, cause=cause, reason=misfit or diagnosis.title)
            self.progress.say(f"{self.name(group)} stays down, others serve; {diagnosis.fix}")
        else:
            self.probe.note_rest(group, cause, track)
            self.progress.say(f"{self.name(group)} restarts in {track.until - track.since:.1f} s")

    # Starts

    def _start_again(self, group: int) -> None:
        before = self.tracks[group]
        with self.acting():
            self.stop_group(group)  # what a killed start left
            if self.awaited and self._still_misfits(group):
                return
            self.start_now(group, before)

    def start_now(self, group: int, before: Track | None) -> None:
        """Start a group, or answer that it cannot be started: the lock is held.

        ``before``: its track, of a restart.
        """
        try:
            self._start(group, before)
        except (StartError, PreflightError) as error:
            self._not_started(group, self.tracks[group], error)
        except LauncherError:  # a full disk, say: nothing runs that is not written down
            attempt = before.attempt if before is not None else 0
            now, jitter = self.clock.monotonic(), self.world.chance.random()
            pause = tracks.backoff_s(attempt, self.limits, jitter)
            resting = replace(self.tracks[group], phase=Phase.RESTING, since=now, until=now + pause)
            self.tracks[group] = replace(resting, attempt=attempt + 1)
            raise

    def _start(self, group: int, before: Track | None) -> None:
        self.probe.prepare()
        restarts = self.current.restarts + (before is not None or self.trains)
        self.tracks[group] = self.probe.start_track(self.clock.monotonic(), before)
        try:
            parked = tuple(other for other in self.current.parked if other != group)
            began = replace(self.current, restarts=restarts, parked=parked)
            self.current = supervisor.start_group(self.plan, began, group, world=self.world)
        except LauncherError:
            with suppress(LauncherError):
                self.current = state.load_state(self.own) or self.current
            raise
        self.probe.note_start(group, self.reasons.get(group, "requested"))

    def _not_started(self, group: int, track: Track, error: LauncherError) -> None:
        """A program that cannot be started at all, or a check that fails before."""
        hint, misfit, passing = error.hint or "", None, False
        name, kind = "program", "died"
        if isinstance(error, PreflightError):
            name, kind, passing = f"preflight-{error.check}", "refused", error.check in _PASSING
            misfit = self.machine.misfit_now(self.plan, self.options, stopped=True)
        diagnosis = Diagnosis(name, error.message.rstrip("."), (), hint, passing, device=False)
        self.event(kind, group, cause=name, reason=error.message, fix=hint)
        track = replace(track, proven=track.proven and passing)
        self._respond(group, track, Trouble(Kind.DIED, error.message), name, diagnosis, misfit)

    # Choices

    def _may_leave(self) -> bool:
        """Return whether another choice fits, as if nothing of this one ran."""
        machine = self.machine.as_if_stopped(self.plan)
        tried = {*self.tried, self.plan.choice}
        return not self.strict and next_choice(self.options, machine, tried=tried) is not None

    def _leave_choice(
        self, group: int, trouble: Trouble, cause: str, diagnosis: Diagnosis, misfit: str | None
    ) -> None:
        """Take the next choice that fits, wait for lost devices, or stop with the diagnosis.

        Raises:
            StartError: with the diagnosis, where no choice is left.
        """
        left_name, following = self.plan.choice, None
        if misfit is None:
            self.tried.add(left_name)
        self.machine.leave_choice(left_name, for_misfit=misfit is not None)
        supervisor.end(self.current, self.progress, world=self.world)
        if not self.strict:
            tried = {*self.tried, left_name}
            following = next_choice(self.options, self.machine.detect(), tried=tried)
        if following is None:
            if misfit and self.trains and self._waits(group, trouble, cause, diagnosis):
                return
            raise self._given_up(cause, trouble, diagnosis, misfit)
        reason = misfit or diagnosis.title
        self.progress.say(
            f"taking {following.name} ({following.title}) instead of {left_name}: {reason}"
        )
        kind = "first_choice" if following.name == FIRST else "fallback"
        self._begin(following, kind, cause=cause, reason=reason)

    def _waits(self, group: int, trouble: Trouble, cause: str, diagnosis: Diagnosis) -> bool:
        """Wait for lost devices, which counts as a failure; whether it is worth that."""
        jitter, now = self.world.chance.random(), self.clock.monotonic()
        track, step = tracks.respond(
            self.tracks[group], Trouble(Kind.DIED, ""), now, self.limits, jitter=jitter
        )
        if step is not Step.RESTART:
            return False
        self.progress.say("no choice fits what is left of the machine; waiting for it")
        self.tracks[group] = track
        self.awaited = (trouble, cause, diagnosis)
        return True

    def _still_misfits(self, group: int) -> bool:
        """Return whether devices that are waited for are still lost, which is one more wait."""
        awaited, self.awaited = self.awaited, None
        misfit = self.machine.misfit_now(self.plan, self.options, stopped=True)
        if misfit is None or awaited is None:
            return False
        self._leave_choice(group, *awaited, misfit)
        return True

    def _given_up(
        self, cause: str, trouble: Trouble, diagnosis: Diagnosis, misfit: str | None
    ) -> StartError:
        """Stop everything; the error that says why."""
        error = self.probe.give_up(cause, trouble, diagnosis, misfit)
        self._stop()
        return error

    def _begin(self, choice: Choice, kind: str, **about: object) -> None:
        """Start all groups of a choice, and note why it is taken; nothing else runs."""
        names = {"from": self.plan.choice, "to": choice.name, "title": choice.title}
        self.rolling.forget()
        self.plan, self.machine.missing = choice.plan, None
        self.probe.begin(choice.expected)
        events.append(self.own, kind, **names, **about, **self.probe.facts())
        now = self.clock.monotonic()
        self.tracks = {group: self.probe.start_track(now) for group in groups_of(self.plan)}
        logs = supervisor.logs_of(self.plan)
        begun = replace(self.current, choice=choice.name, servers=(), ready=False, parked=())
        self.save(replace(begun, logs=logs))
        for group in list(self.tracks):
            if self.plan is not choice.plan:  # one could not be started: it is left already
                return
            self.start_now(group, None)

    def _watch_machine(self) -> None:
        """Note lost and found devices; return to an earlier choice once it fits again."""
        misses_devices = bool(self.current.parked) or self.plan.choice != FIRST
        for kind, reason in self.machine.look(self.plan, self.options, always=misses_devices):
            events.append(self.own, kind, reason=reason)
            self.progress.say(f"{kind.replace('_', ' ')}: {reason}")
            if kind == "device_found":
                now = self.clock.monotonic()
                for group, track in self.tracks.items():
                    if track.phase is Phase.PARKED:
                        self.tracks[group] = replace(track, until=now)
        choice = self.machine.returning
        if choice is None or not self.active() or not self.probe.may_return():
            return
        with self.acting():
            words = "the first choice" if choice.name == FIRST else choice.name
            self.probe.quiesce(self.limits.drain_s, f"{words} fits again")
            if not self.asked:
                supervisor.end(self.current, self.progress, world=self.world)
                self.progress.say(f"returning to {words} from {self.plan.choice}")
                self.machine.leave_choice(self.plan.choice, for_misfit=True)
                self.reasons = dict.fromkeys(self.tracks, "device-found")
                kind = "first_choice" if choice.name == FIRST else "fallback"
                self._begin(choice, kind, reason="it fits again")
        self.refusing = ""

    def _forget(self) -> None:
        """After enough time of service, choices that failed may be tried again."""
        now = self.clock.monotonic()
        stable = all(
            track.phase is Phase.SERVING and now - track.since >= self.limits.stable_s
            for track in self.tracks.values()
        )
        if stable and self.tried:
            self.tried.clear()

    # Stops

    def _stop_all(self) -> None:
        """Stop everything, unless another launcher does so."""
        with self.acting():
            events.append(self.own, "stop", **self.probe.facts())
            self._stop()

    def stop_group(self, group: int, grace_s: float = supervisor.GRACE_S) -> None:
        """End what runs of a group: the lock is held."""
        supervisor.stop_group(self.plan, self.current, group, grace_s=grace_s, world=self.world)

    def _stop(self) -> None:
        supervisor.stop(
            self.own, self.current, progress=self.progress, recorded=True, world=self.world
        )


def _trouble_cause(trouble: Trouble, diagnosis: Diagnosis) -> str:
    """The cause's id: what the log shows, else the kind of trouble."""
    if trouble.kind is Kind.SLOW:
        return "slow"
    if trouble.kind in (Kind.HUNG, Kind.LATE) and diagnosis.cause in _UNKNOWN:
        return "hang"
    return diagnosis.cause
