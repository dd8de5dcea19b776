"""Servers as the commands start, measure, show and stop them."""

from __future__ import annotations

from typing import Any

from . import keeper_process, report, state, supervision, supervisor
from .bench import Options, measure_serving
from .errors import InputError
from .preflight import Preflight
from .starts import Deployment, has_recorded_all, load_started_plan, stop_started
from .state import State


class Servers(Deployment):
    """The servers of a bundle."""

    words = "already up"
    shows_first = True

    def take_kept(self, current: State) -> State | None:
        """Have the keeper start what it has parked, and wait until all answers."""
        supervision.revive(self.plan, current)
        return self._wait_kept()

    def adopts(self, leftover: State) -> bool:
        """Return whether what a dead keeper left is kept, not started again."""
        return supervision.left_alone(leftover) and not self.request.no_keep

    def wait_ready(self, current: State) -> None:
        """Wait until what a killed launcher waited for answers.

        Raises:
            StartError: when one dies, or when the time is over.
        """
        supervisor.wait_healthy(
            self.plan,
            current,
            timeout_s=self.timeout_s,
            progress=self.progress,
            world=self.world,
        )

    def settle(self, current: State, *, already: bool) -> State | None:  # noqa: ARG002 - see Run
        """Leave a keeper, which first brings back what of the servers is missing."""
        if self.request.no_keep or keeper_process.is_kept(self.plan.own, current, world=self.world):
            return current
        supervision.leave_keeper(self.request, self.plan)
        current = self._wait_kept()
        self.plan = load_started_plan(self.plan, current)
        return current

    def _wait_kept(self) -> State:
        return supervision.wait_kept(
            self.plan, timeout_s=self.timeout_s, progress=self.progress, world=self.world
        )

    def describe(self, current: State | None) -> tuple[dict[str, Any], str]:
        """What `up` answers, as JSON and in words."""
        plan, servers = self.plan, current.servers if current else ()
        answering = {process.name for process in plan.answering}
        listed = [
            {
                "name": s.name,
                "pid": s.pid,
                "port": s.port,
                "address": plan.address(s.port) if s.name in answering else None,
                "log": s.log,
            }
            for s in servers
        ]
        entrance = next(iter(plan.entrances), None)
        data = {
            "state": "up",
            "choice": plan.choice,
            "api": f"{plan.address(entrance.port)}{plan.api.path}" if entrance else None,
            "model": plan.api.model,
            "servers": listed,
        }
        return data, report.up_text(plan, current)

    def show_status(self, current: State | None) -> tuple[dict[str, Any], bool]:
        """What `status` answers, and whether every server runs and answers."""
        if current is None:
            strays = [pid for pid, _ in sorted(supervisor.strays(self.plan))]
            nothing: dict[str, Any] = {"state": "degraded" if strays else "down", "servers": []}
            if (origin := state.find_copied_state(self.plan.own)) is not None:
                nothing["copy_of"] = origin
            return self._with_keeper(nothing, None, strays), False
        self.plan = load_started_plan(self.plan, current)
        data, _ = self.describe(current)
        answering = {process.name for process in self.plan.answering}
        listed = []
        for server, shown in zip(current.servers, data["servers"], strict=True):
            alive = current.here and server.alive
            answers = alive and (
                server.name not in answering or supervisor.healthy(self.plan, server.port)
            )
            address = self.plan.address(server.port)
            listed.append(shown | {"address": address, "alive": alive, "healthy": answers})
        complete = has_recorded_all(self.plan, current)
        healthy = complete and all(server["healthy"] for server in listed)
        unrecorded = [] if complete else current.unrecorded()
        survivors = sorted({*current.left_behind(), *unrecorded})
        word = "degraded" if survivors or any(server["alive"] for server in listed) else "down"
        answer = {
            "state": "up" if healthy else word,
            "model": current.model,
            "choice": current.choice,
            "servers": listed,
            **({"unrecorded": unrecorded} if unrecorded else {}),
        }
        return self._with_keeper(answer, current, survivors), healthy

    def prepare_bench(self) -> bool:
        """Wait for what fails just now, which is the keeper's to restart; servers have to run.

        Raises:
            InputError: on a node where no server answers.
        """
        if not self.plan.entrances:
            raise InputError(
                f"no server answers on node {self.plan.node}.",
                field="--node",
                hint="Measure on the node of the servers: --node 0.",
            )
        supervision.dismiss_silent(self.plan.own, self.progress, world=self.world)
        recorded = state.load_state(self.plan.own)
        if keeper_process.is_kept(self.plan.own, recorded, world=self.world):
            self._wait_kept()
        return True

    def measure(self, _current: State | None, checked: Preflight) -> dict[str, Any]:
        """Measure the running servers with requests."""
        request = self.request
        options = Options(request.requests, request.concurrency, request.duration_limit)
        return measure_serving(self.plan, checked, options, self.progress)

    def end_bench(self) -> None:
        """Stop servers that were started only to be measured."""
        stop_started(self.plan, self.progress)

    def prepare_end(self, current: State) -> list[str]:
        """Let running requests finish where that is wanted; the names of what ran."""
        if self.request.drain is None or not current.here:
            return []
        return supervision.drain(self.request, self.plan, current, self.progress, world=self.world)

    def describe_end(
        self, _current: State | None, stopped: list[str]
    ) -> tuple[dict[str, Any], str]:
        """What `down` answers, as JSON and in words."""
        return describe_stopped(stopped)


def describe_stopped(stopped: list[str]) -> tuple[dict[str, Any], str]:
    """The names of what was stopped, as JSON and in words."""
    text = f"stopped {', '.join(stopped)}" if stopped else "nothing was running"
    return {"state": "down", "stopped": stopped}, text
