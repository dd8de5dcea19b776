"""Who reaches the pods of a recipe, and what they reach: a NetworkPolicy for every kind."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from recipe_core.targets.context import Context
from recipe_core.targets.pod import object_metadata
from recipe_core.targets.ports import port_of

DNS, HTTPS, API_SERVER = 53, 443, 6443
KNATIVE = (
    "knative-serving"  # whose activator passes requests on, and whose autoscaler asks for counts
)


def served_ports(context: Context) -> list[int]:
    """The ports at which processes answer, and the first one."""
    answering = {port_of(context, p) for p in context.launch.processes if p.answers}
    return sorted(answering | {context.parameters.port})


def network_policy(
    context: Context,
    pods: dict[str, str],
    ports: Sequence[int],
    *,
    knative: bool = False,
    asks_cluster: bool = False,
) -> dict[str, Any]:
    """Lets in the namespace, monitoring and the gateway; lets out to itself, DNS and a hub.

    A training run lets in its own pods alone.

    Args:
        context: the recipe.
        pods: labels of its pods.
        ports: at which they answer.
        knative: whether requests arrive through Knative's proxy, at ports of its own.
        asks_cluster: whether a container beside the engine asks the cluster for other pods.
    """
    parameters = context.parameters
    callers = [{"podSelector": {}}, _namespace_selector(parameters.monitoring_namespace)]
    if parameters.gateway_namespace:
        callers.append(_namespace_selector(parameters.gateway_namespace))
    peers = {"podSelector": {"matchLabels": pods}}
    entry: dict[str, Any] = {"from": callers}
    if not knative:
        entry["ports"] = _tcp_ports(ports)
    outside = [] if context.model_is_folder else [HTTPS]
    if asks_cluster:
        outside = [HTTPS, API_SERVER]
    dns = {"ports": [{"protocol": protocol, "port": DNS} for protocol in ("UDP", "TCP")]}
    spec = {
        "podSelector": {"matchLabels": pods},
        "policyTypes": ["Ingress", "Egress"],
        "ingress": [
            *([entry] if context.kind == "serving" else []),
            {"from": [peers]},
            *([{"from": [_namespace_selector(KNATIVE)]}] if knative else []),
        ],
        "egress": [{"to": [peers]}, dns, *([{"ports": _tcp_ports(outside)}] if outside else [])],
    }
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": object_metadata(context),
        "spec": spec,
    }


def _namespace_selector(name: str) -> dict[str, Any]:
    return {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": name}}}


def _tcp_ports(ports: Iterable[int]) -> list[dict[str, Any]]:
    return [{"protocol": "TCP", "port": port} for port in ports]
