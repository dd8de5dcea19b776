"""Containers as pods and Compose services describe them: from their fields to engines."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from recipe_core.base.errors import InputError
from recipe_core.commands.launches import Container, Launch, launches_in
from recipe_core.commands.words import MAX_CHARACTERS, engine_by_name, image_start
from recipe_core.engines.grammar import grammars
from recipe_core.targets.deployments.deployed import DeployedEngine, Place, UnreadPart
from recipe_core.targets.deployments.documents import (
    filled_pod,
    unset_in,
    yaml_mapping,
    yaml_mappings,
    yaml_texts,
)

_HELPER = re.compile(r"router|gateway|bench|lmcache-server|epp|exporter|controller|dashboard")
_HELPS = re.compile(
    r"dynamo\.(frontend|planner)|ray start|multi-node-serving\.sh worker|vllm launch "
)
_SLICE = re.compile(r"nvidia\.com/mig-|amd\.com/.*partition|aliyun\.com/gpu-mem")


def pod_environment(container: Mapping[str, Any]) -> dict[str, str]:
    """Variables of a pod's container that have a value in the file."""
    env: dict[str, str] = {}
    for entry in yaml_mappings(container.get("env")):
        name, value = entry.get("name"), entry.get("value")
        if isinstance(name, str) and isinstance(value, str):
            env[name] = filled_pod(value, env)
    return env


def pod_container(container: Mapping[str, Any], shares_memory: bool) -> Container:
    """A pod's container: ``command`` stands for the image's entrypoint, ``args`` follow it."""
    env = pod_environment(container)
    command, args = (
        tuple(filled_pod(word, env) for word in yaml_texts(container.get(name)))
        for name in ("command", "args")
    )
    mounts = (mount.get("mountPath") for mount in yaml_mappings(container.get("volumeMounts")))
    return Container(
        image=str(container.get("image") or ""),
        entrypoint=command,
        args=args,
        env=env,
        shares_memory=shares_memory,
        workdir=container.get("workingDir") if container.get("workingDir") else None,
        mounts=tuple(mount for mount in mounts if isinstance(mount, str)),
    )


def engines_in(
    container: Container,
    where: str,
    line: int | None,
    place: Place,
    *,
    model: str | None = None,
    replicas: int = 1,
) -> Iterator[DeployedEngine | UnreadPart]:
    """The engines of a container, or why one that holds an engine was not read."""
    words = (*container.entrypoint, *container.args)
    try:
        if sum(map(len, words)) > MAX_CHARACTERS:
            raise InputError(f"has more than {MAX_CHARACTERS:,} characters.", field="command")
        launches = list(launches_in(container))
    except InputError as error:
        yield UnreadPart(where, line, error.message)
        return
    for number, launch in enumerate(launches, 1):
        name = where if len(launches) == 1 else f"{where} #{number}"
        model_here = model if model and _names_folder(launch) else None
        unset = unset_in((*launch.args, *launch.program))
        yield DeployedEngine(name, line, launch, place, model_here, replicas=replicas, unset=unset)
    if not launches and (why := unread_reason(container.image, words)):
        yield UnreadPart(where, line, why)


def _names_folder(launch: Launch) -> bool:
    first = next((word for word in launch.args[:1] if not word.startswith("-")), None)
    flags = {"--model", "--model-path", "--model-id", "--model-url"}
    model_values = [
        value
        for word, value in zip(launch.args, (*launch.args[1:], ""), strict=True)
        if word in flags
    ]
    model_values += [
        word.partition("=")[2] for word in launch.args if word.partition("=")[0] in flags
    ]
    names = [name for name in (first, *model_values) if name]
    return all(name.startswith(("/", "$", "{")) for name in names)


def unread_reason(image: str, words: Iterable[str]) -> str | None:
    """Why a container that holds an engine gave no command; None for one that holds none."""
    start = image_start(image)[0]
    engine_match = engine_by_name(image)
    engine = start or (engine_match[0] if engine_match else "")
    if not engine:
        return None
    command = " ".join(words)
    if is_helper(image) or _HELPS.search(command):
        return None
    if not command:
        return f"{image} starts no server of {engine} by itself, and the file states no command."
    return f"its command starts no server that is known: {command[:120]!r}."


def is_helper(image: str) -> bool:
    """Whether an image is of a program beside engines: a router, a benchmark, a cache."""
    name = image.partition("@")[0].rpartition("/")[2].casefold()
    return _HELPER.search(name) is not None


def pod_devices(container: Mapping[str, Any], names: Iterable[str]) -> tuple[int | None, str]:
    """Devices that a pod's container asks for, and what is wrong with the request."""
    resources = yaml_mapping(container.get("resources"))
    resource_names = frozenset(names)
    for part in ("limits", "requests"):
        for resource, value in yaml_mapping(resources.get(part)).items():
            if resource in resource_names and isinstance(value, str) and value.isdecimal():
                return (int(value[:6]) or None), ""
            if _SLICE.match(resource):
                return 1, f"{resource} is a part of a device; judged on a whole one."
    return None, ""


def with_notes(place: Place, *notes: str) -> Place:
    return replace(place, notes=(*place.notes, *(note for note in notes if note)))


def starts_engine(text: str) -> bool:
    """Whether a text has a word that starts an engine, in whatever way."""
    words = (
        start.words[1] if start.words[0] == "-m" else " ".join(start.words)
        for grammar in grammars().values()
        for start in grammar.launch
    )
    return any(word in text for word in words)
