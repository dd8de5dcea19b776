"""How ranks of vLLM find each other, and who balances requests among those that are data-parallel, by options that the user passes on.

``distributed_executor_backend: ray`` spreads an engine over nodes by a Ray cluster in place of vLLM's own multiprocessing.
``data_parallel_external_lb`` makes every data-parallel rank a server of its own, for a balancer that the user has;
``data_parallel_hybrid_lb`` one server a node, which balances among the ranks of its node.
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

EXTERNAL, HYBRID, EXECUTOR = (
    "data_parallel_external_lb",
    "data_parallel_hybrid_lb",
    "distributed_executor_backend",
)
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
        """Whether every node of a group answers requests."""
        return self.balancer == "hybrid" and group.nodes > 1 and group.split.dp > 1

    def joined(self, group: Group) -> bool:
        """Whether a group is one Ray cluster."""
        return self.ray and group.nodes > 1

    def options(self, group: Group, rank: int) -> dict[str, Any]:
        """What one node of a group is told about the others, besides the degrees."""
        found: dict[str, Any] = {EXECUTOR: "ray"} if self.ray else {}
        if group.part is not None:
            address = {
                "data_parallel_address": f"${{node{group.part.head}}}",
                "data_parallel_rpc_port": RPC_PORT + group.part.of,
            }
            return found | {EXTERNAL: True, "data_parallel_rank": group.part.rank, **address}
        if group.nodes == 1:
            return found
        if self.ray:
            return found | (_ray_replicas(group) if group.split.dp > 1 else {})
        found |= {
            "nnodes": group.nodes,
            "node_rank": rank,
            "master_addr": HEAD,
            "master_port": MASTER_PORT,
        }
        if self.answers(group):  # the rank that a node begins with is inferred from its number
            return found | {HYBRID: True, "data_parallel_size_local": ranks_of_node(group, HYBRID)}
        return found | ({"headless": True} if rank else {})

    def words(self, group: Group, rank: int, engine: list[str]) -> list[str]:
        """The words of a node: the engine's, on the first node of a Ray cluster behind its start, on the others only to join it."""
        if not self.joined(group):
            return engine
        own, devices = f"${{node{group.places[rank].node}}}", str(len(group.places[rank].devices))
        program, port = ["python3", f"${{root}}/{RAY}"], str(RAY_PORT)
        if rank:
            return [*program, "join", HEAD, port, own, devices]
        return [*program, "head", str(group.nodes), own, port, devices, "--", *engine]

    def environment(self, group: Group, rank: int) -> dict[str, str]:
        """The address by which ranks of other nodes find this one; where a replica takes several nodes, that Ray may spread it."""
        if not self.joined(group):
            return {}
        spans = (
            group.split.dp > 1 and len(group.places[0].devices) < group.split.tp * group.split.pp
        )
        packed = {"VLLM_RAY_DP_PACK_STRATEGY": "span"} if spans else {}
        return {"VLLM_HOST_IP": f"${{node{group.places[rank].node}}}", **packed}

    def files(self, placed: list[Group]) -> dict[str, str]:
        """What travels in the bundle for it."""
        return {RAY: NODE.read_text(encoding="utf-8")} if any(map(self.joined, placed)) else {}


def _ray_replicas(group: Group) -> dict[str, Any]:
    per_node = len(group.places[0].devices) // (group.split.tp * group.split.pp)
    return {"data_parallel_backend": "ray"} | (
        {"data_parallel_size_local": per_node} if per_node else {}
    )


def way_of(own: Mapping[str, Any]) -> tuple[Way, dict[str, Any]]:
    """The way that the user's options ask for, and the other options.

    Raises:
        InputError: for ways that exclude each other, and for executors that a launch does not lay out.
    """
    external, hybrid, executor = (
        bool(own.get(EXTERNAL)),
        bool(own.get(HYBRID)),
        own.get(EXECUTOR, "mp"),
    )
    if executor not in ("mp", "ray"):
        raise InputError(
            f"{executor} is not laid out here.", field=f"{FIELD}.{EXECUTOR}", hint="Use mp or ray."
        )
    if external and hybrid:
        raise InputError(
            f"excludes {HYBRID}.", field=f"{FIELD}.{EXTERNAL}", hint="Choose one of them."
        )
    if executor == "ray" and (external or hybrid):
        raise InputError(
            "does not go with a balancer outside vLLM here.",
            field=f"{FIELD}.{EXECUTOR}",
            hint="Use mp, or its own balancer.",
        )
    rest = {name: value for name, value in own.items() if name not in WAYS}
    return Way(
        "external" if external else "hybrid" if hybrid else "internal", executor == "ray"
    ), rest


def refuse_ways(own: Mapping[str, Any], title: str) -> None:
    """Raise for an engine around vLLM, which joins ranks and balances itself."""
    if asked := [name for name in WAYS if own.get(name) not in (None, False, "mp")]:
        raise InputError(
            f"is left to {title}.",
            field=f"{FIELD}.{asked[0]}",
            hint="Leave it out, or use the engine vllm.",
        )
