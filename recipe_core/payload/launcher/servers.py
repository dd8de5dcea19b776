"""Servers as the commands start, measure, show, restart and stop them."""

from __future__ import annotations

from typing import Any

from . import keeper_process, report, state, supervisor
from .bench import Options, measure_serving
from .deployment import Deployment
from .errors import InputError, LateError, StartError
from .keeper import Keeper
from .preflight import Preflight
from .rolling import rolled_groups
from .starts import has_recorded_all, load_started_plan
from .state import State
from .tracks import Phase

_LOOK_S = 0.2
# How long a keeper may take to stop everything, beside the time to drain.
_DRAINED_S = 60.0


class Servers(Deployment):
    """The servers of a bundle."""

    words = "already up"
    shows_first = True

    def take_kept(self, current: State) -> State | None:
        """Have the keeper start what it has parked, and wait until all answers.

        Whoever calls `up` has seen to the cause.
        """
        if current.keeper is not None and current.parked:
            processes = load_started_plan(self.plan, current).processes
            names = [process.name for process in processes if process.group in current.parked]
            keeper_process.ask_keeper(
                self.plan.own, current.keeper, keeper_process.READ, world=self.world, restart=names
            )
        return self.wait_kept()

    def adopts(self, leftover: State) -> bool:
        """Return whether what a dead keeper left serves on: it is not started again."""
        keeper = leftover.keeper
        if self.request.no_keep or not leftover.here or keeper is None or keeper.alive:
            return False
        return any(server.alive for server in leftover.servers)

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

    def settle(self, current: State, *, already: bool) -> State | None:  # noqa: ARG002 - see `runs`
        """Leave a keeper, which first brings back what of the servers is missing."""
        if self.request.no_keep or self.is_kept(current):
            return current
        self.leave_keeper()
        current = self.wait_kept()
        self.plan = load_started_plan(self.plan, current)
        return current

    def wait_kept(self) -> State:
        """Wait until the groups that a living keeper has not parked serve.

        Raises:
            LateError: when the time is over.
            StartError: when the keeper gives up, or dies.
        """
        clock = self.world.clock
        began = reported_at = clock.monotonic()
        while True:
            current = state.load_state(self.plan.own)
            if current is None or not self.is_kept(current):
                raise self.keeper_error()
            if self._serve(current):
                return current
            now = clock.monotonic()
            if now - began >= self.timeout_s:
                hint = f"See {self.plan.own / keeper_process.LOG}."
                message = f"the servers were not ready after {self.timeout_s:.0f} s."
                raise LateError(message, hint=hint)
            if now - reported_at >= supervisor.PROGRESS_S:
                reported_at = now
                spent = f"{now - began:.0f} s of {self.timeout_s:.0f}"
                self.progress.say(f"waiting for the keeper: {spent}")
            clock.sleep(_LOOK_S)

    def _serve(self, current: State) -> bool:
        """Return whether every process of the groups that are not parked runs and answers."""
        plan, by_name = load_started_plan(self.plan, current), {s.name: s for s in current.servers}
        for process in plan.processes:
            if process.group in current.parked:
                continue
            server = by_name.get(process.name)
            if server is None or not self.world.processes.alive(*server.identity):
                return False
            if process.answers and not supervisor.healthy(plan, process.port, world=self.world):
                return False
        return current.ready or bool(current.parked)

    def describe(self, current: State | None) -> tuple[dict[str, Any], str]:
        """Return what `up` answers, as JSON and in words."""
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
        """Return what `status` answers, and whether every server runs and answers."""
        if current is None:
            strays = [pid for pid, _ in sorted(supervisor.strays(self.plan))]
            nothing: dict[str, Any] = {"state": "degraded" if strays else "down", "servers": []}
            if (origin := state.find_copied_state(self.plan.own)) is not None:
                nothing["copy_of"] = origin
            return self.with_keeper(nothing, None, strays), False
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
        return self.with_keeper(answer, current, survivors), healthy

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
        self.dismiss_silent()
        if self.is_kept(state.load_state(self.plan.own)):
            self.wait_kept()
        return True

    def measure(self, _current: State | None, checked: Preflight) -> dict[str, Any]:
        """Measure the running servers with requests."""
        request = self.request
        options = Options(request.requests, request.concurrency, request.duration_limit)
        return measure_serving(self.plan, checked, options, self.progress)

    def end_bench(self) -> None:
        """Stop servers that were started only to be measured."""
        self.stop_started()

    def prepare_end(self, current: State) -> list[str]:
        """Let running requests finish where that is wanted; the names of what ran."""
        if self.request.drain is None or not current.here:
            return []
        return self.drain(current)

    def drain(self, current: State) -> list[str]:
        """Let running requests finish, then stop everything; the names of what ran."""
        world, seconds = self.world, self.request.drain or self.limits.drain_s
        names = [s.name for s in reversed(current.servers) if world.processes.alive(*s.identity)]
        if current.keeper is None or not self.is_kept(current):
            plan = load_started_plan(self.plan, current)
            keeper = Keeper(plan, current, self.limits, self.progress, strict=True, world=world)
            keeper.drain(seconds)
            keeper.close()
            return names
        keeper_process.ask_keeper(
            self.plan.own, current.keeper, keeper_process.DRAIN, world=world, drain_s=seconds
        )
        self.progress.say(f"draining: waiting up to {seconds:.0f} s for running requests")
        end = world.clock.monotonic() + seconds + _DRAINED_S
        while self.is_kept(current) and world.clock.monotonic() < end:
            world.clock.sleep(_LOOK_S)
        return names

    def restart(self, current: State) -> list[str]:
        """Restart one group after the other, each healthy before the next; the names of all.

        Raises:
            InputError: for a name that the bundle lacks.
            StartError: when one does not come back; the rest is not restarted then.
        """
        self.plan = plan = load_started_plan(self.plan, current)
        process_names = [process.name for process in plan.processes]
        for name in self.request.names:
            if name not in process_names:
                hint = f"It has: {', '.join(process_names)}."
                raise InputError(f"the bundle has no process {name!r}.", field="NAME", hint=hint)
        groups = rolled_groups(plan, self.request.names)
        replicas = {p.group for p in plan.processes if p.role != "router"}
        if len(groups) == len(replicas) == 1:
            self.progress.say("there is one replica: restarting it interrupts the service")
        members = sorted(process.name for process in plan.processes if process.group in groups)
        before = {s.name: s.identity for s in current.servers if s.name in members}
        if current.keeper is not None and self.is_kept(current):
            keeper_process.ask_keeper(
                plan.own, current.keeper, keeper_process.READ, world=self.world, restart=members
            )
            self._wait_rolled(before)
        else:  # this is the keeper for as long as the restart takes
            keeper = self.build_keeper(current)
            keeper.rolling.ask(members)
            keeper.run(done=_has_rolled)
        now = state.load_state(plan.own)
        servers = now.servers if now else ()
        renewed = {s.name for s in servers if before.get(s.name) != s.identity}
        if not set(before) <= renewed:
            hint = f"See {plan.own / keeper_process.LOG}."
            raise StartError("not every server came back.", hint=hint)
        return sorted(renewed & {*members})

    def _wait_rolled(self, before: dict[str, tuple[int, int]]) -> None:
        """Wait until the keeper has renewed every server, or has given one of them up."""
        clock, restart_s = self.world.clock, self.plan.startup_timeout_s + self.limits.drain_s
        limit_s = self.request.timeout or (restart_s + _DRAINED_S) * len(before)
        end, reported_names = clock.monotonic() + limit_s, set[str]()
        while clock.monotonic() < end:
            current = state.load_state(self.plan.own)
            if current is None or not self.is_kept(current):
                raise self.keeper_error()
            renewed = {s.name for s in current.servers if s.identity != before.get(s.name)}
            for name in sorted((renewed & set(before)) - reported_names):
                reported_names.add(name)
                self.progress.say(f"{name} is restarted")
            if set(before) <= renewed and self._serve(current):
                return
            last = keeper_process.last_event(self.plan.own) or {}
            if last.get("cause") == "requested" and last.get("finished") is False:
                return
            clock.sleep(_LOOK_S)
        raise LateError("the restart was not done in time.", hint="See: python launch.py status")

    def describe_end(
        self, _current: State | None, stopped: list[str]
    ) -> tuple[dict[str, Any], str]:
        """Return what `down` answers, as JSON and in words."""
        return describe_stopped(stopped)


def describe_stopped(stopped: list[str]) -> tuple[dict[str, Any], str]:
    """The names of what was stopped, as JSON and in words."""
    text = f"stopped {', '.join(stopped)}" if stopped else "nothing was running"
    return {"state": "down", "stopped": stopped}, text


def _has_rolled(keeper: Keeper) -> bool:
    settled = (Phase.SERVING, Phase.PARKED)
    return not keeper.rolling.groups and all(
        track.phase in settled for track in keeper.tracks.values()
    )
