"""The kind of deployment that a text is, and its engines; Compose files and values of Helm."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from pathlib import PurePath
from typing import Any

from recipe_core.base.errors import InputError
from recipe_core.commands.launches import Container
from recipe_core.targets.deployments import kserve
from recipe_core.targets.deployments.containers import engines_in, pod_environment
from recipe_core.targets.deployments.deployed import (
    DeployedEngine,
    DeploymentFile,
    Kind,
    Left,
    Place,
)
from recipe_core.targets.deployments.devices import chosen
from recipe_core.targets.deployments.documents import (
    MAX_BYTES,
    Mapped,
    count,
    line_of,
    mapping,
    mappings,
    read_documents,
    texts,
)
from recipe_core.targets.deployments.kubernetes import node_names, read_resource, term_names
from recipe_core.targets.deployments.shell import is_slurm, read_shell, read_slurm, read_task
from recipe_core.targets.deployments.variables import filled_compose

SCRIPTS = (".sh", ".bash", ".zsh", ".sbatch", ".slurm", ".job", ".sub")
DOCUMENTS = (".yaml", ".yml", ".json")
# Engines of one file that are read.
MAX_ENGINES = 500

Found = Iterator[DeployedEngine | Left]

_JOINED = re.compile(r"\\[ \t]*(?:\r?\n|(?=\s))")
_MAX_SERVICES = 500

# The key that values of the production stack begin with.
STACK = "servingEngineSpec"

# helm/templates/deployment-vllm-multi.yaml of https://github.com/vllm-project/production-stack
_STACK_OPTIONS = {
    "maxModelLen": "--max-model-len",
    "dtype": "--dtype",
    "tensorParallelSize": "--tensor-parallel-size",
    "pipelineParallelSize": "--pipeline-parallel-size",
    "maxNumSeqs": "--max-num-seqs",
    "gpuMemoryUtilization": "--gpu-memory-utilization",
    "maxLoras": "--max-loras",
    "runner": "--runner",
    "convert": "--convert",
}
_STACK_SWITCHES = {
    "enableChunkedPrefill": ("--enable-chunked-prefill", "--no-enable-chunked-prefill"),
    "enablePrefixCaching": ("--enable-prefix-caching", "--no-enable-prefix-caching"),
}


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
            _file("slurm", read_slurm(text)) if is_slurm(text) else _file("shell", read_shell(text))
        )
    documents = read_documents(text)
    kinds = [kind for kind in map(kind_of, documents) if kind is not None]
    if not kinds:
        hint = "Known: Compose, Kubernetes, KServe, SkyPilot, Slurm, Helm values, shell scripts."
        raise InputError("is no deployment file of a known kind.", field="file", hint=hint)
    return _file(kinds[0], (each for document in documents for each in _engines(document)))


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
        return any(kind_of(document) for document in read_documents(text))
    except InputError:
        return "apiVersion:" in text or "services:" in text


def _file(kind: Kind, items: Iterable[DeployedEngine | Left]) -> DeploymentFile:
    engines: list[DeployedEngine] = []
    unread: list[Left] = []
    for item in items:
        if len(engines) + len(unread) >= MAX_ENGINES:
            unread.append(Left("file", None, f"more than {MAX_ENGINES} engines; the rest is left."))
            break
        if isinstance(item, DeployedEngine):
            engines.append(item)
        else:
            unread.append(item)
    return DeploymentFile(kind, tuple(engines), tuple(unread))


def kind_of(document: Any) -> Kind | None:
    """The kind of a YAML document; None for one that deploys nothing."""
    if not isinstance(document, Mapped):
        return None
    if "apiVersion" in document and "kind" in document:
        if document["kind"] in kserve.KINDS:
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


def _engines(document: Any) -> Found:
    kind = kind_of(document)
    if kind == "kserve":
        yield from kserve.read_service(document)
    elif kind in ("kubernetes", "dynamo"):
        for item in _items(document):
            yield from _engines(item) if item is not document else read_resource(item)
    elif kind == "compose":
        yield from read_compose(document)
    elif kind == "skypilot":
        yield from read_task(document)
    elif kind == "helm":
        yield from read_stack(document)
        yield from read_values(document)


def _items(document: Mapped) -> list[Any]:
    items = document.get("items")
    is_list = isinstance(items, list) and str(document["kind"]).endswith("List")
    return list(items or ()) if is_list else [document]


# --- Compose: services with an image, a command and reserved devices ----------------------------


def read_compose(document: Mapped) -> Iterator[DeployedEngine | Left]:
    for name, service in list(mapping(document.get("services")).items())[:_MAX_SERVICES]:
        if isinstance(service, Mapped):
            yield from _read_service(f"service {name}", service)


def _read_service(where: str, service: Mapped) -> Iterator[DeployedEngine | Left]:
    env = compose_environment(service.get("environment"))
    image = filled_compose(str(service.get("image") or ""), env)
    line = line_of(service)
    try:
        entrypoint, command = (
            _command_words(service.get(name), env) for name in ("entrypoint", "command")
        )
    except ValueError as error:
        yield Left(where, line, f"its command cannot be split into words: {error}.")
        return
    container = Container(
        image=image,
        entrypoint=entrypoint,
        args=command,
        env=env,
        shares_memory="shm_size" in service or service.get("ipc") == "host",
        workdir=service.get("working_dir") if service.get("working_dir") else None,
        mounts=tuple(_mounts(service.get("volumes"))),
    )
    deploy = mapping(service.get("deploy"))
    replicas = count(deploy.get("replicas")) or count(service.get("scale")) or 1
    place = _service_place(service)
    yield from engines_in(container, where, line, place, replicas=replicas)


def compose_environment(value: Any) -> dict[str, str]:
    """Variables from a mapping or from a list of ``NAME=value``; those without a value stay out."""
    pairs = [(name, item) for name, item in mapping(value).items() if isinstance(item, str)]
    for text in texts(value):
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
    return tuple(filled_compose(word, env) for word in texts(value))


def _mounts(value: Any) -> Iterator[str]:
    for text in texts(value):
        parts = text.split(":")
        yield parts[1] if len(parts) > 1 else parts[0]
    for entry in mappings(value):
        if isinstance(target := entry.get("target"), str):
            yield target


def _service_place(service: Mapped) -> Place:
    """The number of devices that a service reserves; a Compose file does not say which."""
    reservations = mapping(
        mapping(mapping(service.get("deploy")).get("resources")).get("reservations")
    )
    for entry in mappings(reservations.get("devices")) + mappings(service.get("gpus")):
        ids = texts(entry.get("device_ids"))
        if ids and "all" not in ids:
            return Place(None, len(ids))
        return Place(None, count(entry.get("count")))
    return Place()


# --- Helm: vLLM's production stack, and charts that state an image and a command ----------------


def read_stack(values: Mapped) -> Iterator[DeployedEngine | Left]:
    """The engines of the production stack: one for each model."""
    stack = mapping(values.get(STACK))
    for model in mappings(stack.get("modelSpec")):
        yield from _read_model(model, stack)


def _read_model(model: Mapped, stack: Mapped) -> Iterator[DeployedEngine | Left]:
    where, line = f"model {model.get('name') or 'unnamed'}", line_of(model)
    name = model.get("modelURL")
    if not isinstance(name, str):
        yield Left(where, line, "modelURL is missing.")
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
        container, where, line, _model_place(model), replicas=count(model.get("replicaCount")) or 1
    )


def _config_words(model: Mapped) -> Iterator[str]:
    config = mapping(model.get("vllmConfig"))
    for key, (on, off) in _STACK_SWITCHES.items():
        if key in config:
            yield on if config[key] == "true" else off
    for key, flag in _STACK_OPTIONS.items():
        if isinstance(value := config.get(key), str):
            yield from (flag, value)
    yield from texts(config.get("extraArgs"))
    if model.get("enableLoRA") == "true":
        yield "--enable-lora"
    if isinstance(revision := model.get("modelRevision"), str):
        yield from ("--revision", revision)


def _model_place(model: Mapped) -> Place:
    devices = count(model.get("requestGPU"))
    kind = model.get("requestGPUType")
    terms = list(term_names(mappings(model.get("nodeSelectorTerms"))))
    names = terms or list(node_names(model)) or [""]
    place = chosen([(name, devices) for name in names], nodes=_ray_nodes(model))
    if isinstance(kind, str) and "mig" in kind:
        message = f"{kind} is a part of a device; judged on a whole one."
        return Place(place.device, 1, place.nodes, (*place.notes, message))
    return place


def _ray_nodes(model: Mapped) -> int | None:
    """Nodes of a model that runs over several by Ray: its head and its workers."""
    workers = (
        count(mapping(model.get("raySpec")).get("replicaCount")) if "raySpec" in model else None
    )
    head = mapping(mapping(model.get("raySpec")).get("headNode"))
    copies = count(model.get("replicaCount"))
    return (workers or copies or 0) + 1 if head else None


def read_values(values: Mapped) -> Iterator[DeployedEngine | Left]:
    """The engine of a chart whose values state an image and its command (vLLM's own chart)."""
    image = mapping(values.get("image"))
    name, words = image.get("repository"), texts(image.get("command"))
    if isinstance(name, str):
        container = Container(
            image=f"{name}:{image.get('tag') or 'latest'}",
            entrypoint=words,
            args=texts(image.get("args")),
            env=_chart_environment(values),
            shares_memory=None,
        )
        yield from engines_in(container, "image", line_of(image), Place())


def _chart_environment(values: Mapping[str, object]) -> dict[str, str]:
    return {
        name: text for name, text in mapping(values.get("env")).items() if isinstance(text, str)
    }
