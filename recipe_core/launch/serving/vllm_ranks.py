"""How vLLM's ranks find each other, and who balances requests among them, by the user's options.

``distributed_executor_backend: ray`` spreads an engine over nodes by a Ray cluster in place of
vLLM's own multiprocessing. ``data_parallel_external_lb`` makes every data-parallel rank a server of
its own, for a balancer that the user has; ``data_parallel_hybrid_lb`` one server per node, which
balances among the ranks of its node.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from recipe_core.base.errors import InputError
from recipe_core.launch.serving.groups import Group, by_rank, ranks_of_node
from recipe_core.launch.serving.processes import HEAD, MASTER_PORT
from recipe_core.launch.user_options import FIELD

EXTERNAL, HYBRID = "data_parallel_external_lb", "data_parallel_hybrid_lb"
EXECUTOR = "distributed_executor_backend"
WAYS = (EXTERNAL, HYBRID, EXECUTOR)
RAY, NODE = "engine/ray_node.py", Path(__file__).with_name("ray_node.py")
RAY_PORT, RPC_PORT = 6379, 29550  # Ray's and vLLM's own defaults


@dataclass(frozen=True, slots=True)
class Way:
    """Who balances, and whether engines over several nodes are joined by Ray."""

    balancer: Literal["internal", "external", "hybrid"] = "internal"
    ray: bool = False

    def cut(self, placed: list[Group]) -> list[Group]:
        """The servers: with an external balancer every data-parallel rank."""
        return by_rank(placed) if self.balancer == "external" else placed

    def answers(self, group: Group) -> bool:
        return self.balancer == "hybrid" and group.nodes > 1 and group.split.dp > 1

    def joined(self, group: Group) -> bool:
        return self.ray and group.nodes > 1

    def options(self, group: Group, rank: int) -> dict[str, Any]:
        """What one node of a group is told about the others, besides the degrees."""
        options: dict[str, Any] = {EXECUTOR: "ray"} if self.ray else {}
        if group.part is not None:
            address = {
                "data_parallel_address": f"${{node{group.part.head}}}",
                "data_parallel_rpc_port": RPC_PORT + group.part.of,
            }
            rank = group.part.rank
            return {**options, EXTERNAL: True, "data_parallel_rank": rank, **address}
        if group.nodes == 1:
            return options
        if self.ray:
            return {**options, **_ray_replicas(group)} if group.split.dp > 1 else options
        options |= {
            "nnodes": group.nodes,
            "node_rank": rank,
            "master_addr": HEAD,
            "master_port": MASTER_PORT,
        }
        if self.answers(group):  # the rank that a node begins with is inferred from its number
            local = ranks_of_node(group, HYBRID)
            return {**options, HYBRID: True, "data_parallel_size_local": local}
        return {**options, "headless": True} if rank else options

    def words(self, group: Group, rank: int, engine: list[str]) -> list[str]:
        """The words of a node: the engine's; in a Ray cluster those that start or join it."""
        if not self.joined(group):
            return engine
        place = group.places[rank]
        address, devices = f"${{node{place.node}}}", str(len(place.devices))
        program, port = ["python3", f"${{root}}/{RAY}"], str(RAY_PORT)
        if rank:
            return [*program, "join", HEAD, port, address, devices]
        return [*program, "head", str(group.nodes), address, port, devices, "--", *engine]

    def environment(self, group: Group, rank: int) -> dict[str, str]:
        """The address by which other nodes find this one, and whether Ray may spread replicas."""
        if not self.joined(group):
            return {}
        variables = {"VLLM_HOST_IP": f"${{node{group.places[rank].node}}}"}
        size = group.split.tp * group.split.pp
        if group.split.dp > 1 and len(group.places[0].devices) < size:
            variables["VLLM_RAY_DP_PACK_STRATEGY"] = "span"
        return variables

    def files(self, placed: list[Group]) -> dict[str, str]:
        return {RAY: NODE.read_text(encoding="utf-8")} if any(map(self.joined, placed)) else {}


def _ray_replicas(group: Group) -> dict[str, Any]:
    per_node = len(group.places[0].devices) // (group.split.tp * group.split.pp)
    options: dict[str, Any] = {"data_parallel_backend": "ray"}
    if per_node:
        options["data_parallel_size_local"] = per_node
    return options


def way_of(options: Mapping[str, Any]) -> tuple[Way, dict[str, Any]]:
    """The way that the user's options ask for, and the other options.

    Raises:
        InputError: for ways that exclude each other, and for unsupported executors.
    """
    external, hybrid = bool(options.get(EXTERNAL)), bool(options.get(HYBRID))
    executor = options.get(EXECUTOR, "mp")
    if executor not in ("mp", "ray"):
        message = f"{executor} is not supported here."
        raise InputError(message, field=f"{FIELD}.{EXECUTOR}", hint="Use mp or ray.")
    if external and hybrid:
        message, field = f"excludes {HYBRID}.", f"{FIELD}.{EXTERNAL}"
        raise InputError(message, field=field, hint="Choose one of them.")
    if executor == "ray" and (external or hybrid):
        raise InputError(
            "does not go with a balancer outside vLLM here.",
            field=f"{FIELD}.{EXECUTOR}",
            hint="Use mp, or its own balancer.",
        )
    rest = {name: value for name, value in options.items() if name not in WAYS}
    balancer: Literal["internal", "external", "hybrid"] = "internal"
    if external:
        balancer = "external"
    elif hybrid:
        balancer = "hybrid"
    return Way(balancer, ray=executor == "ray"), rest


def refuse_ways(options: Mapping[str, Any], title: str) -> None:
    """Raise for an engine around vLLM, which joins ranks and balances itself."""
    for name in WAYS:
        if options.get(name) not in (None, False, "mp"):
            hint = "Leave it out, or use the engine vllm."
            raise InputError(f"is left to {title}.", field=f"{FIELD}.{name}", hint=hint)
