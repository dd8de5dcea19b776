"""A rolling restart: one group after the other is drained, restarted and awaited."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from .api import api_headers
from .plan import LaunchPlan, Process
from .serving_probe import IDLE_LOOKS
from .tracks import Phase, Track
from .world import HERE, World

if TYPE_CHECKING:
    from .recovery import Recovery

_ANSWER_S = 5.0
_MOST_BYTES = 1 << 20
_LOOPBACK = ("127.0.0.1", "localhost", "::1", "0.0.0.0")  # noqa: S104 - compared with, not bound to
_KEPT = ("url", "worker_type", "bootstrap_port", "model_id", "priority", "cost")


@dataclass(frozen=True, slots=True)
class Withdrawn:
    """A worker that was taken out: what puts it back, and the interface that takes it."""

    router_port: int
    path: str
    body: dict[str, Any] | None


def withdraw(plan: LaunchPlan, group: int, *, world: World = HERE) -> tuple[Withdrawn, ...]:
    """Have every router here send nothing new to the servers of a group.

    Empty where no router has an interface for it, or none knows the servers.
    """
    servers = [process for process in plan.answering if process.group == group]
    routers = [process for process in plan.processes if process.role == "router"]
    pairs = [(r, s) for r in routers for s in servers if s.role != "router"]
    workers = [_withdrawn(world, plan, router, server) for router, server in pairs]
    return tuple(worker for worker in workers if worker is not None)


def admit(plan: LaunchPlan, withdrawn: Iterable[Withdrawn], *, world: World = HERE) -> bool:
    """Put workers back; whether every router sends requests to its own again.

    A router takes a worker in the background: ask again until it has.
    """
    # A list: one that fails must not keep the others out.
    return all([_admitted(world, plan, worker) for worker in withdrawn])  # noqa: C419


def _admitted(world: World, plan: LaunchPlan, worker: Withdrawn) -> bool:
    if worker.body is not None:
        _, answer = _ask_router(world, plan, worker.router_port, "GET", "/workers")
        listed = answer.get("workers") if isinstance(answer, dict) else None
        for entry in listed or ():
            if isinstance(entry, dict) and entry.get("url") == worker.body["url"]:
                return entry.get("is_healthy") is not False
    status, _ = _ask_router(world, plan, worker.router_port, "POST", worker.path, worker.body)
    return worker.body is None and status is not None and status < 300


def _withdrawn(
    world: World, plan: LaunchPlan, router: Process, server: Process
) -> Withdrawn | None:
    status, answer = _ask_router(world, plan, router.port, "GET", "/workers")
    if status == 200:
        listed = answer.get("workers") if isinstance(answer, dict) else None
        worker = next((w for w in listed or () if _is_worker_of(plan, w, server)), None)
        if worker is None:
            return None
        name = quote(str(worker.get("id") or worker["url"]), safe="")
        status, _ = _ask_router(world, plan, router.port, "DELETE", f"/workers/{name}")
        body = {key: worker[key] for key in _KEPT if worker.get(key) is not None}
        if "worker_type" in body:
            body["worker_type"] = _worker_kind(str(body["worker_type"]))
        ok = status is not None and status < 300
        return Withdrawn(router.port, "/workers", body) if ok else None
    if status is None or server.role != "server":
        return None  # the older interface does not know pools
    # It lists plain addresses: the one that the router was given is the one to name.
    status, answer = _ask_router(world, plan, router.port, "GET", "/list_workers")
    urls = answer.get("urls") if status == 200 and isinstance(answer, dict) else None
    url = next((url for url in urls or () if _is_worker_of(plan, {"url": url}, server)), None)
    if url is None:
        return None
    name = quote(str(url), safe="")
    status, _ = _ask_router(world, plan, router.port, "POST", f"/remove_worker?url={name}")
    ok = status is not None and status < 300
    return Withdrawn(router.port, f"/add_worker?url={name}", None) if ok else None


def _worker_kind(text: str) -> str:
    """The kind of a worker as it is given: a list may state it as ``Prefill { … }``."""
    return next((kind for kind in ("prefill", "decode") if kind in text.casefold()), "regular")


def _is_worker_of(plan: LaunchPlan, worker: Any, server: Process) -> bool:
    """Return whether a router's worker is this server: the port, and an address of this machine."""
    url = worker.get("url") if isinstance(worker, dict) else None
    try:
        parts = urlsplit(str(url))
        port = parts.port
    except ValueError:
        return False
    hosts = {plan.client_host, *plan.parameters.addresses, *_LOOPBACK}
    return port == server.port and (parts.hostname or "") in hosts


def _ask_router(
    world: World,
    plan: LaunchPlan,
    port: int,
    method: str,
    path: str,
    body: dict[str, Any] | None = None,
) -> tuple[int | None, Any]:
    """Status and JSON of an answer; None where there is none."""
    status, payload = world.ask(
        plan.client_host,
        port,
        path,
        method=method,
        body=body,
        headers=api_headers(plan.api),
        timeout_s=_ANSWER_S,
        most_bytes=_MOST_BYTES,
    )
    try:
        return status, json.loads(payload)
    except (ValueError, RecursionError):
        return status, None


# How long a router without an interface gets to find that a replica is back.
_BLIND_ROUTER_S = 10.0


class Rolling:
    """The ``groups`` that are still to be restarted on request, the current one first."""

    def __init__(self, keeper: Recovery) -> None:
        self.keeper = keeper
        self.groups: list[int] = []
        self.withdrawn: dict[int, tuple[Withdrawn, ...]] = {}
        self.idle, self.settled_at = 0, 0.0
        self._blind = False

    def forget(self) -> None:
        """Another choice begins: nothing is left to restart."""
        self.groups.clear()
        self.withdrawn.clear()

    def ask(self, names: object) -> None:
        """Queue groups for a rolling restart: those of named processes, or every replica."""
        listed = names if isinstance(names, list) else []
        self.groups = rolled_groups(self.keeper.plan, [str(name) for name in listed])
        self.idle = 0

    def step(self) -> None:
        """One step of a rolling restart: one group is drained, restarted and awaited at a time."""
        if not self.groups or self.keeper.clock.monotonic() < self.settled_at:
            return
        group, now = self.groups[0], self.keeper.clock.monotonic()
        track = self.keeper.tracks[group]
        if track.phase is Phase.PARKED and self.idle >= 0:  # whoever asks has seen to its cause
            self._again(group, track)
        elif track.phase in (Phase.RESTING, Phase.PARKED):
            self.keeper.event("restart", group, cause="requested", finished=False)
            name = self.keeper.name(group)
            self.keeper.progress.say(f"{name} did not come back: the rest runs on as it is")
            self.groups.clear()
        elif track.phase is Phase.DRAINING:
            self._drained(group, track, now)
        elif self.idle < 0:  # it was restarted
            if track.phase is Phase.SERVING and group not in self.withdrawn:
                self.groups.pop(0)
                self.idle = 0
                self.settled_at = now + (_BLIND_ROUTER_S if self._blind and self.groups else 0.0)
        elif all(group_track.phase is Phase.SERVING for group_track in self.keeper.tracks.values()):
            routed = any(process.role == "router" for process in self.keeper.plan.processes)
            withdrawn = withdraw(self.keeper.plan, group, world=self.keeper.world)
            self._blind = routed and not withdrawn
            if withdrawn:
                self.withdrawn[group] = withdrawn
            self.keeper.event("drain", group, limit_s=self.keeper.limits.drain_s)
            self.keeper.tracks[group] = replace(
                track, phase=Phase.DRAINING, since=now, until=now + self.keeper.limits.drain_s
            )

    def _drained(self, group: int, track: Track, now: float) -> None:
        self.idle = self.idle + 1 if self.keeper.probe.is_idle(group) else 0
        if self.idle < IDLE_LOOKS and now < track.until:
            return
        with self.keeper.acting():
            self.keeper.event("drained", group, finished=self.idle >= IDLE_LOOKS)
        self._again(group, track)

    def _again(self, group: int, track: Track) -> None:
        """Start a group anew, as if it had never failed."""
        with self.keeper.acting():
            self.keeper.event("restart", group, cause="requested")
            self.keeper.causes["requested"] = self.keeper.causes.get("requested", 0) + 1
            self.keeper.progress.say(f"{self.keeper.name(group)} is restarted on request")
            self.keeper.stop_group(group)
            self.idle = -1
            self.keeper.start_now(group, replace(track, failures=(), attempt=0))

    def admit(self, group: int) -> None:
        """Put a group that serves again back behind the router."""
        workers = self.withdrawn.get(group)
        if workers and admit(self.keeper.plan, workers, world=self.keeper.world):
            del self.withdrawn[group]


def rolled_groups(plan: LaunchPlan, names: Sequence[str]) -> list[int]:
    """The groups of named processes; without names every group but the routers."""
    members = [p for p in plan.processes if (p.name in names if names else p.role != "router")]
    return list(dict.fromkeys(process.group for process in members))
