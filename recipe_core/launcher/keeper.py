"""Keeps a serving bundle up: looks at its groups, restarts what failed, takes fallbacks, drains.

``decide`` says what is to be done; this module looks, does it and notes it (``events.jsonl``). It
changes what runs only while it holds the bundle's lock, and writes ``state.json`` before it starts
anything, so that it can be killed at any moment.
"""

from __future__ import annotations

import random
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from types import FrameType
from typing import Any

from . import balancer, decide, events, keeping, notify, procs, state, supervisor
from .choices import Choice, choices, next_choice
from .decide import Kind, Phase, Seen, Step, Track, Trouble
from .diagnosis import Diagnosis, diagnose
from .errors import BusyError, LauncherError, StartError
from .exporter import Exporter, Snapshot
from .files import tail
from .interrupts import takes_over
from .machine_watch import MachineWatch
from .observe import Look, Observer, connections, target
from .plan import FIRST, LaunchPlan
from .state import State
from .supervision import Supervision
from .supervisor import Progress

_NAP_S = 0.1
"""How soon a signal is heeded between two looks."""
_QUESTIONS = 15
"""How often a server that serves is asked within the time that counts as a hang."""
_LOG_LINES = 60
_LOG_BYTES = 1 << 18
_IDLE_LOOKS = 2
"""Looks in a row without requests after which a group counts as drained."""
_BLIND_ROUTER_S = 10.0
"""How long a router without an interface gets to find that a replica is back."""
_NOTED_S = 60.0
_UNKNOWN = ("unknown", "exception", "crashed")


class _Gone(Exception):  # noqa: N818 - it is how the loop ends, not an error
    """Another launcher has stopped or replaced what was kept."""


@dataclass(frozen=True, slots=True)
class Log(Progress):
    """Progress in a log: every line has its time."""

    def say(self, text: str) -> None:
        """One line, and when it was."""
        now = datetime.now().astimezone().isoformat(timespec="seconds")
        Progress.say(self, f"{now} {text}")


class Keeper:
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
    ) -> None:
        self.plan, self.current, self.limits, self.progress = plan, current, limits, progress
        self.options = choices(plan)
        self.machine = MachineWatch(self.options, limits, strict=strict)
        self.strict, self.metrics_port = strict, metrics_port
        self.observer, self.look = Observer(), Look()
        self.tried: set[str] = set()
        self.causes: dict[str, int] = {}
        self.tokens: dict[int, tuple[float, float]] = {}  # before its restart, and by its counter
        self.withdrawn: dict[int, tuple[balancer.Withdrawn, ...]] = {}
        self.rolling: list[int] = []
        self.idle, self.settled_at = 0, 0.0
        self.refusing = ""
        self.asked: list[int] = []  # signals, oldest first
        self.chance = random.Random()  # noqa: S311 - spreads restarts, hides nothing
        self.tracks: dict[int, Track] = {}
        self._exporter: Exporter | None = None
        self._asked_at, self._exports_at, self._blind, self._complaint = 0.0, 0.0, False, ""
        self._adopt()

    @property
    def own(self) -> Path:
        """The folder of state and logs."""
        return self.plan.own

    def _adopt(self) -> None:
        now = time.monotonic()
        self.target = target(self.plan, self.plan.folder / "expected.json")
        for group in groups_of(self.plan):
            track = decide.serving(now)
            if not self.current.ready:
                track = decide.starting(now, self.plan.startup_timeout_s)
            self.tracks[group] = track

    # The loop

    def run(self, *, done: Callable[[Keeper], bool] | None = None) -> int:
        """Keep until there is nothing to keep (0), or ``done`` says so after a round.

        Raises:
            StartError: with the diagnosis, when the servers cannot be kept up.
            LauncherError: while another keeper lives.
        """
        with keeping.only_keeper(self.own), self._signals():
            self._note_keeper()
            events.append(self.own, "keeper_start", choice=self.plan.choice)
            self.progress.say(f"keeping {self.plan.name}: {self._summary()}")
            reason = "failed"
            try:
                while True:
                    reason = self._round()
                    if reason or (done is not None and done(self)):
                        return 0
                    self._rest()
            except _Gone:
                reason = "another launcher stopped the servers"
                return 0
            finally:
                notify.stopping()
                events.append(self.own, "keeper_stop", reason=reason)
                self.close()

    def close(self) -> None:
        """End the threads that look and answer."""
        if self._exporter is not None:
            self._exporter.close()
        self.machine.close()
        self.observer.close()

    def _round(self) -> str:
        """One look and what follows from it; why this keeper is to end, else nothing."""
        if self.asked and (reason := self._heed()):
            return reason
        self._check_ours()
        self._export()
        self.look = self._looked()
        self._count_tokens()
        try:
            plan = self.plan
            for group in sorted(self.look.seen):
                if self.plan is plan:  # else its choice was left: these groups are gone
                    self._judge(group, self.look.seen[group])
            for group, track in list(self.tracks.items()):
                if decide.due(track, time.monotonic()):
                    self._start(group)
            self._watch_machine()
            self._roll()
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
        self._tell()
        return ""

    def _looked(self) -> Look:
        """A look at every group; servers that serve are not asked at every look.

        That a process has ended shows at once, and engines log every question.
        """
        now = time.monotonic()
        serving = all(track.phase in (Phase.SERVING, Phase.PARKED) for track in self._all())
        pause = max(self.limits.poll_s, self.limits.hang_s / _QUESTIONS)
        asks = not serving or bool(self.rolling) or now - self._asked_at >= pause
        if asks:
            self._asked_at = now
        look = self.observer.look(self.plan, self.current.servers, self._active(), asks=asks)
        if not asks:
            look.healthy, look.figures = self.look.healthy, self.look.figures
        return look

    def _rest(self) -> None:
        """Until the next look is due, or a signal is to be heeded."""
        pause = self.limits.poll_s
        if (period := notify.watchdog_period()) is not None:
            pause = min(pause, period)
        end = time.monotonic() + pause
        while not self.asked and (left := end - time.monotonic()) > 0:
            time.sleep(min(left, _NAP_S))

    def _active(self) -> list[int]:
        resting = (Phase.RESTING, Phase.PARKED)
        return [group for group, track in self.tracks.items() if track.phase not in resting]

    def _check_ours(self) -> None:
        """Stop keeping what another launcher has stopped or started anew."""
        with suppress(LauncherError):  # damaged: it is written again with the next change
            saved = state.load(self.own)
            if saved is None or saved.mark != self.current.mark:
                raise _Gone

    @contextmanager
    def _acting(self) -> Iterator[None]:
        """Hold the bundle's lock while something is started or stopped."""
        with state.exclusive(self.own):
            self._check_ours()
            yield

    def _save(self, current: State) -> None:
        state.save(self.own, current)
        self.current = current

    def _note_keeper(self) -> None:
        """Write who keeps, for ``status`` and ``down``."""
        end = time.monotonic() + _NOTED_S
        while True:
            try:
                with state.exclusive(self.own):
                    saved = state.load(self.own)
                    if saved is None or saved.mark != self.current.mark:
                        hint = "Start it with `up`."
                        raise StartError("nothing runs that could be kept.", hint=hint)
                    self._save(replace(saved, keeper=keeping.me(self.metrics_port)))
                return
            except BusyError:
                if time.monotonic() > end:
                    raise
                time.sleep(_NAP_S)
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
                self.roll(keeping.requested(self.own).get("restart"))
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

    def _judge(self, group: int, seen: Seen) -> None:
        now, before = time.monotonic(), self.tracks[group]
        track, trouble = decide.judge(before, seen, now, self.limits, self.target)
        if trouble is not None:
            self._trouble(group, track, trouble, seen)
            return
        self.tracks[group] = track
        if before.phase is Phase.STARTING and track.phase is Phase.SERVING:
            spent = now - before.since
            self._event("ready", group, after_s=round(spent, 3))
            self.progress.say(f"{self._name(group)} is ready after {spent:.1f} s")
        if track.phase is Phase.SERVING:
            self._admit(group)
            if not self.current.ready and all(t.phase is Phase.SERVING for t in self._all()):
                with self._acting():
                    self._save(replace(self.current, ready=True))
                notify.ready(self._summary())

    def _trouble(self, group: int, track: Track, trouble: Trouble, seen: Seen) -> None:
        """Note what is wrong with a group, and do something about it."""
        with self._acting():
            diagnosis = self._diagnose(group, track, trouble, seen)
            cause, kind = _cause(trouble, diagnosis), _event_of(trouble)
            detail = {"reason": trouble.reason, "cause": cause, "title": diagnosis.title}
            self._event(kind, group, **detail, lines=list(diagnosis.lines), fix=diagnosis.fix)
            self.progress.say(f"{self._name(group)} {kind}: {trouble.reason} ({diagnosis.title})")
            misfit = None
            if trouble.kind is not Kind.SLOW:
                misfit = self.machine.misfit_now(self.plan, self.options)
            if misfit:
                self._event("device_lost", group, reason=misfit)
                self.progress.say(f"the machine is smaller than planned: {misfit}")
            track, step = decide.respond(
                track,
                trouble,
                time.monotonic(),
                self.limits,
                lasting=not diagnosis.transient,
                misfit=misfit is not None,
                others_serve=self._serves(without=group),
                jitter=self.chance.random(),
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
        supervisor.stop_group(self.plan, self.current, group)
        parked = tuple(
            sorted({*self.current.parked} | {group} if step is Step.PARK else self.current.parked)
        )
        self.tracks[group] = track
        self._save(self._without(group, parked=parked))
        if step is Step.LEAVE:
            self._leave_choice(cause, diagnosis, misfit)
        elif step is Step.PARK:
            self._event("gave_up", group, cause=cause, reason=misfit or diagnosis.title)
            self.progress.say(f"{self._name(group)} stays down, others serve; {diagnosis.fix}")
        else:
            pause = track.until - track.since
            self._event("restart", group, cause=cause, attempt=track.attempt, in_s=round(pause, 3))
            self.progress.say(f"{self._name(group)} restarts in {pause:.1f} s")

    def _diagnose(self, group: int, track: Track, trouble: Trouble, seen: Seen) -> Diagnosis:
        """The cause, from the log of what ended first, or of the group's first process."""
        names = seen.ended or tuple(p.name for p in self.plan.processes if p.group == group)
        logs = {server.name: server.log for server in self.current.servers}
        texts = [self._log(Path(logs[name])) for name in names if name in logs]
        code = next((code for code in seen.codes if code is not None), None)
        return diagnose(
            "\n".join(texts),
            code,
            kernel="oom_kill 1" if trouble.kind is Kind.KILLED else "",
            ready=track.phase is not Phase.STARTING,
        )

    def _log(self, path: Path) -> str:
        """The end of a log, without the lines that the keeper's own questions left in it."""
        own = (f"GET {self.plan.health} ", "GET /metrics ", "GET /prometheus/metrics ")
        lines = tail(path, _LOG_BYTES, limit=_LOG_BYTES).splitlines()
        others = [line for line in lines if not any(words in line for words in own)]
        return "\n".join(others[-_LOG_LINES:])

    def _without(self, group: int, **changes: Any) -> State:
        names = {process.name for process in self.plan.processes if process.group == group}
        servers = tuple(s for s in self.current.servers if s.name not in names)
        return replace(self.current, servers=servers, ready=False, **changes)

    def _start(self, group: int) -> None:
        """Start a group that rested."""
        before = self.tracks[group]
        with self._acting():
            supervisor.stop_group(self.plan, self.current, group)  # what a killed start left
            parked = tuple(one for one in self.current.parked if one != group)
            self._start_now(replace(self.current, parked=parked), group, before)

    def _start_now(self, current: State, group: int, before: Track | None) -> None:
        now = time.monotonic()
        timeout = self.plan.startup_timeout_s
        try:
            current = replace(current, restarts=current.restarts + (before is not None))
            self.current = supervisor.start_group(self.plan, current, group)
        except StartError as error:
            self.current = state.load(self.own) or current
            self._not_started(group, decide.starting(now, timeout, before), error)
            return
        self.tracks[group] = decide.starting(now, timeout, before)
        self._event("start", group, choice=self.plan.choice)

    def _not_started(self, group: int, track: Track, error: StartError) -> None:
        """A program that cannot be started at all."""
        hint = error.hint or ""
        diagnosis = Diagnosis("program", error.message.rstrip("."), (), hint, False, False)
        self._event("died", group, cause="program", reason=error.message, fix=hint)
        trouble = Trouble(Kind.DIED, error.message)
        track, step = decide.respond(
            track,
            trouble,
            time.monotonic(),
            self.limits,
            lasting=True,
            others_serve=self._serves(without=group),
            jitter=self.chance.random(),
        )
        self._answer(group, track, step, "program", diagnosis, None)

    # Choices

    def _may_leave(self) -> bool:
        """Whether another choice fits, as if nothing of this one ran."""
        if self.strict:
            return False
        here = self.machine.as_if_stopped(self.plan)
        tried = {*self.tried, self.plan.choice}
        return next_choice(self.options, here, tried=tried) is not None

    def _leave_choice(self, cause: str, diagnosis: Diagnosis, misfit: str | None) -> None:
        """Take the next choice that fits, or stop everything with the diagnosis.

        Raises:
            StartError: with the diagnosis, where no choice is left.
        """
        left = self.plan.choice
        if misfit is None:
            self.tried.add(left)
        supervisor.end(self.current, self.progress)
        following = None
        if not self.strict:
            tried = {*self.tried, left}
            following = next_choice(self.options, self.machine.detect(), tried=tried)
        if following is None:
            raise self._given_up(cause, diagnosis, misfit)
        if left == FIRST:
            self.machine.left_for_misfit = misfit is not None
        names = {"from": left, "to": following.name, "title": following.title}
        reason = misfit or diagnosis.title
        kind = "first_choice" if following.name == FIRST else "fallback"
        events.append(self.own, kind, **names, cause=cause, reason=reason)
        self.progress.say(
            f"taking {following.name} ({following.title}) instead of {left}: {reason}"
        )
        self._begin(following)

    def _given_up(self, cause: str, diagnosis: Diagnosis, misfit: str | None) -> StartError:
        """Stop everything; the error that says why."""
        reason = misfit or diagnosis.title
        fields = {"lines": list(diagnosis.lines), "fix": diagnosis.fix}
        events.append(self.own, "gave_up", cause=cause, reason=reason, **fields)
        supervisor.stop(self.own, self.current, progress=self.progress, recorded=True)
        return StartError(
            f"the servers cannot be kept up: {reason.rstrip('.')}.",
            hint=diagnosis.fix,
            detail="\n".join(diagnosis.lines),
        )

    def _begin(self, choice: Choice) -> None:
        """Start all groups of a choice; nothing else runs."""
        self.plan = choice.plan
        self.target = target(self.plan, choice.expected)
        self.tracks.clear()
        self.withdrawn.clear()
        self.rolling.clear()
        self.look = Look()
        began = replace(self.current, choice=choice.name, servers=(), ready=False, parked=())
        self._save(began)
        now = time.monotonic()
        for group in groups_of(self.plan):
            self.tracks[group] = decide.starting(now, self.plan.startup_timeout_s)
        for group in groups_of(self.plan):
            if self.plan is not choice.plan:  # one could not be started: it is left already
                return
            self._start_now(self.current, group, None)

    def _watch_machine(self) -> None:
        """Note lost and found devices; return to the first choice once it fits again."""
        kept = bool(self.current.parked) or self.plan.choice != FIRST
        for kind, reason in self.machine.look(self.plan, self.options, wanted=kept):
            events.append(self.own, kind, reason=reason)
            self.progress.say(f"{kind.replace('_', ' ')}: {reason}")
            if kind == "device_found":
                now = time.monotonic()
                for group, track in self.tracks.items():
                    if track.phase is Phase.PARKED:
                        self.tracks[group] = replace(track, until=now)
        if self.machine.first_fits and not self.rolling:
            with self._acting():
                self._quiesce(self.limits.drain_s, "the first choice fits again")
                if not self.asked:
                    first = next(one for one in self.options if one.name == FIRST)
                    names = {"from": self.plan.choice, "to": FIRST}
                    supervisor.end(self.current, self.progress)
                    events.append(self.own, "first_choice", **names, reason="it fits again")
                    self.progress.say(f"returning to the first choice from {self.plan.choice}")
                    self.machine.returned()
                    self._begin(first)
            self.refusing = ""

    def _forget(self) -> None:
        """After enough time of service, choices that failed may be tried again."""
        now = time.monotonic()
        stable = all(
            track.phase is Phase.SERVING and now - track.since >= self.limits.stable_s
            for track in self._all()
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
        self._tell()
        events.append(self.own, "drain", reason=reason, limit_s=limit_s)
        self.progress.say(f"{reason}: waiting up to {limit_s:.0f} s for running requests")
        routers = {p.name for p in self.plan.processes if p.role == "router"}
        leaving = [s.identity for s in self.current.servers if s.name in routers]
        procs.send(leaving, signal.SIGTERM)
        began, idle = time.monotonic(), 0
        while idle < _IDLE_LOOKS and time.monotonic() - began < limit_s and not self.asked:
            self.look = self.observer.look(self.plan, self.current.servers, self._active())
            idle = idle + 1 if all(self._is_idle(group) for group in self._active()) else 0
            self._tell()
            if idle < _IDLE_LOOKS:
                time.sleep(min(self.limits.poll_s, _NAP_S * 3))
        spent = round(time.monotonic() - began, 3)
        events.append(self.own, "drained", finished=idle >= _IDLE_LOOKS, after_s=spent)

    def _is_idle(self, group: int) -> bool:
        """Whether no request runs: by the engine's figures, else by open connections."""
        members = [p for p in self.plan.processes if p.group == group and p.answers]
        by_name = {server.name: server for server in self.current.servers}
        alive = [p for p in members if p.name in by_name and by_name[p.name].alive]
        for process in alive:
            figures = self.look.figures.get(process.name)
            if figures is not None and figures.running is not None:
                if figures.running or figures.waiting:
                    return False
            elif process.name in self.observer.published or connections([process.port]):
                return False
        return True

    def _stop_all(self) -> None:
        """Stop everything, unless another launcher is doing so."""
        with suppress(BusyError), self._acting():
            events.append(self.own, "stop")
            supervisor.stop(self.own, self.current, progress=self.progress, recorded=True)

    def roll(self, names: object) -> None:
        """Queue groups for a rolling restart: those of named processes, or every replica."""
        listed = names if isinstance(names, list) else []
        self.rolling = rolled_groups(self.plan, [str(name) for name in listed])
        self.idle = 0

    def _roll(self) -> None:
        """One step of a rolling restart: one group is drained, restarted and awaited at a time."""
        if not self.rolling or time.monotonic() < self.settled_at:
            return
        group, now = self.rolling[0], time.monotonic()
        track = self.tracks[group]
        if track.phase in (Phase.RESTING, Phase.PARKED):
            self._event("restart", group, cause="requested", finished=False)
            self.progress.say(f"{self._name(group)} did not come back: the rest runs on as it is")
            self.rolling.clear()
        elif track.phase is Phase.DRAINING:
            self._roll_drained(group, track, now)
        elif self.idle < 0:  # it was restarted
            if track.phase is Phase.SERVING and group not in self.withdrawn:
                self.rolling.pop(0)
                self.idle = 0
                self.settled_at = now + (_BLIND_ROUTER_S if self._blind and self.rolling else 0.0)
        elif all(other.phase is Phase.SERVING for other in self._all()):
            routed = any(process.role == "router" for process in self.plan.processes)
            taken = balancer.withdraw(self.plan, group)
            self._blind = routed and not taken
            if taken:
                self.withdrawn[group] = taken
            self._event("drain", group, limit_s=self.limits.drain_s)
            self.tracks[group] = replace(
                track, phase=Phase.DRAINING, since=now, until=now + self.limits.drain_s
            )

    def _roll_drained(self, group: int, track: Track, now: float) -> None:
        self.idle = self.idle + 1 if self._is_idle(group) else 0
        if self.idle < _IDLE_LOOKS and now < track.until:
            return
        with self._acting():
            self._event("drained", group, finished=self.idle >= _IDLE_LOOKS)
            self._event("restart", group, cause="requested")
            self.causes["requested"] = self.causes.get("requested", 0) + 1
            self.progress.say(f"{self._name(group)} is restarted on request")
            supervisor.stop_group(self.plan, self.current, group)
            self.idle = -1
            fresh = replace(track, failures=(), attempt=0)
            self._start_now(self.current, group, fresh)

    def _admit(self, group: int) -> None:
        """Put a group that serves again back behind the router."""
        workers = self.withdrawn.get(group)
        if workers and balancer.admit(self.plan, workers):
            del self.withdrawn[group]

    # What is told

    def _all(self) -> list[Track]:
        return list(self.tracks.values())

    def _name(self, group: int) -> str:
        names = [process.name for process in self.plan.processes if process.group == group]
        return names[0] if names else f"group {group}"

    def _event(self, kind: str, group: int, **fields: object) -> None:
        events.append(self.own, kind, group=group, name=self._name(group), **fields)

    def _roles(self, without: int | None = None) -> list[tuple[str, bool]]:
        roles = {p.group: p.role for p in reversed(self.plan.processes) if p.role != "worker"}
        serving = (Phase.SERVING, Phase.DRAINING)
        return [
            (roles.get(group, "server"), group != without and track.phase in serving)
            for group, track in self.tracks.items()
        ]

    def _serves(self, *, without: int | None = None) -> bool:
        return decide.serves(self._roles(without))

    def _summary(self) -> str:
        well = sum(track.phase is Phase.SERVING for track in self._all())
        text = f"{well} of {len(self.tracks)} groups serve, choice {self.plan.choice}"
        return f"{self.refusing}; {text}" if self.refusing else text

    def _count_tokens(self) -> None:
        """Sum the engines' counters over their restarts, at which they begin at nothing."""
        for group, seen in self.look.seen.items():
            if seen.tokens is not None:
                before, last = self.tokens.get(group, (0.0, 0.0))
                before += last if seen.tokens < last else 0.0
                self.tokens[group] = before, seen.tokens

    def _tell(self) -> None:
        notify.status(self._summary())
        notify.watchdog()

    def _export(self) -> None:
        """Serve ``/healthz`` and ``/metrics``; where the port is taken, try again later."""
        now = time.monotonic()
        if self._exporter is not None or self.metrics_port is None or now < self._exports_at:
            return
        try:
            self._exporter = Exporter("127.0.0.1", self.metrics_port, self.snapshot)
        except LauncherError as error:
            if not self._exports_at:
                self.progress.say(str(error))
            self._exports_at = now + 30 * self.limits.poll_s

    def snapshot(self) -> Snapshot:
        """What the exporter shows."""
        look, tracks = self.look, self._all()
        figures = list(look.figures.values())
        paces = [pace for track in tracks if (pace := decide.tpot_s(track)) is not None]
        serves = self._serves()
        down = "" if serves else f"not serving: {self._summary()}"
        return Snapshot(
            up=serves and not self.refusing,
            reason=self.refusing or down,
            name=self.plan.name,
            choice=self.plan.choice,
            restarts=dict(self.causes),
            servers={p.name: look.healthy.get(p.name, False) for p in self.plan.answering},
            tokens=sum(map(sum, self.tokens.values())) if self.tokens else None,
            running=_total([one.running for one in figures]),
            waiting=_total([one.waiting for one in figures]),
            cache_usage=max((f.cache_usage for f in figures if f.cache_usage), default=None),
            tpot_s=max(paces, default=None),
            predicted_tpot_s=self.target.tpot_s,
        )


def groups_of(plan: LaunchPlan) -> list[int]:
    """The groups of a plan, in the order that they start in."""
    return list(dict.fromkeys(process.group for process in plan.processes))


def rolled_groups(plan: LaunchPlan, names: Sequence[str]) -> list[int]:
    """The groups of named processes; without names every group but the routers."""
    chosen = [p for p in plan.processes if (p.name in names if names else p.role != "router")]
    return list(dict.fromkeys(process.group for process in chosen))


def _total(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _event_of(trouble: Trouble) -> str:
    """A start that takes too long hangs."""
    return "hung" if trouble.kind is Kind.LATE else trouble.kind.value


def _cause(trouble: Trouble, diagnosis: Diagnosis) -> str:
    """The cause's id: what the log shows, else the kind of trouble."""
    if trouble.kind is Kind.SLOW:
        return "slow"
    if trouble.kind in (Kind.HUNG, Kind.LATE) and diagnosis.cause in _UNKNOWN:
        return "hang"
    return diagnosis.cause
