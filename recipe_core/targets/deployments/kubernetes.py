"""Kubernetes documents: pod templates of whatever kind, and KServe's services with their models.

Deployments, StatefulSets, Jobs, Pods, LeaderWorkerSets and resources of other projects keep
``containers`` of a pod somewhere below their ``spec``; Dynamo's graphs a ``mainContainer``.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from recipe_core.commands.launches import first_launch
from recipe_core.targets.deployments.deployment import (
    DeployedEngine,
    Place,
    UnreadPart,
    choose_device_place,
    device_labels,
    device_resources,
    engines_in,
    pod_container,
    pod_devices,
    pod_environment,
    with_notes,
)
from recipe_core.targets.deployments.documents import (
    Mapped,
    filled_pod,
    line_of,
    parse_count,
    reader_words,
    value_at,
    walk_mappings,
    yaml_mapping,
    yaml_mappings,
    yaml_texts,
)

_MAX_PODS = 1000


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
    name = value_at(document, "metadata", "name")
    return f"{document.get('kind') or 'document'}/{name or 'unnamed'}"


def _pod_containers(pod: Mapped) -> Iterator[Mapped]:
    """The containers of a pod, the main one of a Dynamo component among them."""
    yield from yaml_mappings(pod, "containers")
    main = pod.get("mainContainer")
    if isinstance(main, Mapped):
        yield main


def _read_container(
    document: Mapped, path: Sequence[str], pod: Mapped, container: Mapped
) -> Iterator[DeployedEngine | UnreadPart]:
    name = container.get("name") or ".".join(path[-3:]) or "container"
    outer = _enclosing_mappings(document, path)
    replicas = next((mapping["replicas"] for mapping in outer if "replicas" in mapping), "")
    yield from _pod_engines(
        f"{resource_name(document)}: {name}",
        pod,
        container,
        outer,
        parse_count(replicas),
        shares_memory=_shares_memory(pod),
    )


def _pod_engines(
    where: str,
    pod: Mapped,
    container: Mapped,
    outer: Sequence[Mapped],
    replicas: int | None,
    *,
    model: str | None = None,
    shares_memory: bool = True,
) -> Iterator[DeployedEngine | UnreadPart]:
    """The engines of a pod's container; ``outer``: the mappings around the pod."""
    yield from engines_in(
        pod_container(container, shares_memory),
        where,
        line_of(container),
        container_place(pod, container, outer),
        model=model,
        replicas=replicas or 1,
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
    per_node, wrong, part = pod_devices(container, device_resources())
    if per_node is None and outer:
        per_node = _component_devices(outer)
    names = [f"{name}-{part}" if part else name for name in node_device_names(pod)] or [""]
    place = choose_device_place([(name, per_node) for name in names], nodes=_group_nodes(outer))
    if place.device and part and place.device.endswith(f"-{part}"):
        return place
    return with_notes(replace(place, per_node=1) if part else place, wrong)


def _component_devices(outer: Sequence[Mapped]) -> int | None:
    """Devices that a Dynamo component around the pod asks for (``resources.limits.gpu``)."""
    for mapping in outer:
        limits = yaml_mapping(mapping, "resources", "limits")
        if "gpu" in limits:
            return parse_count(limits["gpu"])
    return None


def _group_nodes(outer: Sequence[Mapped]) -> int | None:
    """Nodes of a group of pods that is one server: of a LeaderWorkerSet, of a Dynamo component."""
    for mapping in outer:
        group = yaml_mapping(mapping, "leaderWorkerTemplate")
        size = parse_count(group, "size") or parse_count(mapping, "multinode", "nodeCount")
        if size and size > 1:
            return size
    return None


def node_device_names(pod: Mapped) -> Iterator[str]:
    """Yield what a pod says of its nodes' devices: selectors and required or preferred affinity."""
    for label, value in yaml_mapping(pod, "nodeSelector").items():
        if label in device_labels() and isinstance(value, str):
            yield value
    affinity = yaml_mapping(pod, "affinity", "nodeAffinity")
    required = yaml_mapping(affinity, "requiredDuringSchedulingIgnoredDuringExecution")
    yield from term_names(yaml_mappings(required, "nodeSelectorTerms"))


def term_names(terms: Sequence[Mapped]) -> Iterator[str]:
    for term in terms:
        for rule in yaml_mappings(term, "matchExpressions"):
            if rule.get("key") in device_labels() and rule.get("operator") == "In":
                values = rule.get("values")
                yield from (v for v in values or () if isinstance(v, str))


def _shares_memory(pod: Mapped) -> bool:
    """Return whether a pod mounts memory for its processes to share."""
    volumes = yaml_mappings(pod, "volumes")
    memory = any(value_at(volume, "emptyDir", "medium") == "Memory" for volume in volumes)
    return memory or pod.get("hostIPC") == "true" or "sharedMemory" in pod


def read_kserve_document(document: Mapped) -> Iterator[DeployedEngine | UnreadPart]:
    """The engines of a document of KServe."""
    spec = yaml_mapping(document, "spec")
    if document.get("kind") == "LLMInferenceService":
        yield from _read_llm(document, spec)
    elif document.get("kind") == "InferenceService":
        yield from _read_predictor(document, yaml_mapping(spec, "predictor"))
    else:
        yield from read_resource(document)


def hub_name(uri: object) -> str | None:
    """The model of ``hf://owner/name``, with its revision; None for another storage."""
    if not isinstance(uri, str) or not uri.startswith("hf://"):
        return None
    name, _, revision = uri.removeprefix("hf://").strip("/").partition(":")
    return f"{name}@{revision}" if revision else name


def _read_predictor(document: Mapped, predictor: Mapped) -> Iterator[DeployedEngine | UnreadPart]:
    where = resource_name(document)
    model = yaml_mapping(predictor, "model")
    format_name = str(value_at(model, "modelFormat", "name") or "").casefold()
    if model and format_name in reader_words()["kserve_formats"]:
        worker = yaml_mapping(predictor, "workerSpec")
        words = [*_server_words(model), *_parallel_flags(worker, "ParallelSize")]
        yield from _read_kserve_server(where, document, predictor, model, words)
    for container in yaml_mappings(predictor, "containers"):
        uri = value_at(document, "metadata", "storageUri") or model.get("storageUri")
        yield from _pod_engines(
            f"{where}: {container.get('name') or 'container'}",
            predictor,
            container,
            [predictor],
            parse_count(predictor, "minReplicas"),
            model=hub_name(uri) or hub_name(pod_environment(container).get("STORAGE_URI")),
        )


def _read_kserve_server(
    where: str, document: Mapped, pod: Mapped, container: Mapped, words: Sequence[str]
) -> Iterator[DeployedEngine | UnreadPart]:
    """VLLM as KServe's own server starts it."""
    line = line_of(container) or line_of(document)
    launch = first_launch(("vllm", "serve", *words), pod_environment(container))
    if launch is None:
        yield UnreadPart(where, line, "its arguments could not be read.")
        return
    image = container.get("image")
    image = image if isinstance(image, str) else reader_words()["kserve_runtime"]
    yield DeployedEngine(
        where,
        line,
        replace(launch, image=image, shares_memory=True),
        container_place(pod, container, [pod]),
        replicas=parse_count(pod, "minReplicas") or 1,
    )


def _server_words(model: Mapped) -> Iterator[str]:
    """VLLM's words of a predictor's arguments: the model first, without those of the server."""
    env = pod_environment(model)
    words = [filled_pod(word, env) for word in yaml_texts(model, "args")]
    pairs = list(_option_pairs(words))
    name = next((value for flag, value in pairs if flag == "model_id" and value), None)
    stored = hub_name(model.get("storageUri")) or hub_name(value_at(model, "storage", "uri"))
    if model_name := name or env.get("MODEL_ID") or stored:
        yield model_name
    for flag, value in pairs:
        if flag not in reader_words()["server_options"]:
            yield f"--{flag.replace('_', '-')}"
            yield from () if value is None else (value,)


def _option_pairs(words: Sequence[str]) -> Iterator[tuple[str, str | None]]:
    """Options of a list of words with their values, glued (``--a=b``) or not."""
    n = 0
    while n < len(words):
        flag, equals, value = words[n].partition("=")
        n += 1
        if not flag.startswith("--"):
            continue
        if not equals and n < len(words) and not words[n].startswith("-"):
            value, equals = words[n], "="
            n += 1
        yield flag.removeprefix("--").replace("-", "_"), value if equals else None


def _parallel_flags(values: Mapping[str, object], suffix: str = "") -> Iterator[str]:
    for name, flag in reader_words()["parallelism"].items():
        if number := parse_count(values.get(f"{name}{suffix}")):
            yield from (flag, str(number))


def _read_llm(document: Mapped, spec: Mapped) -> Iterator[DeployedEngine | UnreadPart]:
    """A service of models: KServe's preset starts vLLM where the template has no command."""
    model = hub_name(value_at(spec, "model", "uri"))
    pools = [("", spec), (" prefill", yaml_mapping(spec, "prefill"))]
    for title, pool in pools:
        template = yaml_mapping(pool, "template")
        containers = yaml_mappings(template, "containers")
        main = next((c for c in containers if c.get("name") in ("main", None)), None)
        if main is not None or pool is spec or template:
            where = f"{resource_name(document)}{title}"
            yield from _read_pool(document, where, pool, Mapped() if main is None else main, model)


def _read_pool(
    document: Mapped, where: str, pool: Mapped, main: Mapped, model: str | None
) -> Iterator[DeployedEngine | UnreadPart]:
    template, extra = yaml_mapping(pool, "template"), reader_words()["kserve_extra"]
    if main.get("command"):
        replicas = parse_count(pool, "replicas")
        yield from _pod_engines(where, template, main, [pool], replicas, model=model)
        return
    words = [*filter(None, [model]), *_parallel_flags(yaml_mapping(pool, "parallelism"))]
    if value_at(pool, "parallelism", "expert") == "true":
        words.append("--enable-expert-parallel")
    try:
        words += shlex.split(pod_environment(main).get(extra, ""))
    except ValueError as error:
        yield UnreadPart(where, line_of(main), f"{extra} cannot be split into words: {error}.")
        return
    if all(word.startswith("-") for word in yaml_texts(main, "args")[:1]):
        words += yaml_texts(main, "args")
    yield from _read_kserve_server(where, document, template, main, words)
