"""Recovery of groups in trouble: a restart, a rest, another choice, or the end.

A probe looks (``serving_probe``, ``run_probe``), ``tracks`` says what is to be done; this module
does it and notes it (``events.jsonl``), while it holds the bundle's lock.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace

from . import events, state, supervisor, tracks
from .choices import Choice, list_launch_choices, next_choice
from .diagnosis import Diagnosis, with_lost_device
from .errors import LauncherError, PreflightError, StartError
from .groups import Groups, groups_of
from .heartbeat import notify_ready
from .limits import Supervision
from .machine_watch import MachineWatch
from .plan import FIRST, LaunchPlan
from .rolling import Rolling
from .run_probe import RunProbe
from .serving_probe import ServingProbe
from .starts import passed_preflight
from .state import State
from .supervisor import Progress
from .tracks import Kind, Phase, Step, Track, Trouble
from .world import HERE, World

_UNKNOWN = ("unknown", "exception", "crashed")
# Checks before a start that may pass by waiting.
_PASSING = ("port", "head")


@dataclass(frozen=True, slots=True)
class Case:
    """The trouble of a group, and why the machine cannot hold the choice any more, if so."""

    group: int
    trouble: Trouble
    diagnosis: Diagnosis
    misfit: str | None = None

    @property
    def cause(self) -> str:
        """The cause's id: what the log shows, else the kind of trouble."""
        if self.trouble.kind is Kind.SLOW:
            return "slow"
        if self.trouble.kind in (Kind.HUNG, Kind.LATE) and self.diagnosis.cause in _UNKNOWN:
            return "hang"
        return self.diagnosis.cause


class Recovery(Groups):
    """The groups that ``current`` records of ``plan``, kept up within ``limits``.

    ``strict``: no fallback is taken. Of a run, steps after ``shown`` are told, and ``checked``
    raises where a check before a start fails.

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
        self.tried: set[str] = set()
        self.awaited: Case | None = None  # for which devices are lost
        self.asked: list[int] = []
        self.probe = RunProbe(self, shown, checked) if self.trains else ServingProbe(self)
        now = self.clock.monotonic()
        self.tracks = {group: self.probe.adopt_track(now) for group in groups_of(plan)}
        self.rolling = Rolling(self)

    # Trouble

    def judge(self, group: int) -> str:
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
            case = Case(group, trouble, self.probe.diagnose(group, track, trouble))
            self.tracks[group] = track
            self._note_trouble(case)
            if self.trains:  # what it still holds of the machine is not counted
                self.stop_group(group)
            misfit = None
            if trouble.kind is not Kind.SLOW:
                misfit = self.machine.misfit_now(self.plan, stopped=self.trains)
            if misfit:
                self.event("device_lost", group, reason=misfit, choice=self.plan.choice)
                self.progress.say(f"the machine is smaller than planned: {misfit}")
                diagnosis = with_lost_device(case.diagnosis)
                case = replace(case, diagnosis=diagnosis, misfit=misfit)
            self._respond(case, track)
        return ""

    def _note_trouble(self, case: Case) -> None:
        trouble, diagnosis = case.trouble, case.diagnosis
        if trouble.kind is Kind.ROLLED_BACK:
            return  # it has an event of its own
        names = {Kind.LATE: Kind.HUNG, Kind.REFUSED: Kind.DIED}
        kind = names.get(trouble.kind, trouble.kind).value
        about = {"reason": trouble.reason, "cause": case.cause, "title": diagnosis.title}
        more = {"lines": list(diagnosis.lines), "fix": diagnosis.fix, **self.probe.facts()}
        self.event(kind, case.group, **about, **more)
        self.progress.say(f"{self.name(case.group)} {kind}: {trouble.reason} ({diagnosis.title})")

    def _respond(self, case: Case, track: Track) -> None:
        """Do what follows from trouble: the lock is held.

        Raises:
            StartError: with the diagnosis, where nothing is left to be tried.
        """
        group, cause, diagnosis = case.group, case.cause, case.diagnosis
        track, step = tracks.respond(
            track,
            case.trouble,
            self.clock.monotonic(),
            self.limits,
            lasting=self.probe.is_lasting(diagnosis),
            misfit=case.misfit is not None,
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
        self.stop_group(group, self.probe.hung_grace_s if cause == "hang" else supervisor.GRACE_S)
        parked = {*self.current.parked, group} if step is Step.PARK else self.current.parked
        self.save(self.without(group, parked=tuple(sorted(parked))))
        if step is Step.STOP:
            raise self._give_up(case)
        if step is Step.LEAVE:
            self._leave_choice(case)
        elif step is Step.PARK:
            self.event("gave_up", group, cause=cause, reason=case.misfit or diagnosis.title)
            self.progress.say(f"{self.name(group)} stays down, others serve; {diagnosis.fix}")
        else:
            self.probe.note_rest(group, cause, track)
            self.progress.say(f"{self.name(group)} restarts in {track.until - track.since:.1f} s")

    # Starts

    def start_again(self, group: int) -> None:
        before = self.tracks[group]
        with self.acting():
            self.stop_group(group)  # what a killed start left
            if self.awaited and self._still_misfits():
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
            misfit = self.machine.misfit_now(self.plan, stopped=True)
        diagnosis = Diagnosis(name, error.message.rstrip("."), (), hint, passing, device=False)
        self.event(kind, group, cause=name, reason=error.message, fix=hint)
        track = replace(track, proven=track.proven and passing)
        self._respond(Case(group, Trouble(Kind.DIED, error.message), diagnosis, misfit), track)

    # Choices

    def _may_leave(self) -> bool:
        """Return whether another choice fits, as if nothing of this one ran."""
        machine = self.machine.as_if_stopped(self.plan)
        tried = {*self.tried, self.plan.choice}
        return not self.strict and next_choice(self.options, machine, tried=tried) is not None

    def _leave_choice(self, case: Case) -> None:
        """Take the next choice that fits, wait for lost devices, or stop with the diagnosis.

        Raises:
            StartError: with the diagnosis, where no choice is left.
        """
        left_name, following = self.plan.choice, None
        if case.misfit is None:
            self.tried.add(left_name)
        self.machine.leave_choice(left_name, for_misfit=case.misfit is not None)
        supervisor.end_processes(self.current, self.progress, world=self.world)
        if not self.strict:
            tried = {*self.tried, left_name}
            following = next_choice(self.options, self.machine.detect(), tried=tried)
        if following is None:
            if case.misfit and self.trains and self._waits(case):
                return
            raise self._give_up(case)
        reason = case.misfit or case.diagnosis.title
        self.progress.say(
            f"taking {following.name} ({following.title}) instead of {left_name}: {reason}"
        )
        self.begin(following, cause=case.cause, reason=reason)

    def _waits(self, case: Case) -> bool:
        """Wait for lost devices, which counts as a failure; whether it is worth that."""
        jitter, now = self.world.chance.random(), self.clock.monotonic()
        track, step = tracks.respond(
            self.tracks[case.group], Trouble(Kind.DIED, ""), now, self.limits, jitter=jitter
        )
        if step is not Step.RESTART:
            return False
        self.progress.say("no choice fits what is left of the machine; waiting for it")
        self.tracks[case.group], self.awaited = track, case
        return True

    def _still_misfits(self) -> bool:
        """Return whether devices that are waited for are still lost, which is one more wait."""
        awaited, self.awaited = self.awaited, None
        misfit = self.machine.misfit_now(self.plan, stopped=True)
        if misfit is None or awaited is None:
            return False
        self._leave_choice(replace(awaited, misfit=misfit))
        return True

    def _give_up(self, case: Case) -> StartError:
        """Stop everything; the error that says why."""
        error = self.probe.give_up(case)
        self._stop()
        return error

    def begin(self, choice: Choice, **about: object) -> None:
        """Start all groups of a choice, and note why it is taken; nothing else runs."""
        kind = "first_choice" if choice.name == FIRST else "fallback"
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

    # Stops

    def stop_group(self, group: int, grace_s: float = supervisor.GRACE_S) -> None:
        """End what runs of a group: the lock is held."""
        supervisor.stop_group(self.plan, self.current, group, grace_s=grace_s, world=self.world)

    def _stop(self) -> None:
        supervisor.stop(
            self.own, self.current, progress=self.progress, recorded=True, world=self.world
        )
