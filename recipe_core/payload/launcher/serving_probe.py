"""The probe of servers: looks, idle ones' answers to a question, drains.

Health is answered by the process that takes requests. Where the one that computes hangs, requests
wait for ever while health, and the figures that the other published last, look well. Nothing is
asked of a server that has requests: its count of tokens shows whether it goes on. Pools are not
asked: one alone answers nothing.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import events, heartbeat
from .api import Api, api_headers, pooled_request_body, request_body
from .diagnosis import LOG_BYTES, Diagnosis, diagnose, last_failure, without_questions
from .errors import StartError
from .exposition import Figures
from .files import tail
from .health import (
    MISSES,
    Look,
    Observer,
    judge_group,
    read_target,
    sum_given_values,
    track_serving_group,
)
from .plan import Process
from .tracks import Kind, Phase, Track, Trouble, track_start
from .world import Answer

if TYPE_CHECKING:
    from .recovery import Case, Recovery

# Looks in a row without requests after which a group counts as drained.
IDLE_LOOKS = 2
# How often a server that serves is asked within the time that counts as a hang.
_QUESTIONS = 15
_DRAIN_POLL_S = 0.3
_LOG_LINES = 60
_METRICS = ("/metrics", "/prometheus/metrics")

# Of the time that counts as a hang, how long after a sign of generating an idle server is asked;
# the rest is how long its answer may take.
SHARE = 0.25
_WORD = "Hi"
_OUR_FAULT = range(400, 500)


@dataclass(slots=True)
class _Server:
    """The memory of one start of a server: when it last generated, what it was asked.

    ``proven``: it has generated since it started. ``since``: when it was asked what it has not
    answered yet. ``refuses``: it does not take the question.
    """

    identity: tuple[int, int]
    at: float
    tokens: float | None = None
    proven: bool = False
    since: float | None = None
    question: Answer | None = None
    refuses: bool = False


def question(api: Api) -> dict[str, Any]:
    """A request for one token, or for a vector or score of one word, answered as a whole."""
    pooled = pooled_request_body(api, _WORD)
    if pooled is not None:
        return pooled
    body = request_body(api, _WORD, 1) | {"stream": False}
    body.pop("stream_options", None)
    return body


def _sum_published_tokens(figures: Figures | None) -> float | None:
    """Tokens generated and read so far; None where it publishes neither."""
    if figures is None:
        return None
    return sum_given_values((figures.generation_tokens, figures.prompt_tokens))


class ServingProbe:
    """Looks at the groups of a keeper's plan, and asks those that are idle."""

    trains = False
    # What hangs hardly ends by itself, and other groups are not looked at meanwhile.
    hung_grace_s = 5.0

    def __init__(self, keeper: Recovery) -> None:
        self.keeper, self.world, self.clock = keeper, keeper.world, keeper.clock
        self.observer, self.look = Observer(keeper.world), Look()
        self._servers: dict[str, _Server] = {}
        self._asked_at = 0.0
        self.begin(keeper.plan.folder / "expected.json")

    def close(self) -> None:
        self.observer.close()

    def begin(self, expected: Path) -> None:
        """Look at the keeper's plan from now on."""
        self.look, self.target = Look(), read_target(self.keeper.plan, expected)

    def adopt_track(self, now: float) -> Track:
        """A group of what another launcher started."""
        return track_serving_group(now) if self.keeper.current.ready else self.start_track(now)

    def start_track(self, now: float, before: Track | None = None) -> Track:
        return track_start(now, self.keeper.plan.startup_timeout_s, before)

    def prepare(self) -> None:
        """Nothing is checked before a restart: the groups were started here before."""

    def note_start(self, group: int, _cause: str) -> None:
        self.keeper.event("start", group, choice=self.keeper.plan.choice)

    def note_rest(self, group: int, cause: str, track: Track) -> None:
        in_s = round(track.until - track.since, 3)
        self.keeper.event("restart", group, cause=cause, attempt=track.attempt, in_s=in_s)

    def facts(self) -> dict[str, Any]:
        return {}

    def checkpoint(self) -> int | None:
        return None

    def looked(self, *, asks: bool) -> list[int]:
        """Look at every group; servers that serve are not asked each time, unless it ``asks``.

        That a process has ended shows at once, and engines log every question.
        """
        keeper, now = self.keeper, self.clock.monotonic()
        settled = (Phase.SERVING, Phase.PARKED)
        serving = all(track.phase in settled for track in keeper.tracks.values())
        asks = asks or not serving or now - self._asked_at >= self._pause_s
        if asks:
            self._asked_at = now
        before, servers = self.look, keeper.current.servers
        self.look = self.observer.look(keeper.plan, servers, keeper.active(), asks=asks)
        observations = self.look.observations
        if not asks:
            self.look.healthy, self.look.figures = before.healthy, before.figures
            return sorted(observations)
        for group, track in keeper.tracks.items():
            if track.phase is Phase.SERVING and group in observations:
                observations[group] = replace(
                    observations[group], unanswered_s=self._unanswered_s(group)
                )
        return sorted(observations)

    def judge(self, group: int, track: Track, now: float) -> tuple[Track, Trouble | None]:
        """The track after the last look, and the trouble that it shows."""
        observation = self.look.observations[group]
        return judge_group(track, observation, now, self.keeper.limits, self.target)

    def diagnose(self, group: int, track: Track, trouble: Trouble) -> Diagnosis:
        """The cause, from the log of what ended first, or of the group's first process."""
        keeper, observation = self.keeper, self.look.observations[group]
        names = observation.ended or tuple(
            p.name for p in keeper.plan.processes if p.group == group
        )
        logs = {server.name: server.log for server in keeper.current.servers}
        return diagnose(
            "\n".join(self._end_of_log(Path(logs[name])) for name in names if name in logs),
            next((code for code in observation.codes if code is not None), None),
            kernel="oom_kill 1" if trouble.kind is Kind.KILLED else "",
            ready=track.phase is not Phase.STARTING,
        )

    def _end_of_log(self, path: Path) -> str:
        """The end of a log, without the lines that the keeper's own questions left in it."""
        lines = tail(path, LOG_BYTES, limit=LOG_BYTES).splitlines()
        log_lines = without_questions(lines, (self.keeper.plan.health, *_METRICS))
        return "\n".join(last_failure(log_lines, _LOG_LINES))

    def is_lasting(self, diagnosis: Diagnosis) -> bool:
        return not diagnosis.transient

    def give_up(self, case: Case) -> StartError:
        """Note why nothing can be kept up; the error that says so."""
        diagnosis = case.diagnosis
        reason, lines = case.misfit or diagnosis.title, list(diagnosis.lines)
        about = {"cause": case.cause, "reason": reason, "lines": lines, "fix": diagnosis.fix}
        events.append(self.keeper.own, "gave_up", **about)
        return StartError(
            f"the servers cannot be kept up: {reason.rstrip('.')}.",
            hint=diagnosis.fix,
            detail="\n".join(lines),
        )

    def may_return(self) -> bool:
        """Return whether an earlier choice may be taken now."""
        return not self.keeper.rolling.groups

    def quiesce(self, limit_s: float, reason: str) -> None:
        """Say that no requests are welcome, end routers, and wait until nothing runs.

        Servers have no way to refuse what is new: ``/healthz`` says so, and routers end as they
        do on SIGTERM: they take no connection and finish those that they have.
        """
        keeper = self.keeper
        keeper.refusing = reason
        heartbeat.notify_status(keeper.summary())
        events.append(keeper.own, "drain", reason=reason, limit_s=limit_s)
        keeper.progress.say(f"{reason}: waiting up to {limit_s:.0f} s for running requests")
        routers = {p.name for p in keeper.plan.processes if p.role == "router"}
        leaving = [s.identity for s in keeper.current.servers if s.name in routers]
        self.world.processes.send(leaving, signal.SIGTERM)
        began, idle = self.clock.monotonic(), 0
        while idle < IDLE_LOOKS and self.clock.monotonic() - began < limit_s and not keeper.asked:
            self.looked(asks=True)
            idle = idle + 1 if all(self.is_idle(group) for group in keeper.active()) else 0
            if idle < IDLE_LOOKS:
                self.clock.sleep(min(keeper.limits.poll_s, _DRAIN_POLL_S))
        spent = round(self.clock.monotonic() - began, 3)
        events.append(keeper.own, "drained", finished=idle >= IDLE_LOOKS, after_s=spent)

    def is_idle(self, group: int) -> bool:
        """Return whether no request runs: by the engine's figures, else by open connections."""
        identities = self._identities()
        for process in self._answering(group):
            identity = identities.get(process.name)
            if identity is None or not self.world.processes.alive(*identity):
                continue
            figures = self.look.figures.get(process.name)
            if figures is not None and figures.running is not None:
                if figures.running or figures.waiting:
                    return False
            elif process.name in self.observer.published or self.world.connections([process.port]):
                return False
        return True

    def _identities(self) -> dict[str, tuple[int, int]]:
        return {server.name: server.identity for server in self.keeper.current.servers}

    def _answering(self, group: int) -> Iterable[Process]:
        return (p for p in self.keeper.plan.processes if p.group == group and p.answers)

    @property
    def _pause_s(self) -> float:
        """Seconds between two looks that ask servers which serve."""
        limits = self.keeper.limits
        return max(limits.poll_s, limits.hang_s / _QUESTIONS)

    # Questions to idle servers

    def _unanswered_s(self, group: int) -> float:
        """For how long one of a group's servers has not answered a request for one token."""
        identities = self._identities()
        waits = (
            self._wait_s(process, identities[process.name], self.look.figures.get(process.name))
            for process in self._answering(group)
            if self.look.healthy.get(process.name)
        )
        return max(waits, default=0.0)

    def _wait_s(
        self, process: Process, identity: tuple[int, int], figures: Figures | None
    ) -> float:
        """For how many seconds longer than it may an idle server has not answered; 0 for none.

        It is told before the time of a hang is over. A server that publishes nothing may load its
        model at the first request, so that may take as long as a start.
        """
        now, hang_s = self.clock.monotonic(), self.keeper.limits.hang_s
        server = self._servers.get(process.name)
        if server is None or server.identity != identity:
            server = self._servers[process.name] = _Server(identity, now)
        self._collect(process, server, now)
        tokens = _sum_published_tokens(figures)
        if tokens is not None and tokens != server.tokens:
            server.at, server.since, server.proven = now, None, server.tokens is not None
            server.tokens = tokens
        if server.question is None and server.since is None and self._is_busy(process, figures):
            server.at = now
        waits = server.refuses or server.question is not None or now - server.at < SHARE * hang_s
        if not waits and process.role == "server":
            server.since = server.since or now
            server.question = self._ask(process)
        if server.since is None:
            return 0.0
        loads = not server.proven and figures is None
        # The question may be a look late, and a hang has to show in several looks.
        patience = (1 - SHARE) * hang_s - MISSES * self._pause_s
        if loads:
            patience = self.keeper.plan.startup_timeout_s
        spent = now - server.since
        return spent if spent >= patience else 0.0

    def _collect(self, process: Process, server: _Server, now: float) -> None:
        """Note an answer that has come: with 200 it has generated, with 4xx it never will be."""
        if server.question is None or not server.question.done():
            return
        status, _ = server.question.result()
        server.question = None
        if status == 200:
            server.at, server.since, server.proven = now, None, True
        elif status in _OUR_FAULT:
            server.refuses, server.since = True, None
            words = f"{process.name} is not asked for tokens when idle: HTTP {status}"
            self.keeper.progress.say(words)

    def _is_busy(self, process: Process, figures: Figures | None) -> bool:
        """Return whether it has requests, or, where it publishes none, connections."""
        if figures is not None and figures.running is not None:
            return bool(figures.running or figures.waiting)
        return bool(self.world.connections([process.port]))

    def _ask(self, process: Process) -> Answer:
        plan = self.keeper.plan
        return self.world.ask_later(
            plan.client_host,
            process.port,
            plan.api.path,
            method="POST",
            body=question(plan.api),
            headers=api_headers(plan.api, os.environ),
            timeout_s=self.keeper.limits.hang_s,
            most_bytes=1,
        )
