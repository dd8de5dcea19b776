"""Slurm, SkyPilot and Ray Serve."""

from __future__ import annotations

from recipe_core.targets import supervise
from recipe_core.targets.context import Context
from recipe_core.targets.node_script import NOT_FOUND
from recipe_core.targets.restarts.shape import (
    Answer,
    Answers,
    Setting,
    nobody_answer,
    slow_answer,
    unsaved_text,
)
from recipe_core.targets.skypilot import PROBES


def slurm_answers(context: Context) -> Answers:
    """Answers of Slurm and of the script that it runs."""
    max_failures = context.supervision.requeues + supervise.expected_failures(context)
    guard = Setting("most", max_failures)
    restart_text = "puts the job back in the queue, then gives up"
    training = context.kind == "training"
    before_limit_s = supervise.before_limit_s(context)
    if training:
        hangs = "nothing, until torch's own time-out ends the ranks; then as for a death"
        stopped = (
            f"before the time limit {unsaved_text(context, 'stop-file', 'signal')}, and requeues"
        )
    else:
        hangs = "nothing is seen"
        stopped = "before the time limit tells servers to stop, and the job ends"
    signal = Setting("--signal", f"{'B:USR1' if training else 'B:TERM'}@{before_limit_s}")
    ended = Answer("Slurm", f"lets the job end; the script {stopped}", (signal,))
    wrong = f"ends the job where the program ends with 2 or {NOT_FOUND}; else as for a death"
    return {
        "dies": Answer("job script", restart_text, (guard,)),
        "hangs": nobody_answer(hangs),
        "memory": Answer("job script", restart_text, (guard,)),
        "lost": Answer("Slurm", "puts the job back in the queue", (Setting("--requeue"), guard)),
        "drained": ended,
        "slow": nobody_answer("nothing is seen") if training else slow_answer(context),
        "wrong": Answer("job script", wrong, (guard,)),
    }


def sky_service_answers(context: Context) -> Answers:
    """Answers of SkyServe; of nobody for a single machine that opens no port."""
    if context.key_variable is None:
        return _sky_machine_answers(context)
    probe = (
        Setting("readiness_probe.timeout_seconds", max(1, context.supervision.hang_s // PROBES)),
        Setting("readiness_probe.initial_delay_seconds", supervise.start_s(context)),
    )
    who = "SkyServe"
    ends = "ends the replica; makes another where the service had been ready before"
    return {
        "dies": Answer(who, ends),
        "hangs": Answer(who, "replaces a replica whose probe fails for 3 minutes", probe),
        "memory": Answer(who, ends),
        "lost": Answer(who, "starts another machine, in any place that has the device"),
        "drained": Answer(who, "as for a loss; running requests are cut off"),
        "slow": slow_answer(context),
        "wrong": Answer(who, "gives the service up when no replica was ever ready", probe[1:]),
    }


def _sky_machine_answers(context: Context) -> Answers:
    ends = nobody_answer("nothing: the task ends, and its machine stays until you end it")
    return {
        "dies": ends,
        "hangs": nobody_answer("nothing is seen"),
        "memory": ends,
        "lost": nobody_answer("nothing: `sky launch` again starts another"),
        "drained": nobody_answer("nothing: running requests are cut off"),
        "slow": slow_answer(context),
        "wrong": ends,
    }


def sky_job_answers(context: Context) -> Answers:
    """Answers of a managed job of SkyPilot."""
    restarts = Setting("job_recovery.max_restarts_on_errors", supervise.lifetime_restarts(context))
    who, restart_text = "managed job", "starts the run again, then gives up"
    resume_text = "the run goes on from the newest checkpoint in the bucket"
    if context.parameters.bucket is None:
        resume_text = "without `bucket` the run begins anew: nothing of run/ is left"
    return {
        "dies": Answer(who, restart_text, (restarts,)),
        "hangs": nobody_answer("nothing, until torch's own time-out ends the ranks"),
        "memory": Answer(who, restart_text, (restarts,)),
        "lost": Answer(who, f"starts another machine, which is not counted; {resume_text}"),
        "drained": Answer(who, f"as for a loss; {resume_text}"),
        "slow": nobody_answer("nothing is seen"),
        "wrong": Answer(who, restart_text, (restarts,)),
    }


def ray_serve_answers(context: Context) -> Answers:
    """Answers of Ray Serve's controller."""
    budget = context.supervision
    health = (
        Setting("health_check_period_s", supervise.hang_looks(context).period_s),
        Setting("health_check_timeout_s", supervise.ray_timeout_s(context)),
    )
    who, restart_text = "Ray Serve", "makes the replica anew without end"
    starts = Setting("max_constructor_retry_count", budget.crash_budget)
    drains = Setting("graceful_shutdown_timeout_s", budget.drain_s)
    return {
        "dies": Answer(who, restart_text, health),
        "hangs": Answer(who, f"{restart_text} after 3 checks without an answer", health),
        "memory": Answer(who, restart_text, health),
        "lost": Answer(who, "makes the replica anew where Ray has the devices", health),
        "drained": Answer(who, "lets running requests finish", (drains,)),
        "slow": slow_answer(context),
        "wrong": Answer(who, "gives up after so many starts, 3 per replica at most", (starts,)),
    }
