"""Kubernetes documents: every pod template in them, whatever kind holds it.

Deployments, StatefulSets, Jobs, Pods, LeaderWorkerSets and resources of other projects keep
``containers`` of a pod somewhere below their ``spec``; Dynamo's graphs a ``mainContainer``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from recipe_core.targets.deployments.containers import (
    engines_in,
    pod_container,
    pod_devices,
    with_notes,
)
from recipe_core.targets.deployments.deployed import DeployedEngine, Left, Place
from recipe_core.targets.deployments.devices import chosen, labels, resources
from recipe_core.targets.deployments.documents import (
    Mapped,
    count,
    line_of,
    mapping,
    mappings,
    walk,
)

_MAX_PODS = 1000


def read_kubernetes(documents: Sequence[Any]) -> Iterator[DeployedEngine | Left]:
    """The engines of documents, those of a ``kind: List`` too."""
    for document in documents:
        if isinstance(document, Mapped):
            for item in [*mappings(document.get("items")), document]:
                yield from read_resource(item)


def read_resource(document: Mapped) -> Iterator[DeployedEngine | Left]:
    if "List" in str(document.get("kind")) and "items" in document:
        return
    for number, (path, pod) in enumerate(walk(document)):
        if number > 100 * _MAX_PODS:
            return
        for container in _containers(pod):
            yield from _read_container(document, path, pod, container)


def name_of(document: Mapping[str, Any]) -> str:
    """``Deployment/chat``, as ``kubectl`` names things."""
    name = mapping(document.get("metadata")).get("name")
    return f"{document.get('kind') or 'document'}/{name or 'unnamed'}"


def _containers(pod: Mapped) -> Iterator[Mapped]:
    """The containers of a pod, the main one of a Dynamo component among them."""
    yield from mappings(pod.get("containers"))
    main = pod.get("mainContainer")
    if isinstance(main, Mapped):
        yield main


def _read_container(
    document: Mapped, path: Sequence[str], pod: Mapped, container: Mapped
) -> Iterator[DeployedEngine | Left]:
    where = f"{name_of(document)}: {container.get('name') or '.'.join(path[-3:]) or 'container'}"
    outer = _outer(document, path)
    place = place_of(pod, container, outer)
    yield from engines_in(
        pod_container(container, _shares_memory(pod)),
        where,
        line_of(container),
        place,
        replicas=count(next((each["replicas"] for each in outer if "replicas" in each), "")) or 1,
    )


def _outer(document: Mapped, path: Sequence[str]) -> list[Mapped]:
    """The mappings around a pod, the innermost first."""
    out, here = [document], document
    for key in path:
        value: Any = here[int(key)] if isinstance(here, list) else here.get(key)
        here = value
        if isinstance(value, Mapped):
            out.append(value)
    return out[::-1]


def place_of(pod: Mapped, container: Mapped, outer: Sequence[Mapped]) -> Place:
    """The devices of a container: what it asks for, on nodes that its pod may run on."""
    per_node, wrong = pod_devices(container, resources())
    if per_node is None and outer:
        per_node = _component_devices(outer)
    names = list(node_names(pod)) or [""]
    return with_notes(chosen([(name, per_node) for name in names], nodes=_nodes(outer)), wrong)


def _component_devices(outer: Sequence[Mapped]) -> int | None:
    """Devices that a Dynamo component around the pod asks for (``resources.limits.gpu``)."""
    for each in outer:
        limits = mapping(mapping(each.get("resources")).get("limits"))
        if "gpu" in limits:
            return count(limits["gpu"])
    return None


def _nodes(outer: Sequence[Mapped]) -> int | None:
    """Nodes of a group of pods that is one server: of a LeaderWorkerSet, of a Dynamo component."""
    for each in outer:
        group = mapping(each.get("leaderWorkerTemplate"))
        size = count(group.get("size")) or count(mapping(each.get("multinode")).get("nodeCount"))
        if size and size > 1:
            return size
    return None


def node_names(pod: Mapped) -> Iterator[str]:
    """What a pod says of its nodes' devices: selectors and required or preferred affinity."""
    for label, value in mapping(pod.get("nodeSelector")).items():
        if label in labels() and isinstance(value, str):
            yield value
    affinity = mapping(mapping(pod.get("affinity")).get("nodeAffinity"))
    required = mapping(affinity.get("requiredDuringSchedulingIgnoredDuringExecution"))
    yield from term_names(mappings(required.get("nodeSelectorTerms")))


def term_names(terms: Sequence[Mapped]) -> Iterator[str]:
    for term in terms:
        for rule in mappings(term.get("matchExpressions")):
            if rule.get("key") in labels() and rule.get("operator") == "In":
                values = rule.get("values")
                yield from (v for v in values or () if isinstance(v, str))


def _shares_memory(pod: Mapped) -> bool:
    """Whether a pod mounts memory for its processes to share."""
    volumes = mappings(pod.get("volumes"))
    memory = any(mapping(each.get("emptyDir")).get("medium") == "Memory" for each in volumes)
    return memory or pod.get("hostIPC") == "true" or "sharedMemory" in pod
