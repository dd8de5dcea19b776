"""What a running group shows now: its processes, its figures, and whether it generates if idle.

Health is answered by the process that takes requests. Where the one that computes hangs, requests
wait for ever while health, and the figures that the other published last, look well. Nothing is
asked of a server that has requests: its count of tokens shows whether it goes on. Pools are not
asked: one alone answers nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import exposition
from .client import api_headers, pooled_request_body, request_body
from .decide import MISSES, Seen, Target
from .errors import LauncherError
from .exposition import Figures
from .files import read_object
from .metrics import expected_bands, predictions
from .plan import LaunchPlan, Process
from .sections import Api
from .state import Server
from .world import HERE, Answer, World

# How long a server may take for its health or its figures.
ANSWER_S = 2.0
_MOST_BYTES = 8 << 20


@dataclass(slots=True)
class Look:
    """One look: a verdict's input for each group, and the figures of servers that publish any."""

    observations: dict[int, Seen] = field(default_factory=dict)
    healthy: dict[str, bool] = field(default_factory=dict)
    figures: dict[str, Figures] = field(default_factory=dict)


class Observer:
    """Looks at groups; all servers of one look are asked at once."""

    def __init__(self, world: World = HERE) -> None:
        self.world = world
        self._pool = world.threads(8, "observe")
        self._killed = world.oom_kills(())
        self.published: set[str] = set()
        """Servers that have published figures: where one stops, it is not for want of any."""

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def look(
        self,
        plan: LaunchPlan,
        servers: Sequence[Server],
        groups: Iterable[int],
        *,
        asks: bool = True,
    ) -> Look:
        """What the processes of ``groups`` show; what they answer only where it ``asks``."""
        by_name = {server.name: server for server in servers}
        group_numbers = set(groups)
        processes = [process for process in plan.processes if process.group in group_numbers]
        codes = {p.name: self._code(by_name.get(p.name)) for p in processes}
        alive = {p.name: self._runs(by_name.get(p.name)) for p in processes}
        answering = [p for p in processes if asks and p.answers and alive[p.name]]
        answers = list(self._pool.map(lambda process: self._ask(plan, process), answering))
        look = Look()
        for process, (healthy, figures) in zip(answering, answers, strict=True):
            look.healthy[process.name] = healthy
            if figures is not None:
                look.figures[process.name] = figures
        killed = self._out_of_memory(by_name[name] for name in alive if alive[name])
        for group in group_numbers:
            members = [process for process in processes if process.group == group]
            look.observations[group] = _seen(members, alive, codes, look, asks=asks, killed=killed)
        return look

    def _ask(self, plan: LaunchPlan, process: Process) -> tuple[bool, Figures | None]:
        if self.get(plan, process.port, plan.health) is None:
            return False, None
        if process.role == "router":
            return True, None  # its servers' figures count, not its own
        path = exposition.PATHS.get(plan.engine.name, "/metrics")
        text = self.get(plan, process.port, path)
        if text is None:
            return True, None
        figures = exposition.engine_figures(text)
        if figures.generation_tokens is None and figures.running is None:
            return True, None
        self.published.add(process.name)
        return True, figures

    def get(self, plan: LaunchPlan, port: int, path: str) -> str | None:
        """The text that a server here answers with 200; None for anything else."""
        status, payload = self.world.ask(
            plan.client_host,
            port,
            path,
            headers=api_headers(plan.api),
            timeout_s=ANSWER_S,
            most_bytes=_MOST_BYTES,
        )
        return payload.decode("utf-8", errors="replace") if status == 200 else None

    def _code(self, server: Server | None) -> int | None:
        return self.world.processes.reap(server.pid) if server is not None else None

    def _runs(self, server: Server | None) -> bool:
        return server is not None and self.world.processes.alive(*server.identity)

    def _out_of_memory(self, servers: Iterable[Server]) -> bool:
        """Whether the kernel killed something for want of memory since the last look."""
        before = self._killed
        self._killed = self.world.oom_kills([server.pid for server in servers])
        return any(count > before.get(place, count) for place, count in self._killed.items())


def _seen(
    members: Sequence[Process],
    alive: dict[str, bool],
    codes: dict[str, int | None],
    look: Look,
    *,
    asks: bool,
    killed: bool,
) -> Seen:
    """The processes of a group as one."""
    ended = tuple(process.name for process in members if not alive[process.name])
    answering = [process.name for process in members if process.answers]
    figures = [look.figures[name] for name in answering if name in look.figures]
    ends = tuple(codes[name] for name in ended)
    return Seen(
        ended=ended,
        codes=ends,
        # Its own exit code may not be known: the kernel tells only whoever started it.
        out_of_memory=killed and any(code != 0 for code in ends),
        answers=all(look.healthy.get(name, False) for name in answering) if asks else None,
        tokens=sum_given_values(
            [f.generation_tokens for f in figures] + [f.prompt_tokens for f in figures if figures]
        ),
        running=sum_given_values([f.running for f in figures]),
        waiting=sum_given_values([f.waiting for f in figures]),
        tpot_sum_s=sum_given_values([f.tpot_sum_s for f in figures]),
        tpot_count=sum_given_values([f.tpot_count for f in figures]),
    )


def sum_given_values(values: Iterable[float | None]) -> float | None:
    numbers = [value for value in values if value is not None]
    return sum(numbers) if numbers else None


def target(plan: LaunchPlan, expected: Path) -> Target:
    """What the recipe expects of one group: times per token at the load of one replica."""
    try:
        estimate = read_object(expected)
    except LauncherError:
        return Target()
    band = expected_bands(estimate).get("tpot_s")
    load, replicas = plan.workload, _count_replicas(plan)
    at_once: float | None = load.concurrency or load.batch
    if at_once is None and load.request_rate is not None:
        latency = expected_bands(estimate).get("request_latency_s")
        at_once = load.request_rate * latency[1] if latency else None  # Little's law
    if at_once is None and load.mode != "offline":
        band = None  # which load is more than planned is not known
    return Target(
        tpot_most_s=band[1] if band else None,
        load_most=at_once / replicas if at_once is not None else None,
        first_token_s=predictions(estimate).get("ttft_s"),
        tpot_s=predictions(estimate).get("tpot_s"),
    )


def _count_replicas(plan: LaunchPlan) -> int:
    """Groups that share the load: of pools, those that decode."""
    roles = {process.group: process.role for process in plan.processes if process.answers}
    names = list(roles.values())
    return max(1, names.count("decode") or names.count("server"))


# Of the time that counts as a hang, how long after a sign of generating an idle server is asked;
# the rest is how long its answer may take.
SHARE = 0.25
_WORD = "Hi"
_OUR_FAULT = range(400, 500)


@dataclass(slots=True)
class _Server:
    """What is remembered of one start of a server: when it last generated, what it was asked.

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


class Prober:
    """Asks the servers of one keeper; ``told`` is called with why one cannot be asked."""

    def __init__(self, report: Callable[[str], object], *, world: World = HERE) -> None:
        self.world, self._told = world, report
        self._servers: dict[str, _Server] = {}

    def unanswered_s(
        self,
        plan: LaunchPlan,
        process: Process,
        identity: tuple[int, int],
        figures: Figures | None,
        *,
        hang_s: float,
        pause_s: float,
    ) -> float:
        """For how many seconds longer than it may an idle server has not answered; 0 for none.

        With looks ``pause_s`` apart it is told before ``hang_s`` is over. A server that publishes
        nothing may load its model at the first request, so that may take as long as a start.
        """
        now, server = self.world.clock.monotonic(), self._server(process, identity)
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
            server.question = self._ask(plan, process, hang_s)
        if server.since is None:
            return 0.0
        loads = not server.proven and figures is None
        # The question may be a look late, and a hang has to show in several looks.
        patience = plan.startup_timeout_s if loads else (1 - SHARE) * hang_s - MISSES * pause_s
        spent = now - server.since
        return spent if spent >= patience else 0.0

    def _server(self, process: Process, identity: tuple[int, int]) -> _Server:
        server = self._servers.get(process.name)
        if server is None or server.identity != identity:
            server = _Server(identity, self.world.clock.monotonic())
            self._servers[process.name] = server
        return server

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
            self._told(f"{process.name} is not asked for tokens when idle: HTTP {status}")

    def _is_busy(self, process: Process, figures: Figures | None) -> bool:
        """Whether it has requests; of one that publishes none, whether anybody is connected."""
        if figures is not None and figures.running is not None:
            return bool(figures.running or figures.waiting)
        return bool(self.world.connections([process.port]))

    def _ask(self, plan: LaunchPlan, process: Process, timeout_s: float) -> Answer:
        return self.world.ask_later(
            plan.client_host,
            process.port,
            plan.api.path,
            method="POST",
            body=question(plan.api),
            headers=api_headers(plan.api, os.environ),
            timeout_s=timeout_s,
            most_bytes=1,
        )


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
