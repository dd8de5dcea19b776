"""Looks at a training run: what it shows now, why it ended, and what it did by itself."""

from __future__ import annotations

import re
from pathlib import Path

from recipe_core.payload.launcher.diagnosis import failure_text

from . import events, report, run_status, supervisor
from .diagnosis import Diagnosis, diagnose
from .plan import LaunchPlan
from .run_decide import Seen
from .state import State
from .steps import metrics_file, planned_steps, read_steps
from .supervisor import Progress
from .world import HERE, World

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
        end, model = run_status.read_trainer_end(plan), (plan.run / "model").is_dir()
        return Seen(
            alive=alive,
            code=exit_code(current, world=self.world),
            end_code=end.code if end else None,
            out_of_memory=self.kills > 0,
            step=run_status.step_of_start(plan),
            growth=run_status.growth(plan),
            usual_s=run_status.usual_step_s(plan),
            complete=model and run_status.finished(plan),
        )

    def _tell_steps(self, plan: LaunchPlan) -> None:
        if self.shown is None:
            return
        newest = run_status.step_of_start(plan)
        for step in read_steps(metrics_file(plan)):
            if self.shown < step.number <= newest:
                self.shown = step.number
                self.progress.say(report.step_line(step, planned_steps(plan)))

    def _tell_rollbacks(self, plan: LaunchPlan) -> None:
        """Note new ones, also those that torchrun answered with a restart of its own."""
        names = ("kind", "first", "last", "loss", "usual", "checkpoint", "skipped")
        for rollback in run_status.read_rollbacks(plan):
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
