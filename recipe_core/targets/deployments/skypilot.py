"""SkyPilot tasks: a text of a shell, variables, and the accelerators that it may run on."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from recipe_core.targets.deployments.deployed import DeployedEngine, Left
from recipe_core.targets.deployments.devices import chosen
from recipe_core.targets.deployments.documents import Mapped, count, mapping, mappings, texts
from recipe_core.targets.deployments.shell import engines_of
from recipe_core.targets.names import names

_TPU = re.compile(r"(tpu-v\d\w*)-(\d{1,4})$")
_DOCKER = "docker:"


def read_task(task: Mapped) -> Iterator[DeployedEngine | Left]:
    """The engines of a task; variables of the first node."""
    resources = mapping(task.get("resources"))
    nodes = count(task.get("num_nodes"))
    place = chosen(accelerators(resources), names().sky.names, nodes=nodes)
    env = {
        name: value for name, value in mapping(task.get("envs")).items() if isinstance(value, str)
    }
    given = {
        "SKYPILOT_NUM_NODES": str(nodes or 1),
        "SKYPILOT_NODE_RANK": "0",
        "SKYPILOT_NUM_GPUS_PER_NODE": str(place.per_node) if place.per_node else None,
    }
    env |= {name: value for name, value in given.items() if value is not None}
    image = resources.get("image_id")
    text, setup = str(task.get("run") or ""), str(task.get("setup") or "")
    where = f"task {task.get('name') or 'unnamed'}"
    service = mapping(task.get("service"))
    policy = mapping(service.get("replica_policy"))
    replicas = count(service.get("replicas")) or count(policy.get("min_replicas")) or 1
    for engine in engines_of(
        text,
        where,
        place,
        env,
        f"{setup}\n{text}",
        line=task.lines.get("run"),
        image=image.removeprefix(_DOCKER)
        if isinstance(image, str) and image.startswith(_DOCKER)
        else None,
    ):
        if isinstance(engine, DeployedEngine):
            yield replace(engine, replicas=replicas)
        else:
            yield engine


def accelerators(resources: Mapped) -> Iterator[tuple[str, int | None]]:
    """Names and numbers of the accelerators, of which any will do."""
    yield from _named(resources.get("accelerators"))
    for several in ("any_of", "ordered"):
        for choice in mappings(resources.get(several)):
            yield from _named(choice.get("accelerators"))
    machine = resources.get("instance_type")
    if isinstance(machine, str) and "accelerators" not in resources:
        yield machine, None


def _named(value: Any) -> Iterator[tuple[str, int | None]]:
    """``H100:8``, ``{H100: 8, A100}``, or a list of these."""
    for text in texts(value):
        name, _, number = text.strip().partition(":")
        tpu = _TPU.fullmatch(name)
        if tpu:
            yield tpu[1], int(tpu[2])
        else:
            yield name.strip(), count(number) or 1
    for name, number in mapping(value).items():
        if number is None:
            yield from _named(name)
        else:
            yield name.strip(), count(number) or 1
