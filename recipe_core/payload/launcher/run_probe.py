"""The probe of a training run: steps, growing checkpoints, ends, rollbacks.

The trainer resumes from its newest checkpoint by itself, with another split of the same model too;
where the loss broke it has gone back before that, and recorded what it leaves out since (module
``trainer.rollbacks``).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import events, report, run_record, supervisor
from .diagnosis import Diagnosis, diagnose, failure_text
from .errors import StartError
from .files import tail
from .health import Look, Target
from .limits import Supervision
from .plan import LaunchPlan
from .run_record import metrics_file, planned_steps, read_steps
from .starts import passed_preflight
from .state import State
from .supervisor import Progress
from .tracks import Kind, Phase, Track, Trouble, forget_failures, track_start
from .world import HERE, World

if TYPE_CHECKING:
    from .recovery import Case, Recovery

# Usual step times without a step or a growing checkpoint that are a hang.
HANG_STEPS = 20.0
# A checkpoint of a large model takes minutes.
END_S = 600.0
_NAP_S = 0.1
_LOG_LINES = 400
# A line of the summary in which torchrun names the first rank that failed.
_RANK_ENDED = re.compile(r"exitcode\s*:\s*(-?\d+)\s*\(pid")
# Diagnoses that name no cause.
_GENERIC = frozenset({"unknown", "exception", "worker-died"})


@dataclass(frozen=True, slots=True)
class RunSeen:
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


def judge_run(
    track: Track, observation: RunSeen, now: float, limits: Supervision, start_s: float
) -> tuple[Track, Trouble | None]:
    """The track after a look, and the trouble that the look shows.

    ``start_s``: how long loading may take, and saving the model, and silence where no step's time
    is known.
    """
    if observation.step != track.step or observation.growth != track.growth:
        track = replace(track, step=observation.step, growth=observation.growth, moved_at=now)
        if track.phase is Phase.STARTING and observation.step > track.first:
            track = replace(track, phase=Phase.SERVING, since=now, until=float("inf"), proven=True)
    if not observation.alive:
        return track, _run_end_trouble(observation)
    if track.phase is Phase.SERVING:
        track = forget_failures(track, now, limits)
    limit = patience_s(observation, track, limits, start_s)
    if now - track.moved_at < limit:
        return track, None
    reason = f"no step and no growing checkpoint for {now - track.moved_at:.0f} s"
    if observation.usual_s is not None:
        reason += f"; a step takes {observation.usual_s:.3g} s"
    return track, Trouble(Kind.HUNG, reason)


def patience_s(observation: RunSeen, track: Track, limits: Supervision, start_s: float) -> float:
    """Seconds without progress that are a hang."""
    if observation.usual_s is None or observation.step <= track.first or observation.complete:
        return max(start_s, limits.hang_s)
    return max(limits.hang_s, HANG_STEPS * observation.usual_s)


def _run_end_trouble(observation: RunSeen) -> Trouble:
    if observation.end_code == run_record.ROLLED_BACK:
        return Trouble(Kind.ROLLED_BACK, "the loss broke")
    if observation.end_code == run_record.FOR_A_PERSON:
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


class RunProbe:
    """Looks at the run of a keeper; tells every step after ``shown``, if any.

    ``checked`` raises where a check before a start fails.
    """

    trains = True
    hung_grace_s = supervisor.GRACE_S
    # Of servers, of which a run has none.
    look, target = Look(), Target()

    def __init__(
        self,
        keeper: Recovery,
        shown: int | None = None,
        checked: Callable[[LaunchPlan, Progress], object] = passed_preflight,
    ) -> None:
        self.keeper, self.world, self.clock = keeper, keeper.world, keeper.clock
        self.shown, self.checked = shown, checked
        records = events.read_events(keeper.own)
        self.rollbacks = {e.get("recorded") for e in records if e["event"] == "rollback"}
        self.counts: dict[str, int] = {}
        self.kills, self.seen = 0, RunSeen(alive=True)
        self._found_at: int | None = None
        """The step of the newest checkpoint when the devices of an earlier choice came back."""

    def close(self) -> None:
        """Nothing looks in the background."""

    def begin(self, _expected: Path) -> None:
        """Look at the keeper's plan from now on."""
        self._found_at = None

    def adopt_track(self, now: float) -> Track:
        """A run that another launcher started."""
        step = run_record.start_step(self.keeper.plan)
        self._follow(step)
        track = track_start(now, self.keeper.plan.startup_timeout_s, step=step)
        return replace(track, proven=step > 0)

    def start_track(self, now: float, before: Track | None = None) -> Track:
        step = run_record.start_step(self.keeper.plan)
        track = track_start(now, self.keeper.plan.startup_timeout_s, before, step=step)
        # What has trained once was started with the right options, in every later start too.
        return replace(track, proven=before is not None and before.proven)

    def prepare(self) -> None:
        """Check the machine, and note from which step a start goes on.

        Raises:
            PreflightError: when a check fails.
            LauncherError: where nothing can be written.
        """
        self.checked(self.keeper.plan, Progress(quiet=True))
        run_record.note_start(self.keeper.plan)

    def note_start(self, group: int, cause: str) -> None:
        keeper, step = self.keeper, self.keeper.tracks[group].step
        keeper.save(replace(keeper.current, ready=True))  # it has nothing to wait for
        self._follow(step)
        size, count = run_record.world_size(keeper.plan), keeper.current.restarts
        about = {"count": count, "choice": keeper.plan.choice, "world_size": size}
        events.append(keeper.own, "restart", cause=cause, step=step, **about)

    def _follow(self, step: int) -> None:
        """The run goes on after ``step``."""
        self.counts, self.kills = self._oom_kills(), 0
        if self.shown is not None:
            self.shown = min(self.shown, step)

    def note_rest(self, group: int, cause: str, track: Track) -> None:
        """A restart is noted once it is done."""

    def facts(self) -> dict[str, Any]:
        """Return what events say beside."""
        (track,), choice = self.keeper.tracks.values(), self.keeper.plan.choice
        size = run_record.world_size(self.keeper.plan)
        return {"step": track.step, "choice": choice, "world_size": size}

    def checkpoint(self) -> int | None:
        return run_record.checkpoint_step(self.keeper.plan)

    def looked(self, **_: bool) -> list[int]:
        """Look at the run, unless it rests; steps and rollbacks are told on the way."""
        keeper, plan = self.keeper, self.keeper.plan
        if not (groups := keeper.active()):
            return []
        alive = supervisor.lives(keeper.current, world=self.world) and all(
            self.world.processes.alive(*server.identity) for server in keeper.current.servers
        )
        self._tell_steps()
        self._tell_rollbacks()
        before, self.counts = self.counts, self._oom_kills()
        self.kills += sum(max(0, n - before.get(place, n)) for place, n in self.counts.items())
        end, model = run_record.read_trainer_end(plan), (plan.run / "model").is_dir()
        self.seen = RunSeen(
            alive=alive,
            code=exit_code(keeper.current, world=self.world),
            end_code=end.code if end else None,
            out_of_memory=self.kills > 0,
            step=run_record.step_of_start(plan),
            growth=run_record.count_written_bytes(plan),
            usual_s=run_record.usual_step_s(plan),
            complete=model and run_record.has_finished(plan),
        )
        return groups

    def _oom_kills(self) -> dict[str, int]:
        return self.world.oom_kills([server.pid for server in self.keeper.current.servers])

    def _tell_steps(self) -> None:
        if self.shown is None:
            return
        plan = self.keeper.plan
        newest = run_record.step_of_start(plan)
        for step in read_steps(metrics_file(plan)):
            if self.shown < step.number <= newest:
                self.shown = step.number
                self.keeper.progress.say(report.step_line(step, planned_steps(plan)))

    def _tell_rollbacks(self) -> None:
        """Note new ones, also those that torchrun answered with a restart of its own."""
        names = ("kind", "first", "last", "loss", "usual", "checkpoint", "skipped")
        for rollback in run_record.read_rollbacks(self.keeper.plan):
            if rollback.get("time") in self.rollbacks:
                continue
            self.rollbacks.add(rollback.get("time"))
            fields = {name: rollback.get(name) for name in names}
            events.append(self.keeper.own, "rollback", recorded=rollback.get("time"), **fields)
            places = f"at step {rollback.get('first')}: back to step {rollback.get('checkpoint')}"
            self.keeper.progress.say(f"the loss broke {places}")

    def judge(self, _group: int, track: Track, now: float) -> tuple[Track, Trouble | None]:
        """The track after the last look, and the trouble that it shows."""
        keeper = self.keeper
        return judge_run(track, self.seen, now, keeper.limits, keeper.plan.startup_timeout_s)

    def diagnose(self, _group: int, track: Track, _trouble: Trouble) -> Diagnosis:
        """Say why the run ended, from its log and the kernel's counters."""
        keeper = self.keeper
        text = failure_text(log_of(keeper.plan, keeper.current), _LOG_LINES)
        ranks = [int(code) for code in _RANK_ENDED.findall(text)]
        code = next(iter(ranks), exit_code(keeper.current, world=self.world))
        kernel = f"oom_kill {self.kills}" if self.kills else ""
        return diagnose(text, code, kernel=kernel, ready=track.proven)

    def is_lasting(self, diagnosis: Diagnosis) -> bool:
        """Return whether a restart does not help: what never trained needs a passing cause."""
        return not diagnosis.transient or diagnosis.cause in _GENERIC

    def give_up(self, case: Case) -> StartError:
        """Note why the run cannot go on; the error that says so."""
        plan, current = self.keeper.plan, self.keeper.current
        trouble, diagnosis = case.trouble, case.diagnosis
        end = run_record.read_trainer_end(plan) if trouble.kind is Kind.REFUSED else None
        about = {"cause": case.cause, "title": diagnosis.title, "fix": diagnosis.fix}
        reason, name = trouble.reason, plan.processes[0].name
        if end is not None:
            reason = end.message
            about = {"cause": "refused", "title": "the trainer refuses to go on", "fix": reason}
        about |= self.facts() | {"restarts": current.restarts}
        events.append(
            self.keeper.own, "gave_up", reason=reason, lines=list(diagnosis.lines), **about
        )
        if end is not None:
            return StartError(f"{name} ended before its last step: {reason}")
        log = log_of(plan, current)
        hint = f"Diagnosis: {diagnosis.title}. {diagnosis.fix} The end of {log} follows."
        message = f"{name} ended before its last step: {reason}; it is not started again."
        return StartError(message, hint=hint, detail=tail(log))

    def is_idle(self, _group: int) -> bool:
        return False

    def may_return(self) -> bool:
        """Return whether an earlier choice may be taken now.

        A trainer without a record cannot be asked for a checkpoint: then it is the next one.
        """
        step = run_record.checkpoint_step(self.keeper.plan)
        self._found_at = step if self._found_at is None else self._found_at
        return step > self._found_at or metrics_file(self.keeper.plan) is not None

    def quiesce(self, _limit_s: float, _reason: str) -> None:
        """Have the trainer save a checkpoint and end, where it can be asked to."""
        if metrics_file(self.keeper.plan) is None:
            return
        with suppress(OSError):
            end_after_checkpoint(
                self.keeper.plan,
                self.keeper.current,
                lambda: bool(self.keeper.asked),
                world=self.world,
            )


def end_after_checkpoint(
    plan: LaunchPlan,
    current: State,
    interrupted: Callable[[], bool] = lambda: False,
    *,
    world: World = HERE,
) -> None:
    """Ask the trainer for a checkpoint, and wait for its end for as long as one may take.

    Raises:
        OSError: where it cannot be asked.
    """
    (plan.run / run_record.STOP).touch()
    deadline = world.clock.monotonic() + END_S
    while supervisor.lives(current, world=world) and world.clock.monotonic() < deadline:
        if interrupted():
            return
        world.clock.sleep(_NAP_S)


def exit_code(current: State, *, world: World = HERE) -> int | None:
    """The first exit code that is not 0, else 0; None where none is known."""
    codes = supervisor.exit_codes(current, world=world)
    return next((code for code in codes if code), codes[0] if codes else None)


def log_of(plan: LaunchPlan, current: State) -> Path:
    """The log of the run here."""
    names = [server.log for server in current.servers]
    return Path(names[0]) if names else plan.own / f"{plan.processes[0].name}.log"
