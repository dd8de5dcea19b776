"""Weights of routers: HAProxy's configuration, and routes of the Gateway API.

A model answers below ``/NAME/``, and by the ``model`` of a request's body where no other model of
the fleet is served under that name.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from recipe_core.fleets.answer import FleetAnswer
from recipe_core.fleets.exports.parts import Part
from recipe_core.fleets.exports.texts import render_export
from recipe_core.request.describe import model_short_name

# The range of a server's weight in HAProxy; 0 sends it nothing.
HIGHEST_WEIGHT = 256
HEALTH = "/health"


@dataclass(frozen=True, slots=True)
class RouterPlace:
    """The place that routers pass requests on to.

    ``namespace`` and ``port`` are those of Services. ``health`` are paths by a placement's name,
    ``served`` names that servers answer to, where bundles state others than usual ones.
    """

    namespace: str
    port: int = 8000
    health: Mapping[str, str] = field(default_factory=dict)
    served: Mapping[str, str] = field(default_factory=dict)

    def body_name(self, part: Part) -> str | None:
        """The name that its servers answer to; None for a model that a request writes out."""
        model = part.placement.request.get("model")
        usual = model_short_name(model) if isinstance(model, str) else None
        return self.served.get(part.name, usual)


@dataclass(frozen=True, slots=True)
class RouterServer:
    """One address that a router passes requests on to, with its weight by HAProxy."""

    name: str
    address: str
    share: float
    weight: int


@dataclass(frozen=True, slots=True)
class Backend:
    """The servers of one model; None for a name or health path that is not all of theirs alone."""

    model: str
    served: str | None
    health: str | None
    servers: tuple[RouterServer, ...]


def integer_weights(shares: Sequence[float], highest: int = HIGHEST_WEIGHT) -> list[int]:
    """Whole weights whose shares are as near to ``shares`` as they can be, relative to each.

    A share above 0 has a weight of 1 at least. Of several scales that are equally near, the
    smallest.
    """
    largest, total = max(shares, default=0.0), sum(shares)
    best, smallest_error = [0] * len(shares), float("inf")
    for scale in range(1, highest + 1) if largest > 0 else ():
        weights = [max(1, round(share / largest * scale)) if share > 0 else 0 for share in shares]
        error = max(
            abs(weight / sum(weights) * total / share - 1)
            for weight, share in zip(weights, shares, strict=True)
            if share > 0
        )
        if error < smallest_error - 1e-12:
            best, smallest_error = weights, error
    return best


def part_shares(parts: Sequence[Part], period: str | None = None) -> list[float]:
    """The share of a model's requests that each of its parts has.

    In a period by its load; without one the weights of the plan, of the busiest. Where neither is
    above 0, by replicas.
    """
    weights = [part.placement.weight if period is None else part.load_in(period) for part in parts]
    if sum(weights) <= 0:
        weights = [float(_running(part, period)) for part in parts]
    total = sum(weights)
    return [weight / total if total > 0 else 0.0 for weight in weights]


def _running(part: Part, period: str | None) -> int:
    return part.replicas if period is None else part.replicas_in(period)


def router_backends(
    parts: Sequence[Part], place: RouterPlace, period: str | None = None
) -> list[Backend]:
    """One backend a model: a Service of Kubernetes is one server, elsewhere each replica."""
    by_model: dict[str, list[Part]] = {}
    for part in parts:
        if not part.is_job:
            by_model.setdefault(part.owner.name, []).append(part)
    names = {m: _single(map(place.body_name, ps)) for m, ps in by_model.items()}
    counts = Counter(names.values())
    return [
        Backend(
            model,
            names[model] if counts[names[model]] == 1 else None,
            _single(place.health.get(part.name, HEALTH) for part in own_parts),
            _weighted_servers(own_parts, parts, place, period),
        )
        for model, own_parts in by_model.items()
    ]


def _single(values: Iterable[str | None]) -> str | None:
    """The value that all have; None where they differ."""
    different = set(values)
    return different.pop() if len(different) == 1 else None


def _weighted_servers(
    own_parts: Sequence[Part], parts: Sequence[Part], place: RouterPlace, period: str | None
) -> tuple[RouterServer, ...]:
    rows: list[tuple[str, str, float]] = []
    for part, share in zip(own_parts, part_shares(own_parts, period), strict=True):
        if part.scheduler == "kubernetes":
            address = f"{part.name}.{place.namespace}.svc.cluster.local:{place.port}"
            rows.append((part.name, address, share))
            continue
        count = _running(part, period)
        for k, (node, port, _) in enumerate(replica_places(part, parts, place.port)):
            rows.append((f"{part.name}-{k}", f"{node}:{port}", share / count if k < count else 0.0))
    weights = integer_weights([share for *_, share in rows])
    return tuple(RouterServer(*row, weight) for row, weight in zip(rows, weights, strict=True))


def replica_places(part: Part, parts: Sequence[Part], port: int) -> list[tuple[str, int, int]]:
    """Node, port and first device of each replica, in the order of the plan's nodes.

    On a node, parts have the ports and devices after those of the parts before them; slices are
    counted by kind, and devices that are cut come before whole ones. Slurm chooses nodes itself, so
    that all of its replicas have ports of their own.
    """
    earlier, cut = parts[: parts.index(part)], part.placement.slice
    places: list[tuple[str, int, int]] = []
    for share in part.placement.nodes:
        alike = [(p, s) for p in earlier for s in p.placement.nodes if s.node == share.node]
        first = port + sum(s.replicas for _, s in alike)
        if cut:
            device = sum(s.replicas for p, s in alike if p.placement.slice == cut)
        else:
            device = math.ceil(sum(s.devices for _, s in alike) - 1e-6)
            # jobs at the hours of fewer replicas: the last devices, which are free first
            spare = (part.pool.per_node or math.inf) - share.replicas * part.devices_each
            device = int(max(min(device, spare), 0))
        places += [
            (share.node, first + k, device + k * part.devices_each) for k in range(share.replicas)
        ]
    # of several nodes each, or without a place
    places += [(f"{part.pool.name}-{k}", port, 0) for k in range(len(places), part.replicas)]
    if part.scheduler == "slurm":
        port += sum(p.replicas for p in earlier if p.scheduler == "slurm")
        places = [(node, port + k, 0) for k, (node, *_) in enumerate(places)]
    return places[: part.replicas]


def router_files(answer: FleetAnswer, parts: Sequence[Part], place: RouterPlace) -> dict[str, str]:
    """HAProxy's configuration, its weights by period where they change, and the routes.

    Routes of the Gateway API are over Services of Kubernetes, so without placements elsewhere.
    """
    backends = router_backends(parts, place)
    if not backends:
        return {}
    values = {"fleet": answer.request.name, "namespace": place.namespace, "port": place.port}
    files = {"haproxy.cfg": render_export("router/haproxy.cfg.j2", backends=backends, **values)}
    weights = {
        f"weights-{period}.txt": render_export(
            "router/weights.txt.j2", backends=router_backends(parts, place, period)
        )
        for period in answer.periods
    }
    files |= weights if len(set(weights.values())) > 1 else {}
    inside = [part for part in parts if part.scheduler == "kubernetes"]
    if routed := router_backends(inside, place):
        files["routes.yaml"] = render_export("router/routes.yaml.j2", backends=routed, **values)
    return {f"router/{name}": text for name, text in files.items()}
