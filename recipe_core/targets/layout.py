"""Processes that share a pod, and pods that form one workload."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from recipe_core.launch.process import Launch, Process
from recipe_core.targets.context import Context


def port_values(launch: Launch, port: int) -> dict[str, str]:
    """Ports by their offsets from the first: ``port0`` and so on."""
    last = max(process.port_offset for process in launch.processes)
    return {f"port{n}": str(port + n) for n in range(last + 1)}


def port_of(context: Context, process: Process) -> int:
    return context.parameters.port + process.port_offset


def port_name(process: Process) -> str:
    """The name of a port, at most 15 characters."""
    return f"http-{process.port_offset}" if process.port_offset else "http"


Pod = tuple[Process, ...]
INDEX = "${index}"  # a pod's number within its unit; every target has its own variable for it
_AT = re.compile(r"\$\{node\d+\}:\$\{port(\d+)\}")
NODE = re.compile(r"\$\{node(\d+)\}")


@dataclass(frozen=True, slots=True)
class Unit:
    """``copies`` of the same ``pods``, one pod per node; the first one leads and answers requests.

    ``name`` is that of its first process, empty for a single unit. Its processes name addresses
    from the unit's view: ``${self}`` (the pod), ``${head}`` (the leader), ``${node1}`` … (pods of
    the unit), ``${at3}`` (address and port of the process with port offset 3, in any unit).
    """

    name: str
    copies: int
    pods: tuple[Pod, ...]

    @property
    def leader(self) -> Pod:
        return self.pods[0]

    @property
    def answers(self) -> bool:
        return any(process.answers for process in self.leader)


def launch_units(launch: Launch) -> tuple[Unit, ...]:
    """Units of a launch.

    Independent replicas are copies of one unit, with pods of their own. Processes of one node
    share a pod. Over several nodes every group is a unit, and so is the router.
    """
    groups = [
        [p for p in launch.processes if p.group == group]
        for group in sorted({p.group for p in launch.processes})
    ]
    pods = [_pods_of_processes(group) for group in groups]
    independent = all(p.role in ("server", "worker", "trainer") for p in launch.processes)
    if independent and len({_shape_of_pods(group) for group in pods}) == 1:
        return (Unit("", len(groups), _from_first_port(pods[0])),)
    if launch.nodes == 1 or launch.kind == "training":
        return (Unit("", 1, _pods_of_processes(list(launch.processes))),)
    return tuple(Unit(group[0].name, 1, pod) for group, pod in zip(groups, pods, strict=True))


def has_independent_servers(launch: Launch) -> bool:
    """Return whether servers know nothing of each other, so that each of them is a replica.

    Servers whose commands differ are parts of one: ranks that share experts.
    """
    if any(process.role not in ("server", "worker") for process in launch.processes):
        return False
    groups = {process.group for process in launch.processes}
    units = launch_units(launch)
    return len(units) == 1 and units[0].copies == len(groups)


def replica_devices(launch: Launch) -> int:
    """Devices of one replica: of a server that knows nothing of others, or of all together."""
    first_group = launch.processes[0].group
    standalone = has_independent_servers(launch)
    return sum(len(p.devices) for p in launch.processes if not standalone or p.group == first_group)


def by_role(launch: Launch) -> dict[str, Unit] | None:
    """The servers of each role as copies of one unit, without a router; None if commands differ.

    Environment variables are the first server's: only their ports differ, so that servers may
    share a node.
    """
    roles: dict[str, list[tuple[Pod, ...]]] = {}
    for group in sorted({p.group for p in launch.processes if p.role != "router"}):
        pods = _pods_of_processes([p for p in launch.processes if p.group == group])
        roles.setdefault(pods[0][0].role, []).append(_from_first_port(pods))
    for copies in roles.values():
        if len({tuple(tuple(p.argv for p in pod) for pod in pods) for pods in copies}) > 1:
            return None
    return {role: Unit("", len(copies), copies[0]) for role, copies in roles.items()}


def _pods_of_processes(processes: Sequence[Process]) -> tuple[Pod, ...]:
    nodes = sorted({p.node for p in processes})
    return tuple(tuple(_seen_from(p, nodes) for p in processes if p.node == node) for node in nodes)


def _seen_from(process: Process, nodes: Sequence[int]) -> Process:
    """The process with addresses as its unit sees them."""

    def address(placeholder: re.Match[str]) -> str:
        node = int(placeholder[1])
        if node == process.node:
            return "${self}"
        if node not in nodes:
            return placeholder[0]
        return "${head}" if node == nodes[0] else f"${{node{nodes.index(node)}}}"

    def word(text: str) -> str:
        text = NODE.sub(address, _AT.sub(r"${at\1}", text))
        return text.replace(f"${{port{process.port_offset}}}", "${port}")

    return replace(
        process,
        argv=tuple(map(word, process.argv)),
        env={key: word(value) for key, value in process.env.items()},
    )


def _from_first_port(pods: tuple[Pod, ...]) -> tuple[Pod, ...]:
    """The pods with ports counted from the first: copies in pods of their own do not collide."""
    lowest = min(p.port_offset for pod in pods for p in pod)
    return tuple(tuple(replace(p, port_offset=p.port_offset - lowest) for p in pod) for pod in pods)


def _shape_of_pods(pods: tuple[Pod, ...]) -> tuple[object, ...]:
    return tuple(
        (p.argv, tuple(sorted(p.env.items())), p.port_offset, len(p.devices), p.role)
        for pod in _from_first_port(pods)
        for p in pod
    )


def same_pod(pods: Sequence[Pod], first: int) -> Pod | None:
    """One pod that stands for all, numbered from ``first``; None where they differ in more.

    A word that is the pod's number becomes ``${index}``.
    """
    if len({len(pod) for pod in pods}) != 1:
        return None
    merged = [_merge_processes(column, first) for column in zip(*pods, strict=True)]
    processes = tuple(process for process in merged if process is not None)
    return processes if len(processes) == len(merged) else None


def _merge_processes(column: Sequence[Process], first: int) -> Process | None:
    lead = column[0]
    shapes = {(len(p.argv), tuple(p.env), p.port_offset, len(p.devices), p.role) for p in column}
    if len(shapes) > 1:
        return None
    argv = [_merge_words(words, first) for words in zip(*(p.argv for p in column), strict=True)]
    env = {key: _merge_words([p.env[key] for p in column], first) for key in lead.env}
    if None in argv or None in env.values():
        return None
    return replace(
        lead, argv=tuple(map(str, argv)), env={key: str(value) for key, value in env.items()}
    )


def _merge_words(words: Sequence[str], first: int) -> str | None:
    if len(set(words)) == 1:
        return words[0]
    return INDEX if list(words) == [str(first + n) for n in range(len(words))] else None
