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
from recipe_core.targets.deployments.deployed import DeployedEngine, Place, UnreadPart
from recipe_core.targets.deployments.devices import (
    choose_device_place,
    device_labels,
    device_resources,
)
from recipe_core.targets.deployments.documents import (
    Mapped,
    line_of,
    parse_count,
    walk_mappings,
    yaml_mapping,
    yaml_mappings,
)

_MAX_PODS = 1000


def read_kubernetes(documents: Sequence[Any]) -> Iterator[DeployedEngine | UnreadPart]:
    """The engines of documents, those of a ``kind: List`` too."""
    for document in documents:
        if isinstance(document, Mapped):
            for item in [*yaml_mappings(document.get("items")), document]:
                yield from read_resource(item)


def read_resource(document: Mapped) -> Iterator[DeployedEngine | UnreadPart]:
    if "List" in str(document.get("kind")) and "items" in document:
        return
    for number, (path, pod) in enumerate(walk_mappings(document)):
        if number > 100 * _MAX_PODS:
            return
        for container in _pod_containers(pod):
            yield from _read_container(document, path, pod, container)


def resource_name(document: Mapping[str, Any]) -> str:
    """``Deployment/chat``, as ``kubectl`` names things."""
    name = yaml_mapping(document.get("metadata")).get("name")
    return f"{document.get('kind') or 'document'}/{name or 'unnamed'}"


def _pod_containers(pod: Mapped) -> Iterator[Mapped]:
    """The containers of a pod, the main one of a Dynamo component among them."""
    yield from yaml_mappings(pod.get("containers"))
    main = pod.get("mainContainer")
    if isinstance(main, Mapped):
        yield main


def _read_container(
    document: Mapped, path: Sequence[str], pod: Mapped, container: Mapped
) -> Iterator[DeployedEngine | UnreadPart]:
    where = (
        f"{resource_name(document)}: {container.get('name') or '.'.join(path[-3:]) or 'container'}"
    )
    outer = _enclosing_mappings(document, path)
    place = container_place(pod, container, outer)
    yield from engines_in(
        pod_container(container, _shares_memory(pod)),
        where,
        line_of(container),
        place,
        replicas=parse_count(
            next((mapping["replicas"] for mapping in outer if "replicas" in mapping), "")
        )
        or 1,
    )


def _enclosing_mappings(document: Mapped, path: Sequence[str]) -> list[Mapped]:
    """The mappings around a pod, the innermost first."""
    mappings, node = [document], document
    for key in path:
        value: Any = node[int(key)] if isinstance(node, list) else node.get(key)
        node = value
        if isinstance(value, Mapped):
            mappings.append(value)
    return mappings[::-1]


def container_place(pod: Mapped, container: Mapped, outer: Sequence[Mapped]) -> Place:
    """The devices of a container: what it asks for, on nodes that its pod may run on."""
    per_node, wrong = pod_devices(container, device_resources())
    if per_node is None and outer:
        per_node = _component_devices(outer)
    names = list(node_device_names(pod)) or [""]
    return with_notes(
        choose_device_place([(name, per_node) for name in names], nodes=_group_nodes(outer)), wrong
    )


def _component_devices(outer: Sequence[Mapped]) -> int | None:
    """Devices that a Dynamo component around the pod asks for (``resources.limits.gpu``)."""
    for mapping in outer:
        limits = yaml_mapping(yaml_mapping(mapping.get("resources")).get("limits"))
        if "gpu" in limits:
            return parse_count(limits["gpu"])
    return None


def _group_nodes(outer: Sequence[Mapped]) -> int | None:
    """Nodes of a group of pods that is one server: of a LeaderWorkerSet, of a Dynamo component."""
    for mapping in outer:
        group = yaml_mapping(mapping.get("leaderWorkerTemplate"))
        size = parse_count(group.get("size")) or parse_count(
            yaml_mapping(mapping.get("multinode")).get("nodeCount")
        )
        if size and size > 1:
            return size
    return None


def node_device_names(pod: Mapped) -> Iterator[str]:
    """What a pod says of its nodes' devices: selectors and required or preferred affinity."""
    for label, value in yaml_mapping(pod.get("nodeSelector")).items():
        if label in device_labels() and isinstance(value, str):
            yield value
    affinity = yaml_mapping(yaml_mapping(pod.get("affinity")).get("nodeAffinity"))
    required = yaml_mapping(affinity.get("requiredDuringSchedulingIgnoredDuringExecution"))
    yield from term_names(yaml_mappings(required.get("nodeSelectorTerms")))


def term_names(terms: Sequence[Mapped]) -> Iterator[str]:
    for term in terms:
        for rule in yaml_mappings(term.get("matchExpressions")):
            if rule.get("key") in device_labels() and rule.get("operator") == "In":
                values = rule.get("values")
                yield from (v for v in values or () if isinstance(v, str))


def _shares_memory(pod: Mapped) -> bool:
    """Whether a pod mounts memory for its processes to share."""
    volumes = yaml_mappings(pod.get("volumes"))
    memory = any(
        yaml_mapping(volume.get("emptyDir")).get("medium") == "Memory" for volume in volumes
    )
    return memory or pod.get("hostIPC") == "true" or "sharedMemory" in pod
