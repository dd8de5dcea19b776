"""From placed groups to processes: names, ports, devices, and the router before pools."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from recipe_core.launch.process import Process
from recipe_core.launch.serving.groups import Group

HEAD = "${head}"
# Where the ranks of an engine over several nodes meet; such engines share no node.
MASTER_PORT = 29501

Words = Callable[[Group, int], Sequence[str]]
Environment = Callable[[Group, int], dict[str, str]]


def _only_first(_: Group) -> bool:
    return False


def group_processes(
    groups: Sequence[Group],
    words: Words,
    env: Environment,
    *,
    first_port: int = 0,
    everywhere: Callable[[Group], bool] = _only_first,
) -> list[Process]:
    """One process per group and node; ``words`` and ``env`` are those of a node by its rank.

    Ports count up from ``first_port`` over the groups; a worker has its group's. ``everywhere``:
    whether all nodes of a group answer.
    """
    out: list[Process] = []
    counts: Counter[str] = Counter()
    for group in groups:
        name = f"{group.role}-{counts[group.role]}"
        counts[group.role] += 1
        for rank, place in enumerate(group.places):
            out.append(
                Process(
                    name=f"{name}-node{rank}" if rank else name,
                    argv=tuple(words(group, rank)),
                    env=env(group, rank),
                    port_offset=first_port + group.number,
                    devices=place.devices,
                    node=place.node,
                    role="worker" if rank and not everywhere(group) else group.role,
                    group=group.number,
                )
            )
    return out


def router_process(
    argv: Sequence[str], groups: Sequence[Group], env: dict[str, str] | None = None
) -> Process:
    """The process that requests go to where pools answer; it uses no device."""
    return Process("router", tuple(argv), env or {}, 0, (), 0, "router", len(groups))


def group_url(group: Group, first_port: int = 1) -> str:
    return f"http://${{node{group.places[0].node}}}:${{port{first_port + group.number}}}"
