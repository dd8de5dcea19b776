"""Weights of routers: HAProxy's configuration, and routes of the Gateway API.

A model answers below ``/NAME/``, and by the ``model`` of a request's body where no other model of
the fleet is served under that name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from recipe_core.fleet.answer import FleetAnswer
from recipe_core.fleet.exports.parts import Part, served_name
from recipe_core.fleet.exports.texts import render_export

# The range of a server's weight in HAProxy; 0 sends it nothing.
HIGHEST_WEIGHT = 256
HEALTH = "/health"


@dataclass(frozen=True, slots=True)
class RouterPlace:
    """The place that routers pass requests on to.

    ``namespace`` and ``port`` are those of Services; ``health`` are paths by a part's name, and
    ``served`` the names that servers answer to, where bundles state others than usual ones.
    """

    namespace: str
    port: int = 8000
    health: Mapping[str, str] = field(default_factory=dict)
    served: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RouterServer:
    """One address that a router passes requests on to, with its weight by HAProxy."""

    name: str
    variable: str
    address: str
    share: float
    weight: int


@dataclass(frozen=True, slots=True)
class Backend:
    """The servers of one model; ``served`` is the body's name for it, None where not its alone."""

    model: str
    served: str | None
    health: str | None
    servers: tuple[RouterServer, ...]


def integer_weights(shares: Sequence[float], highest: int = HIGHEST_WEIGHT) -> list[int]:
    """Whole weights whose shares are as near to ``shares`` as they can be, relative to each.

    A share above 0 has a weight of 1 at least. Of several scales that are equally near, the
    smallest.
    """
    largest = max(shares, default=0.0)
    if largest <= 0:
        return [0] * len(shares)
    planned = [share / sum(shares) for share in shares]
    best, smallest_error = [0] * len(shares), float("inf")
    for scale in range(1, highest + 1):
        weights = [max(1, round(share / largest * scale)) if share > 0 else 0 for share in shares]
        total = sum(weights)
        error = max(
            abs(weight / total / share - 1)
            for weight, share in zip(weights, planned, strict=True)
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
        counts = [part.replicas if period is None else part.replicas_in(period) for part in parts]
        weights = [float(count) for count in counts]
    total = sum(weights)
    return [weight / total if total > 0 else 0.0 for weight in weights]


def router_backends(
    parts: Iterable[Part], place: RouterPlace, period: str | None = None
) -> list[Backend]:
    """One backend a model: a Service of Kubernetes is one server, elsewhere each replica."""
    by_model: dict[str, list[Part]] = {}
    for part in parts:
        if not part.is_job:
            by_model.setdefault(part.owner.name, []).append(part)
    names = {model: _body_name(own_parts, place) for model, own_parts in by_model.items()}
    counts = Counter(names.values())
    return [
        Backend(
            model,
            names[model] if counts[names[model]] == 1 else None,
            _health_path(own_parts, place),
            _weighted_servers(own_parts, place, period),
        )
        for model, own_parts in by_model.items()
    ]


def _body_name(parts: Sequence[Part], place: RouterPlace) -> str | None:
    names = {place.served.get(part.name) or served_name(part.placement) for part in parts}
    return names.pop() if len(names) == 1 else None


def _health_path(parts: Sequence[Part], place: RouterPlace) -> str | None:
    """The path that all servers of a model answer to; None where they differ."""
    paths = {place.health.get(part.name, HEALTH) for part in parts}
    return paths.pop() if len(paths) == 1 else None


def _weighted_servers(
    parts: Sequence[Part], place: RouterPlace, period: str | None
) -> tuple[RouterServer, ...]:
    rows: list[tuple[str, str, float]] = []
    for part, share in zip(parts, part_shares(parts, period), strict=True):
        if part.scheduler == "kubernetes":
            rows.append((part.name, _service_address(part, place), share))
            continue
        running = part.replicas if period is None else part.replicas_in(period)
        addresses = _replica_addresses(part, place)
        for k, address in enumerate(addresses):
            rows.append((f"{part.name}-{k}", address, share / running if k < running else 0.0))
    weights = integer_weights([share for _, _, share in rows])
    return tuple(
        RouterServer(name, f"ADDRESS_{name.upper().replace('-', '_')}", address, share, weight)
        for (name, address, share), weight in zip(rows, weights, strict=True)
    )


def _service_address(part: Part, place: RouterPlace) -> str:
    return f"{part.name}.{place.namespace}.svc.cluster.local:{place.port}"


def _replica_addresses(part: Part, place: RouterPlace) -> list[str]:
    """Nodes by their names in the plan, and on each the ports from the first one on."""
    return [f"{node}:{port}" for node, port, _ in replica_places(part, place.port)]


def replica_places(part: Part, first_port: int) -> list[tuple[str, int, int]]:
    """Node, port and first device of each replica, in the order of the plan's nodes.

    Every part has ports of its own on a node: those that start there after the ones before it.
    """
    places: list[tuple[str, int, int]] = []
    for share in part.placement.nodes:
        port, device = _first_free(part, share.node, first_port)
        for k in range(share.replicas):
            places.append((share.node, port + k, device + k * part.devices_each))
    for k in range(len(places), part.replicas):  # of several nodes each, or without a place
        places.append((f"{part.pool.name}-{k}", first_port, 0))
    return places[: part.replicas]


def _first_free(part: Part, node: str, first_port: int) -> tuple[int, int]:
    """The first port and device of a node that no placement before this one has."""
    port, device = first_port, 0
    for owner in (*part.answer.models, *part.answer.jobs):
        for placement in owner.placements:
            if placement is part.placement:
                return port, device
            for share in placement.nodes:
                if share.node == node:
                    port += share.replicas
                    device += round(share.devices)
    return port, device


def weight_commands(backends: Sequence[Backend]) -> str:
    """Commands of HAProxy's runtime API that set the weights of a period."""
    lines = [
        f"set server model-{backend.model}/{server.name} weight {server.weight}"
        for backend in backends
        for server in backend.servers
    ]
    return "".join(f"{line}\n" for line in lines)


def router_files(answer: FleetAnswer, parts: Sequence[Part], place: RouterPlace) -> dict[str, str]:
    """HAProxy's configuration, its weights by period where they change, and the routes.

    Routes of the Gateway API are over Services of Kubernetes, so without placements elsewhere.
    """
    backends = router_backends(parts, place)
    values = {"fleet": answer.request.name, "namespace": place.namespace, "port": place.port}
    if not backends:
        return {}
    files = {
        "router/haproxy.cfg": render_export("router/haproxy.cfg.j2", backends=backends, **values)
    }
    by_period = {
        period: weight_commands(router_backends(parts, place, period)) for period in answer.periods
    }
    if len(set(by_period.values())) > 1:
        files |= {f"router/weights-{period}.txt": text for period, text in by_period.items()}
    inside = [part for part in parts if part.scheduler == "kubernetes"]
    if routed := router_backends(inside, place):
        routes = render_export("router/routes.yaml.j2", backends=routed, **values)
        files["router/routes.yaml"] = routes
    return files
