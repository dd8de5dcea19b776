"""Takes a replica out of the recipe's router while it is restarted, and puts it back.

Routers of SGLang's family have an interface for it: ``/workers`` (list, add, remove, with the
worker's kind), in older releases ``/add_worker`` and ``/remove_worker``. Another router is left
alone: it finds out by its health checks, and sends a request that failed to another replica.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlsplit

from .client import api_headers
from .plan import LaunchPlan, Process
from .world import HERE, World

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
    pairs = [(r, s) for r in _routers(plan) for s in servers if s.role != "router"]
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


def _routers(plan: LaunchPlan) -> list[Process]:
    return [process for process in plan.processes if process.role == "router"]


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
    """Whether a router's worker is this server: the port, and an address of this machine."""
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
