"""Weights of routers: HAProxy's configuration, and routes of the Gateway API.

A model answers below ``/NAME/``, and by the ``model`` of a request's body where no other model of
the fleet is served under that name.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import NamedTuple

import numpy as np

from recipe_core.fleets.answer import FleetAnswer
from recipe_core.fleets.exports.parts import Part
from recipe_core.fleets.exports.texts import render_export
from recipe_core.recipe.place import Parameters

# The range of a server's weight in HAProxy; 0 sends it nothing.
HIGHEST_WEIGHT = 256
PORT = Parameters().port


class RouterServer(NamedTuple):
    """One address that a router passes requests on to, with its weight by HAProxy."""

    name: str
    address: str
    share: float
    weight: int


class Backend(NamedTuple):
    """The servers of one model; None for a name or health path that is not all of theirs alone."""

    model: str
    served: str | None
    health: str | None
    servers: list[RouterServer]


def integer_weights(shares: Sequence[float]) -> list[int]:
    """Whole weights whose shares are as near to ``shares`` as they can be, relative to each.

    A share above 0 has a weight of 1 at least. Of several scales that are equally near, the
    smallest.
    """
    if sum(shares) <= 0:
        return [0] * len(shares)
    parts = np.array(shares) / sum(shares)
    scales = np.arange(1, HIGHEST_WEIGHT + 1)[:, None] / parts.max()
    weights = np.where(parts > 0, np.maximum(np.rint(scales * parts), 1), 0)
    ratios = weights / weights.sum(axis=1, keepdims=True) / np.where(parts > 0, parts, 1)
    errors = np.abs(ratios - (parts > 0)).max(axis=1)
    return [int(weight) for weight in weights[errors.round(12).argmin()]]


def router_backends(parts: Sequence[Part], period: str | None = None) -> list[Backend]:
    """One backend a model, with its weights in a period, or of the plan, of the busiest."""
    serving = [part for part in parts if part.level.kind == "serving"]
    backends = []
    for model, alike in groupby(serving, key=lambda part: part.owner.name):
        own_parts = list(alike)
        served = _single(_served_name(part) for part in own_parts)
        elsewhere = {_served_name(part) for part in serving if part.owner.name != model}
        health = _single(part.bundle.context.launch.health for part in own_parts)
        servers = _weighted_servers(own_parts, parts, period)
        backends.append(Backend(model, None if served in elsewhere else served, health, servers))
    return backends


def _served_name(part: Part) -> str:
    """The model's name to its servers, of which some are told the folder or id that they load."""
    context = part.bundle.context
    name = context.launch.api_model
    return context.model_source if name == "${model}" else name


def _single(values: Iterable[str]) -> str | None:
    """The value that all have; None where they differ."""
    different = set(values)
    return different.pop() if len(different) == 1 else None


def _weighted_servers(
    own_parts: Sequence[Part], parts: Sequence[Part], period: str | None
) -> list[RouterServer]:
    """A Service of Kubernetes is one server, elsewhere each replica is.

    Without load in a period they have shares by replicas.
    """
    rows: list[tuple[str, str, float, float]] = []
    for part in own_parts:
        placement = part.placement
        count = part.replicas if period is None else placement.replicas[period]
        load = placement.weight if period is None else count * placement.load_each[period]
        if part.scheduler == "kubernetes":
            address = f"{part.name}.{part.answer.request.name}.svc.cluster.local:{PORT}"
            rows.append((part.name, address, load, count))
            continue
        for k, (node, port) in enumerate(replica_addresses(part, parts)):
            runs = k < count
            rows.append((f"{part.name}-{k}", f"{node}:{port}", load / count if runs else 0.0, runs))
    loads = [load for *_, load, _ in rows]
    loads = loads if sum(loads) > 0 else [float(count) for *_, count in rows]
    weights, total = integer_weights(loads), sum(loads) or 1.0
    return [
        RouterServer(name, address, loads[k] / total, weights[k])
        for k, (name, address, *_) in enumerate(rows)
    ]


def replica_addresses(part: Part, parts: Sequence[Part]) -> list[tuple[str, int]]:
    """Node and port of each replica outside Kubernetes: the first of its nodes by the plan.

    Slurm chooses nodes itself, so that all replicas have ports of their own.
    """
    nodes = [share.node for share in part.placement.nodes for _ in range(share.replicas)]
    firsts = nodes[:: max(len(nodes) // part.replicas, 1)]
    firsts += [f"{part.pool.name}-{k}" for k in range(len(firsts), part.replicas)]
    earlier = parts[: parts.index(part)]
    port = PORT + sum(p.replicas for p in earlier if p.scheduler != "kubernetes")
    return [(node, port + k) for k, node in enumerate(firsts[: part.replicas])]


def router_files(answer: FleetAnswer, parts: Sequence[Part]) -> dict[str, str]:
    """HAProxy's configuration, its weights by period where they change, and the routes.

    Routes of the Gateway API are over Services of Kubernetes, so without placements elsewhere.
    """
    if not (backends := router_backends(parts)):
        return {}
    values = {"fleet": answer.request.name, "port": PORT}
    files = {"haproxy.cfg": render_export("router/haproxy.cfg.j2", backends=backends, **values)}
    for period in answer.periods:
        by_period = router_backends(parts, period)
        text = render_export("router/weights.txt.j2", backends=by_period)
        files[f"weights-{period}.txt"] = text
    if len(set(files.values())) <= 2:  # they do not change
        files = {"haproxy.cfg": files["haproxy.cfg"]}
    if routed := router_backends([part for part in parts if part.scheduler == "kubernetes"]):
        files["routes.yaml"] = render_export("router/routes.yaml.j2", backends=routed, **values)
    return {f"router/{name}": text for name, text in files.items()}
