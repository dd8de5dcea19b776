"""Which processes of a launch share a pod, how many copies of such pods there are, and what differs between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from recipe_core.engines.deployment import Launch, Process

Pod = tuple[Process, ...]
INDEX = "${index}"  # the number of a pod within its copy, filled by what a target calls it


@dataclass(frozen=True, slots=True)
class Layout:
    """``copies`` of the same ``pods``, one pod a node; the first one leads and answers requests."""

    copies: int
    pods: tuple[Pod, ...]

    @property
    def leader(self) -> Pod:
        """The pod that the others find by address."""
        return self.pods[0]


def layout(launch: Launch) -> Layout:
    """Replicas that know nothing of each other are copies, each with pods of its own; anything else is one pod a node."""
    groups = [[p for p in launch.processes if p.group == group] for group in sorted({p.group for p in launch.processes})]
    pods = [_pods(group) for group in groups]
    alone = all(p.role in ("server", "worker") for p in launch.processes)
    if alone and len({_shape(group) for group in pods}) == 1:
        return Layout(copies=len(groups), pods=pods[0])
    return Layout(copies=1, pods=_pods(list(launch.processes)))


def _pods(processes: Sequence[Process]) -> tuple[Pod, ...]:
    nodes = sorted({p.node for p in processes})
    lowest = min(p.port_offset for p in processes)
    return tuple(tuple(replace(p, port_offset=p.port_offset - lowest) for p in processes if p.node == node) for node in nodes)


def _shape(pods: tuple[Pod, ...]) -> tuple[object, ...]:
    """What has to be equal for two groups to be copies of each other."""
    return tuple((p.argv, tuple(sorted(p.env.items())), p.port_offset, len(p.devices), p.role) for pod in pods for p in pod)


def same_pod(pods: Sequence[Pod], first: int) -> Pod | None:
    """One pod that stands for all of them, numbered from ``first``: a word that is each pod's number becomes ``${index}``.

    None where they differ in anything else.
    """
    merged = [_merge(column, first) for column in zip(*pods, strict=False)]
    known = tuple(process for process in merged if process is not None)
    return known if len({len(pod) for pod in pods}) == 1 and len(known) == len(merged) else None


def _merge(column: Sequence[Process], first: int) -> Process | None:
    lead = column[0]
    if len({(len(p.argv), tuple(p.env), p.port_offset, len(p.devices), p.role) for p in column}) > 1:
        return None
    argv = [_word(words, first) for words in zip(*(p.argv for p in column), strict=True)]
    env = {key: _word([p.env[key] for p in column], first) for key in lead.env}
    if None in argv or None in env.values():
        return None
    return replace(lead, argv=tuple(map(str, argv)), env={key: str(value) for key, value in env.items()})


def _word(words: Sequence[str], first: int) -> str | None:
    if len(set(words)) == 1:
        return words[0]
    return INDEX if list(words) == [str(first + n) for n in range(len(words))] else None
