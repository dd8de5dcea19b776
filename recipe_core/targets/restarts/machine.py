"""On one machine: the launcher, systemd, Docker."""

from __future__ import annotations

from recipe_core.targets import supervise, systemd
from recipe_core.targets.context import Context
from recipe_core.targets.restarts.shape import (
    LAUNCHER,
    Answer,
    Answers,
    Setting,
    nobody_answer,
    slow_answer,
    unsaved_text,
)


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
