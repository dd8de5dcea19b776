"""On machines: the launcher, systemd and Docker alone, and Slurm, SkyPilot and Ray Serve."""

from __future__ import annotations

from recipe_core.targets import supervise, systemd
from recipe_core.targets.context import Context
from recipe_core.targets.node_script import NOT_FOUND
from recipe_core.targets.restarts.shape import (
    LAUNCHER,
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


def _supervision_settings(context: Context, *names: str) -> tuple[Setting, ...]:
    values = context.supervision.for_launcher()
    return tuple(Setting(f"supervision.{name}", values[name]) for name in names)


def launcher_answers(context: Context) -> Answers:
    """Answers of the bundle's launcher for servers."""
    budget = _supervision_settings(
        context, "crash_budget", "window_s", "backoff_s", "backoff_most_s", "stable_s"
    )
    restart_text = (
        "starts the server again, after its budget the next fallback; then stops, and says why"
    )
    lost = "takes the next fallback that fits, and returns when the device does"
    return {
        "dies": Answer(LAUNCHER, restart_text, budget),
        "hangs": Answer(
            LAUNCHER,
            "starts a server again that gives no answer or no token",
            _hang_settings(context),
        ),
        "memory": Answer(LAUNCHER, restart_text, budget),
        "lost": Answer(LAUNCHER, f"{lost}; a lost machine is nobody's"),
        "drained": Answer(
            LAUNCHER,
            "on SIGTERM waits for running requests",
            _supervision_settings(context, "drain_s"),
        ),
        "slow": Answer(
            LAUNCHER, "starts the server again", _supervision_settings(context, "slow_s")
        ),
        "wrong": Answer(LAUNCHER, "takes the next fallback at once, or stops and says why"),
    }


def launcher_run_answers(context: Context) -> Answers:
    """Answers of the bundle's launcher for a run."""
    budget = _supervision_settings(
        context, "crash_budget", "window_s", "backoff_s", "backoff_most_s"
    )
    restart_text = "resumes from the newest checkpoint; after its budget stops, and says why"
    return {
        "dies": Answer(LAUNCHER, restart_text, budget),
        "hangs": Answer(
            LAUNCHER, "stops a run without steps and resumes it", _hang_settings(context)
        ),
        "memory": Answer(LAUNCHER, restart_text, budget),
        "lost": Answer(LAUNCHER, "resumes on the devices that are left, where a fallback fits"),
        "drained": Answer(
            LAUNCHER,
            f"on SIGTERM {unsaved_text(context, 'stop-file')}",
            _supervision_settings(context, "drain_s"),
        ),
        "slow": nobody_answer("nothing; steps and their times are in run/metrics.csv"),
        "wrong": Answer(LAUNCHER, "stops, and says why"),
    }


def _hang_settings(context: Context) -> tuple[Setting, ...]:
    return _supervision_settings(context, "hang_s")


def systemd_answers(context: Context) -> Answers:
    """Answers of the unit that starts the launcher."""
    within = (
        Setting("Restart", "on-failure"),
        Setting("RestartSec", f"{context.supervision.backoff_s:g}"),
        Setting("StartLimitBurst", context.supervision.crash_budget + 1),
        Setting("StartLimitIntervalSec", context.supervision.window_s),
    )
    servers = "servers are the launcher's; systemd starts the launcher again"
    stops = (
        Setting("KillMode", "mixed"),
        Setting("TimeoutStopSec", supervise.grace_s(context)),
    )
    watchdog = (Setting("WatchdogSec", context.supervision.hang_s),)
    wrong = Setting("RestartPreventExitStatus", systemd.ON_PURPOSE)
    return {
        "dies": Answer("systemd", servers, within),
        "hangs": Answer("systemd", f"{servers} when that gives no sign", watchdog),
        "memory": Answer("systemd", servers, (Setting("OOMPolicy", "continue"),)),
        "lost": Answer(LAUNCHER, "takes a fallback; after a reboot an enabled unit starts again"),
        "drained": Answer("systemd", "tells the launcher to stop, which drains", stops),
        "slow": Answer(LAUNCHER, "starts the server again"),
        "wrong": Answer(
            "systemd",
            "leaves a launcher alone that gave up or cannot use its input",
            (wrong,),
        ),
    }


def docker_answers(context: Context, *, compose: bool) -> Answers:
    """Answers of Docker, by a compose file or by commands."""
    grace_s = supervise.grace_s(context)
    policy, stop = Setting("restart", "unless-stopped"), Setting("stop_grace_period", f"{grace_s}s")
    looks = supervise.hang_looks(context)
    health: tuple[Setting, ...] = (
        Setting("healthcheck.interval", f"{looks.period_s}s"),
        Setting("healthcheck.retries", looks.failures),
    )
    unseen = "nothing: Docker shows the container as unhealthy and leaves it running"
    if not compose:
        policy, stop = Setting("--restart", "unless-stopped"), Setting("--stop-timeout", grace_s)
        health, unseen = (), "nothing is seen"
    restart_text = "starts the container again without end, after 0.1 s doubling to 1 min"
    return {
        "dies": Answer("Docker", restart_text, (policy,)),
        "hangs": Answer("nobody", unseen, health),
        "memory": Answer("Docker", restart_text, (policy,)),
        "lost": Answer("Docker", f"{restart_text}; a lost machine is nobody's", (policy,)),
        "drained": Answer("Docker", "sends SIGTERM, and kills what is left then", (stop,)),
        "slow": slow_answer(context),
        "wrong": Answer("Docker", restart_text, (policy,)),
    }
