"""The kind of deployment that a text is, and its engines; Compose files and values of Helm."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from pathlib import PurePath
from typing import Any

from recipe_core.base.errors import InputError
from recipe_core.commands.launches import Container
from recipe_core.targets.deployments import kubernetes
from recipe_core.targets.deployments.deployment import (
    DeployedEngine,
    DeploymentFile,
    Kind,
    Place,
    UnreadPart,
    choose_device_place,
    engines_in,
    pod_environment,
)
from recipe_core.targets.deployments.documents import (
    MAX_BYTES,
    Mapped,
    filled_compose,
    line_of,
    parse_count,
    read_documents,
    reader_words,
    text_values,
    yaml_mapping,
    yaml_mappings,
    yaml_texts,
)
from recipe_core.targets.deployments.kubernetes import node_device_names, read_resource, term_names
from recipe_core.targets.deployments.shell import is_slurm, read_shell, read_slurm, read_task

SCRIPTS = (".sh", ".bash", ".zsh", ".sbatch", ".slurm", ".job", ".sub")
DOCUMENTS = (".yaml", ".yml", ".json")
# Engines of one file that are read.
MAX_ENGINES = 500

Found = Iterator[DeployedEngine | UnreadPart]

_JOINED = re.compile(r"\\[ \t]*(?:\r?\n|(?=\s))")
_MAX_SERVICES = 500

# The key that values of the production stack begin with.
STACK = "servingEngineSpec"


def read_deployment(text: str, name: str = "file") -> DeploymentFile:
    """The engines of a file.

    Args:
        text: its content.
        name: its name, whose suffix tells scripts from documents.

    Raises:
        InputError: when it is too large, cannot be read, or is of no known kind.
    """
    if len(text) > MAX_BYTES:
        message = f"has {len(text):,} characters; at most {MAX_BYTES:,} are read."
        raise InputError(message, field="file")
    if _is_script(text, name):
        return (
            _deployment_file("slurm", read_slurm(text))
            if is_slurm(text)
            else _deployment_file("shell", read_shell(text))
        )
    documents = read_documents(text)
    kinds = [kind for kind in map(document_kind, documents) if kind is not None]
    if not kinds:
        hint = "Known: Compose, Kubernetes, KServe, SkyPilot, Slurm, Helm values, shell scripts."
        raise InputError("is no deployment file of a known kind.", field="file", hint=hint)
    return _deployment_file(
        kinds[0], (engine for document in documents for engine in _read_engines(document))
    )


def _is_script(text: str, name: str) -> bool:
    suffix = PurePath(name).suffix.casefold()
    if suffix in SCRIPTS or text.startswith("#!"):
        return True
    return suffix not in DOCUMENTS and is_slurm(text)


def is_deployment(text: str, name: str) -> bool:
    """Tell if a text deploys something, rather than being a request; broken YAML counts as none."""
    if _is_script(text, name):
        return True
    try:
        return any(document_kind(document) for document in read_documents(text))
    except InputError:
        return "apiVersion:" in text or "services:" in text


def _deployment_file(kind: Kind, items: Iterable[DeployedEngine | UnreadPart]) -> DeploymentFile:
    engines: list[DeployedEngine] = []
    unread: list[UnreadPart] = []
    for item in items:
        if len(engines) + len(unread) >= MAX_ENGINES:
            unread.append(
                UnreadPart("file", None, f"more than {MAX_ENGINES} engines; the rest is left.")
            )
            break
        if isinstance(item, DeployedEngine):
            engines.append(item)
        else:
            unread.append(item)
    return DeploymentFile(kind, tuple(engines), tuple(unread))


def document_kind(document: Any) -> Kind | None:
    """The kind of a YAML document; None for one that deploys nothing."""
    if not isinstance(document, Mapped):
        return None
    if "apiVersion" in document and "kind" in document:
        if document["kind"] in reader_words()["kserve_kinds"]:
            return "kserve"
        return "dynamo" if "Dynamo" in str(document["kind"]) else "kubernetes"
    if isinstance(document.get("services"), Mapped):
        return "compose"
    if isinstance(document.get("run"), str):
        return "skypilot"
    image = document.get("image")
    if STACK in document or (isinstance(image, Mapped) and "repository" in image):
        return "helm"
    return None


def _read_engines(document: Any) -> Found:
    kind = document_kind(document)
    if kind == "kserve":
        yield from kubernetes.read_kserve_document(document)
    elif kind in ("kubernetes", "dynamo"):
        for item in _document_items(document):
            yield from _read_engines(item) if item is not document else read_resource(item)
    elif kind == "compose":
        yield from read_compose(document)
    elif kind == "skypilot":
        yield from read_task(document)
    elif kind == "helm":
        yield from read_stack(document)
        yield from read_values(document)


def _document_items(document: Mapped) -> list[Any]:
    items = document.get("items")
    is_list = isinstance(items, list) and str(document["kind"]).endswith("List")
    return list(items or ()) if is_list else [document]


# --- Compose: services with an image, a command and reserved devices ----------------------------


def read_compose(document: Mapped) -> Iterator[DeployedEngine | UnreadPart]:
    for name, service in list(yaml_mapping(document, "services").items())[:_MAX_SERVICES]:
        if isinstance(service, Mapped):
            yield from _read_service(f"service {name}", service)


def _read_service(where: str, service: Mapped) -> Iterator[DeployedEngine | UnreadPart]:
    env = compose_environment(service.get("environment"))
    image = filled_compose(str(service.get("image") or ""), env)
    line = line_of(service)
    try:
        entrypoint, command = (
            _command_words(service.get(name), env) for name in ("entrypoint", "command")
        )
    except ValueError as error:
        yield UnreadPart(where, line, f"its command cannot be split into words: {error}.")
        return
    container = Container(
        image=image,
        entrypoint=entrypoint,
        args=command,
        env=env,
        shares_memory="shm_size" in service or service.get("ipc") == "host",
        workdir=service.get("working_dir") if service.get("working_dir") else None,
        mounts=tuple(_mount_paths(service.get("volumes"))),
    )
    deploy = yaml_mapping(service, "deploy")
    replicas = parse_count(deploy, "replicas") or parse_count(service, "scale") or 1
    place = _service_place(service)
    yield from engines_in(container, where, line, place, replicas=replicas)


def compose_environment(value: Any) -> dict[str, str]:
    """Variables from a mapping or from a list of ``NAME=value``; those without a value stay out."""
    pairs = [(name, item) for name, item in yaml_mapping(value).items() if isinstance(item, str)]
    for text in yaml_texts(value):
        name, equals, item = text.partition("=")
        if equals:
            pairs.append((name.strip(), item))
    env: dict[str, str] = {}
    for name, item in pairs:
        env[name] = filled_compose(item, {**dict(pairs), **env} if item != f"${{{name}}}" else {})
    return env


def _command_words(value: Any, env: Mapping[str, str]) -> tuple[str, ...]:
    """The words of a command; a text is cut as a shell would.

    Raises:
        ValueError: when a quote is not closed.
    """
    if isinstance(value, str):
        text = _JOINED.sub(" ", filled_compose(value, env))
        return tuple(shlex.split(text))
    return tuple(filled_compose(word, env) for word in yaml_texts(value))


def _mount_paths(value: Any) -> Iterator[str]:
    for text in yaml_texts(value):
        parts = text.split(":")
        yield parts[1] if len(parts) > 1 else parts[0]
    for entry in yaml_mappings(value):
        if isinstance(target := entry.get("target"), str):
            yield target


def _service_place(service: Mapped) -> Place:
    """The number of devices that a service reserves; a Compose file does not say which."""
    reservations = yaml_mapping(service, "deploy", "resources", "reservations")
    for entry in yaml_mappings(reservations, "devices") + yaml_mappings(service, "gpus"):
        ids = yaml_texts(entry, "device_ids")
        if ids and "all" not in ids:
            return Place(None, len(ids))
        return Place(None, parse_count(entry, "count"))
    return Place()


# --- Helm: vLLM's production stack, and charts that state an image and a command ----------------


def read_stack(values: Mapped) -> Iterator[DeployedEngine | UnreadPart]:
    """The engines of the production stack: one for each model."""
    stack = yaml_mapping(values, STACK)
    for model in yaml_mappings(stack, "modelSpec"):
        yield from _read_model(model, stack)


def _read_model(model: Mapped, stack: Mapped) -> Iterator[DeployedEngine | UnreadPart]:
    where, line = f"model {model.get('name') or 'unnamed'}", line_of(model)
    name = model.get("modelURL")
    if not isinstance(name, str):
        yield UnreadPart(where, line, "modelURL is missing.")
        return
    image = f"{model.get('repository') or 'vllm/vllm-openai'}:{model.get('tag') or 'latest'}"
    container = Container(
        image=image,
        entrypoint=("vllm",),
        args=("serve", name, *_config_words(model)),
        env=pod_environment(stack) | pod_environment(model),
        shares_memory=True,
    )
    yield from engines_in(
        container,
        where,
        line,
        _model_place(model),
        replicas=parse_count(model, "replicaCount") or 1,
    )


def _config_words(model: Mapped) -> Iterator[str]:
    config = yaml_mapping(model, "vllmConfig")
    for key, (on, off) in reader_words()["stack_switches"].items():
        if key in config:
            yield on if config[key] == "true" else off
    for key, flag in reader_words()["stack_options"].items():
        if isinstance(value := config.get(key), str):
            yield from (flag, value)
    yield from yaml_texts(config, "extraArgs")
    if model.get("enableLoRA") == "true":
        yield "--enable-lora"
    if isinstance(revision := model.get("modelRevision"), str):
        yield from ("--revision", revision)


def _model_place(model: Mapped) -> Place:
    devices = parse_count(model, "requestGPU")
    kind = model.get("requestGPUType")
    terms = list(term_names(yaml_mappings(model, "nodeSelectorTerms")))
    names = terms or list(node_device_names(model)) or [""]
    place = choose_device_place([(name, devices) for name in names], nodes=_ray_nodes(model))
    if isinstance(kind, str) and "mig" in kind:
        message = f"{kind} is a part of a device; judged on a whole one."
        return Place(place.device, 1, place.nodes, (*place.notes, message))
    return place


def _ray_nodes(model: Mapped) -> int | None:
    """Nodes of a model that runs over several by Ray: its head and its workers."""
    workers = parse_count(model, "raySpec", "replicaCount") if "raySpec" in model else None
    head = yaml_mapping(model, "raySpec", "headNode")
    copies = parse_count(model, "replicaCount")
    return (workers or copies or 0) + 1 if head else None


def read_values(values: Mapped) -> Iterator[DeployedEngine | UnreadPart]:
    """The engine of a chart whose values state an image and its command (vLLM's own chart)."""
    image = yaml_mapping(values, "image")
    name, words = image.get("repository"), yaml_texts(image, "command")
    if isinstance(name, str):
        container = Container(
            image=f"{name}:{image.get('tag') or 'latest'}",
            entrypoint=words,
            args=yaml_texts(image, "args"),
            env=text_values(values, "env"),
            shares_memory=None,
        )
        yield from engines_in(container, "image", line_of(image), Place())
