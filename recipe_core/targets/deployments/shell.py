"""Shell scripts, alone, for Slurm and in SkyPilot tasks: the servers that they start."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from recipe_core.base.errors import InputError
from recipe_core.commands.launches import Launch, find_launches
from recipe_core.commands.words import read_script
from recipe_core.targets.deployments.deployment import (
    DeployedEngine,
    Place,
    UnreadPart,
    choose_device_place,
    device_called,
    starts_engine,
)
from recipe_core.targets.deployments.documents import (
    Mapped,
    parse_count,
    text_values,
    yaml_mapping,
    yaml_mappings,
    yaml_texts,
)
from recipe_core.targets.names import cluster_names

_PINNED = re.compile(r"(?<![\w-])(vllm|sglang|tensorrt-llm)(?:\[[\w,-]*\])?==(\d[\w.+]{0,30})")
_COMMENT = re.compile(r"^[ \t]*#.*$", re.MULTILINE)

_OPTION = re.compile(r"(?:^|\s)(--[\w-]+|-[A-Za-z])(?:=|\s+)?([^\s#]*)")
_LINE = re.compile(r"^#SBATCH[ \t]+(.*)$", re.MULTILINE)
_LONG = {"-N": "--nodes", "-G": "--gpus", "-C": "--constraint", "-n": "--ntasks"}
_GRES = re.compile(r"gpu(?::([A-Za-z][\w.-]*))?(?::(\d{1,3}))?(?:\(.*)?")
_PER_NODE = re.compile(r"(?:([A-Za-z][\w.-]*):?)?(\d{1,3})?")

_TPU = re.compile(r"(tpu-v\d\w*)-(\d{1,4})$")
_DOCKER = "docker:"


def read_shell(text: str) -> Iterator[DeployedEngine | UnreadPart]:
    for engine in engines_of(text, "script", Place(), {}, text):
        if isinstance(engine, DeployedEngine) and (devices := engine.launch.visible_devices):
            yield replace(engine, place=replace(engine.place, per_node=devices))
        else:
            yield engine


def engines_of(
    text: str,
    where: str,
    place: Place,
    env: Mapping[str, str],
    installs: str,
    *,
    line: int | None = 1,
    image: str | None = None,
) -> Iterator[DeployedEngine | UnreadPart]:
    """The engines of a text of a shell.

    Args:
        text: the commands.
        where: its name in messages.
        place: the devices that it runs on.
        env: variables that are set before it runs.
        installs: the text that installs engines.
        line: where it begins.
        image: the container that it runs in.
    """
    try:
        launches = find_launches(read_script(text, env))[0]
    except InputError as error:
        if starts_engine(_COMMENT.sub("", text)):
            yield UnreadPart(where, line, error.message)
        return
    search_from = 0
    for number, launch in enumerate(launches, 1):
        position = _place_of(text, launch, search_from)
        search_from = max(search_from, position + 1)
        name = where if len(launches) == 1 else f"{where} #{number}"
        inside = launch if launch.image or not image else replace(launch, image=image)
        yield DeployedEngine(
            name,
            (line or 1) + text.count("\n", 0, position) if position >= 0 else line,
            inside,
            place,
            release=_pinned_release(installs, launch.engine),
        )
    if not launches and starts_engine(_COMMENT.sub("", text)):
        yield UnreadPart(where, line, "names an engine, but no command of it could be read.")


def _place_of(text: str, launch: Launch, start: int) -> int:
    """Position of a server's program in a text, from ``start`` on; -1 without one."""
    words = launch.program[1:] if launch.program[:1] == ("-m",) else launch.program
    pattern = r"\s+".join(map(re.escape, words))
    match = re.compile(rf"(?<![\w.]){pattern}(?!\w)").search(text, start) if words else None
    return match.start() if match else -1


def _pinned_release(text: str, engine: str) -> str | None:
    return next((match[2] for match in _PINNED.finditer(text) if match[1] == engine), None)


def is_slurm(text: str) -> bool:
    return _LINE.search(text) is not None


def read_slurm(text: str) -> Iterator[DeployedEngine | UnreadPart]:
    """The engines that a batch script starts, with the variables of its first node."""
    job = sbatch_options(text)
    place = job_place(job)
    nodes = place.nodes or 1
    env = dict.fromkeys(("SLURM_NNODES", "SLURM_JOB_NUM_NODES"), str(nodes))
    env |= dict.fromkeys(("SLURM_NODEID", "SLURM_PROCID", "SLURM_LOCALID"), "0")
    if place.per_node:
        env |= dict.fromkeys(("SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_NODE"), str(place.per_node))
    yield from engines_of(text, "script", place, env, text)


def sbatch_options(text: str) -> dict[str, str]:
    """Options of ``sbatch`` in a script's head, by their long names; the last one counts."""
    options: dict[str, str] = {}
    for line in _LINE.finditer(text):
        for match in _OPTION.finditer(line[1]):
            options[_LONG.get(match[1], match[1])] = match[2].strip("'\"")
    return options


def job_place(job: Mapping[str, str]) -> Place:
    """Devices and nodes that a job asks for; types of devices are those of the cluster."""
    nodes = parse_count(job.get("--nodes", "").partition("-")[0])
    kind, number = _job_devices(job, nodes)
    if not kind:
        kind = _constraint_device(job.get("--constraint", ""))
    return choose_device_place([(kind, number)], cluster_names().slurm.names, nodes=nodes)


def _job_devices(job: Mapping[str, str], nodes: int | None) -> tuple[str, int | None]:
    for entry in job.get("--gres", "").split(","):
        if gres := _GRES.fullmatch(entry.strip()):
            return gres[1] or "", parse_count(gres[2]) or 1
    for name in ("--gpus-per-node", "--gpus", "--gpus-per-task"):
        if (match := _PER_NODE.fullmatch(job.get(name, ""))) and (match[1] or match[2]):
            number = parse_count(match[2]) or 1
            share = nodes if name == "--gpus" and nodes and number % nodes == 0 else 1
            return match[1] or "", number // share
    return "", None


def _constraint_device(text: str) -> str:
    """The device in a constraint on nodes (``a100&80gb``); empty where it names none."""
    words = re.split(r"[&|,\[\]()*]+", text)
    pairs = [first + second for first in words for second in words if first != second]
    return next((word for word in (*pairs, *words) if word and device_called(word)), "")


def read_task(task: Mapped) -> Iterator[DeployedEngine | UnreadPart]:
    """The engines of a task; variables of the first node."""
    resources = yaml_mapping(task, "resources")
    nodes = parse_count(task, "num_nodes")
    place = choose_device_place(
        task_accelerators(resources), cluster_names().sky.names, nodes=nodes
    )
    env = text_values(task, "envs")
    variables = {
        "SKYPILOT_NUM_NODES": str(nodes or 1),
        "SKYPILOT_NODE_RANK": "0",
        "SKYPILOT_NUM_GPUS_PER_NODE": str(place.per_node) if place.per_node else None,
    }
    env |= {name: value for name, value in variables.items() if value is not None}
    image = resources.get("image_id")
    text, setup = str(task.get("run") or ""), str(task.get("setup") or "")
    where = f"task {task.get('name') or 'unnamed'}"
    service = yaml_mapping(task, "service")
    policy = yaml_mapping(service, "replica_policy")
    replicas = parse_count(service, "replicas") or parse_count(policy, "min_replicas") or 1
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


def task_accelerators(resources: Mapped) -> Iterator[tuple[str, int | None]]:
    """Names and numbers of the accelerators, of which any will do."""
    yield from _named_accelerators(resources.get("accelerators"))
    for key in ("any_of", "ordered"):
        for choice in yaml_mappings(resources, key):
            yield from _named_accelerators(choice.get("accelerators"))
    machine = resources.get("instance_type")
    if isinstance(machine, str) and "accelerators" not in resources:
        yield machine, None


def _named_accelerators(value: Any) -> Iterator[tuple[str, int | None]]:
    """``H100:8``, ``{H100: 8, A100}``, or a list of these."""
    for text in yaml_texts(value):
        name, _, number = text.strip().partition(":")
        tpu = _TPU.fullmatch(name)
        if tpu:
            yield tpu[1], int(tpu[2])
        else:
            yield name.strip(), parse_count(number) or 1
    for name, number in yaml_mapping(value).items():
        if number is None:
            yield from _named_accelerators(name)
        else:
            yield name.strip(), parse_count(number) or 1
