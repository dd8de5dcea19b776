"""Whether idle servers still generate: each is asked for one token now and then.

Health is answered by the process that takes requests. Where the one that computes hangs, requests
wait for ever while health, and the figures that the other published last, look well. Nothing is
asked of a server that has requests: its count of tokens shows whether it goes on. Pools are not
asked: one alone answers nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .api import Api
from .client import api_headers, request_body
from .decide import MISSES
from .exposition import Figures
from .observe import sum_given_values
from .plan import LaunchPlan, Process
from .pooled import pooled_request_body
from .world import HERE, Answer, World

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
