"""Compose files: services with an image, a command and reserved devices."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from recipe_core.commands.launches import Container
from recipe_core.targets.deployments.containers import engines_in
from recipe_core.targets.deployments.deployed import DeployedEngine, Left, Place
from recipe_core.targets.deployments.documents import (
    Mapped,
    count,
    line_of,
    mapping,
    mappings,
    texts,
)
from recipe_core.targets.deployments.variables import filled_compose

_JOINED = re.compile(r"\\[ \t]*(?:\r?\n|(?=\s))")
_MAX_SERVICES = 500


def read_compose(document: Mapped) -> Iterator[DeployedEngine | Left]:
    """The engines of a Compose file's services."""
    for name, service in list(mapping(document.get("services")).items())[:_MAX_SERVICES]:
        if isinstance(service, Mapped):
            yield from _read_service(f"service {name}", service)


def _read_service(where: str, service: Mapped) -> Iterator[DeployedEngine | Left]:
    env = environment(service.get("environment"))
    image = filled_compose(str(service.get("image") or ""), env)
    line = line_of(service)
    try:
        entrypoint, command = (_words(service.get(name), env) for name in ("entrypoint", "command"))
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
    place = _place(service)
    yield from engines_in(container, where, line, place, replicas=replicas)


def environment(value: Any) -> dict[str, str]:
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


def _words(value: Any, env: Mapping[str, str]) -> tuple[str, ...]:
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


def _place(service: Mapped) -> Place:
    """How many devices a service reserves; a Compose file does not say which."""
    reservations = mapping(
        mapping(mapping(service.get("deploy")).get("resources")).get("reservations")
    )
    for entry in mappings(reservations.get("devices")) + mappings(service.get("gpus")):
        ids = texts(entry.get("device_ids"))
        if ids and "all" not in ids:
            return Place(None, len(ids))
        return Place(None, count(entry.get("count")))
    return Place()
