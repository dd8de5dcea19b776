"""What to do about a training run: no clock, no file, no process in here.

``judge_run`` says whether a look at the run shows trouble, ``respond_for_run`` what to do about it.
Limits are those of serving (module ``supervision``), and a few of training alone.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path

from . import events, report, running, supervisor
from .decide import backoff_s
from .diagnosis import Diagnosis, diagnose, failure_text
from .metrics import metrics_file, planned_steps, read_steps
from .plan import LaunchPlan
from .sections import Supervision
from .state import State
from .supervisor import Progress
from .world import HERE, World

# Usual step times without a step or a growing checkpoint that are a hang.
HANG_STEPS = 20.0


class Kind(Enum):
    """What happened to a run."""

    FINISHED = "finished"
    STOPPED = "stopped"  # as somebody asked, with a checkpoint
    DIED = "died"
    KILLED = "killed"  # by the kernel, for want of memory
    HUNG = "hung"
    ROLLED_BACK = "rolled_back"  # by the trainer, as the loss broke
    REFUSED = "refused"  # by the trainer: a person has to change something


@dataclass(frozen=True, slots=True)
class Seen:
    """One look at a run.

    ``code``: the exit code of the first process that failed, else 0; None where it is not known.
    ``end_code``: as the trainer recorded it. ``step``: the newest; ``growth``: bytes of what it
    writes beside. ``usual_s``: a step's time; None for a run without a record, or before its first
    steps. ``complete``: the last step is done and the model written.
    """

    alive: bool
    code: int | None = None
    end_code: int | None = None
    out_of_memory: bool = False
    step: int = 0
    growth: int = 0
    usual_s: float | None = None
    complete: bool = False


@dataclass(frozen=True, slots=True)
class Track:
    """What is remembered of a run; times on one monotonic clock, in seconds.

    ``first``: the step at the last start, ``moved_at``: when it last showed progress. ``proven``:
    some start made a step. ``failures``: times within the window; ``attempt``: restarts since it
    was last stable. ``stuck``: failures since there was a newer checkpoint than ``saved``.
    """

    since: float
    first: int
    step: int
    moved_at: float
    growth: int = -1
    proven: bool = False
    failures: tuple[float, ...] = ()
    attempt: int = 0
    stuck: int = 0
    saved: int = -1


@dataclass(frozen=True, slots=True)
class Trouble:
    """What happened, in words."""

    kind: Kind
    reason: str


class Action(Enum):
    """What to do."""

    END = "end"  # it is done, or was stopped
    RESTART = "restart"
    LEAVE = "leave"  # this choice: take the next one, or stop
    STOP = "stop"  # no choice would help


def track_started_run(now: float, step: int, before: Track | None = None) -> Track:
    """A run that was just started at ``step``; it keeps what counts against it."""
    if before is None:
        return Track(now, step, step, now, proven=step > 0)
    return replace(before, since=now, first=step, step=step, moved_at=now, growth=-1)


def judge_run(
    track: Track, observation: Seen, now: float, limits: Supervision, start_s: float
) -> tuple[Track, Trouble | None]:
    """The track after a look, and the trouble that the look shows.

    ``start_s``: how long loading may take, and saving the model, and silence where no step's time
    is known.
    """
    if observation.step != track.step or observation.growth != track.growth:
        track = replace(
            track,
            proven=track.proven or observation.step > track.first,
            step=observation.step,
            growth=observation.growth,
            moved_at=now,
        )
    if not observation.alive:
        return track, _run_end_trouble(observation)
    if track.attempt and now - track.since >= limits.stable_s:
        track = replace(track, attempt=0)
    limit = patience_s(observation, track, limits, start_s)
    if now - track.moved_at < limit:
        return track, None
    reason = f"no step and no growing checkpoint for {now - track.moved_at:.0f} s"
    if observation.usual_s is not None:
        reason += f"; a step takes {observation.usual_s:.3g} s"
    return track, Trouble(Kind.HUNG, reason)


def patience_s(observation: Seen, track: Track, limits: Supervision, start_s: float) -> float:
    """Seconds without progress that are a hang."""
    if observation.usual_s is None or observation.step <= track.first or observation.complete:
        return max(start_s, limits.hang_s)
    return max(limits.hang_s, HANG_STEPS * observation.usual_s)


def _run_end_trouble(observation: Seen) -> Trouble:
    if observation.end_code == 3:
        return Trouble(Kind.ROLLED_BACK, "the loss broke")
    if observation.end_code == 2:
        return Trouble(Kind.REFUSED, "the trainer refuses to go on")
    if observation.complete and not observation.code:
        return Trouble(Kind.FINISHED, "all steps are done")
    if observation.code == 0:
        return Trouble(Kind.STOPPED, "the run ended by itself, without an error")
    if observation.out_of_memory:
        return Trouble(Kind.KILLED, "the kernel killed for want of memory")
    if observation.code is None:
        return Trouble(Kind.DIED, "ended; its exit code is not known")
    ending = (
        f"signal {-observation.code}" if observation.code < 0 else f"exit code {observation.code}"
    )
    return Trouble(Kind.DIED, f"ended with {ending}")


def respond_for_run(
    track: Track,
    trouble: Trouble,
    now: float,
    limits: Supervision,
    *,
    checkpoint: int,
    lasting: bool = False,
    cause_known: bool = True,
    misfit: bool = False,
) -> tuple[Track, Action]:
    """What to do about trouble, and the track from then on.

    ``checkpoint``: the step of the newest. ``lasting``: a restart does not cure its cause;
    ``cause_known``: its cause is a known one; ``misfit``: the machine cannot hold the choice any
    more.
    """
    if trouble.kind in (Kind.FINISHED, Kind.STOPPED):
        return track, Action.END
    if trouble.kind is Kind.REFUSED:
        return track, Action.STOP
    if trouble.kind is Kind.ROLLED_BACK:
        return track, Action.RESTART  # the trainer counts these, and refuses at last
    stuck = track.stuck + 1 if checkpoint <= track.saved else 1
    failures = (*(at for at in track.failures if now - at < limits.window_s), now)
    track = replace(track, failures=failures, stuck=stuck, saved=max(checkpoint, track.saved))
    # What has trained once was started with the right options; what never did is not tried again,
    # unless its cause is known to pass.
    hopeless = not track.proven and (lasting or not cause_known)
    if misfit or hopeless or max(len(failures), stuck) > limits.crash_budget:
        return track, Action.LEAVE
    return replace(track, attempt=track.attempt + 1), Action.RESTART


def rest_s(track: Track, limits: Supervision, jitter: float) -> float:
    """Seconds before the restart that was just decided."""
    return backoff_s(max(0, track.attempt - 1), limits, jitter)


def forgiven(track: Track) -> Track:
    """The track of another choice: what counted against the last does not count against it."""
    return replace(track, failures=(), attempt=0, stuck=0, proven=False)


def waited(track: Track, now: float, limits: Supervision) -> tuple[Track, bool]:
    """Count a wait for lost devices; whether it is worth another."""
    failures = (*(at for at in track.failures if now - at < limits.window_s), now)
    waits = replace(track, failures=failures, attempt=track.attempt + 1)
    return waits, len(failures) <= limits.crash_budget


_LOG_LINES = 400
# A line of the summary in which torchrun names the first rank that failed.
_RANK_ENDED = re.compile(r"exitcode\s*:\s*(-?\d+)\s*\(pid")
# Diagnoses that name no cause.
_GENERIC = frozenset({"unknown", "exception", "worker-died"})


class Observer:
    """Looks at one run, whatever it is started with; tells every step after ``shown``, if any."""

    def __init__(
        self, plan: LaunchPlan, progress: Progress, shown: int | None, *, world: World = HERE
    ) -> None:
        self.progress, self.shown, self.world = progress, shown, world
        rollbacks = [
            event for event in events.read_events(plan.own) if event["event"] == "rollback"
        ]
        self.rollbacks = {event.get("recorded") for event in rollbacks}
        self.counts: dict[str, int] = {}
        self.kills = 0

    def started(self, current: State, step: int) -> None:
        """The run was started, and goes on after ``step``."""
        self.counts, self.kills = self._oom_kills(current), 0
        if self.shown is not None:
            self.shown = min(self.shown, step)

    def look(self, plan: LaunchPlan, current: State) -> Seen:
        """What the run shows now; steps and rollbacks are told on the way."""
        alive = supervisor.lives(current, world=self.world) and all(
            self.world.processes.alive(*server.identity) for server in current.servers
        )
        self._tell_steps(plan)
        self._tell_rollbacks(plan)
        self._count_kills(current)
        end, model = running.read_trainer_end(plan), (plan.run / "model").is_dir()
        return Seen(
            alive=alive,
            code=exit_code(current, world=self.world),
            end_code=end.code if end else None,
            out_of_memory=self.kills > 0,
            step=running.step_of_start(plan),
            growth=running.growth(plan),
            usual_s=running.usual_step_s(plan),
            complete=model and running.finished(plan),
        )

    def _tell_steps(self, plan: LaunchPlan) -> None:
        if self.shown is None:
            return
        newest = running.step_of_start(plan)
        for step in read_steps(metrics_file(plan)):
            if self.shown < step.number <= newest:
                self.shown = step.number
                self.progress.say(report.step_line(step, planned_steps(plan)))

    def _tell_rollbacks(self, plan: LaunchPlan) -> None:
        """Note new ones, also those that torchrun answered with a restart of its own."""
        names = ("kind", "first", "last", "loss", "usual", "checkpoint", "skipped")
        for rollback in running.read_rollbacks(plan):
            if rollback.get("time") in self.rollbacks:
                continue
            self.rollbacks.add(rollback.get("time"))
            fields = {name: rollback.get(name) for name in names}
            events.append(plan.own, "rollback", recorded=rollback.get("time"), **fields)
            places = f"at step {rollback.get('first')}: back to step {rollback.get('checkpoint')}"
            self.progress.say(f"the loss broke {places}")

    def _oom_kills(self, current: State) -> dict[str, int]:
        return self.world.oom_kills([server.pid for server in current.servers])

    def _count_kills(self, current: State) -> None:
        before, self.counts = self.counts, self._oom_kills(current)
        self.kills += sum(
            max(0, count - before.get(place, count)) for place, count in self.counts.items()
        )

    def diagnosis(self, plan: LaunchPlan, current: State, *, proven: bool) -> Diagnosis:
        """Why the run ended, from its log and the kernel's counters."""
        text = failure_text(log_of(plan, current), _LOG_LINES)
        ranks = [int(code) for code in _RANK_ENDED.findall(text)]
        code = next(iter(ranks), exit_code(current, world=self.world))
        kernel = f"oom_kill {self.kills}" if self.kills else ""
        return diagnose(text, code, kernel=kernel, ready=proven)


def names_a_cause(diagnosis: Diagnosis) -> bool:
    return diagnosis.cause not in _GENERIC


def exit_code(current: State, *, world: World = HERE) -> int | None:
    """The first exit code that is not 0, else 0; None where none is known."""
    codes = supervisor.exit_codes(current, world=world)
    return next((code for code in codes if code), codes[0] if codes else None)


def log_of(plan: LaunchPlan, current: State) -> Path:
    """The log of the run here."""
    names = [server.log for server in current.servers]
    return Path(names[0]) if names else plan.own / f"{plan.processes[0].name}.log"
