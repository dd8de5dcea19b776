"""Engines in a deployment file: containers, command, place and devices."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Literal

from recipe_core.base.data_files import DataFile, DataRow
from recipe_core.base.errors import HardwareError, InputError
from recipe_core.base.provenance import Sourced
from recipe_core.commands.arguments import Arguments
from recipe_core.commands.images import engine_by_name, image_start
from recipe_core.commands.launches import Container, Launch, launches_in
from recipe_core.commands.option_meanings import Meant
from recipe_core.commands.words import MAX_CHARACTERS
from recipe_core.engines.grammar import grammars
from recipe_core.hardware.cluster import device_names, device_profile
from recipe_core.hardware.slices import split_slice
from recipe_core.targets.deployments.documents import (
    filled_pod,
    parse_count,
    unset_in,
    yaml_mapping,
    yaml_mappings,
    yaml_texts,
)
from recipe_core.targets.names import cluster_names

Kind = Literal["compose", "kubernetes", "kserve", "skypilot", "slurm", "helm", "dynamo", "shell"]


@dataclass(frozen=True, slots=True)
class Place:
    """The devices that a file gives an engine; what it does not state is None.

    ``device``: a shipped profile, ``per_node``: devices in each of ``nodes``. ``notes``: what was
    chosen or could not be read of it.
    """

    device: str | None = None
    per_node: int | None = None
    nodes: int | None = None
    notes: tuple[str, ...] = ()

    def ground(self) -> dict[str, Any]:
        """As fields of `recipe_core.commands.context.CommandContext`."""
        values = {"hardware": self.device, "gpus": self.per_node, "nodes": self.nodes}
        return {name: value for name, value in values.items() if value is not None}


@dataclass(frozen=True, slots=True)
class DeployedEngine:
    """One server of a file.

    ``where``: its place in the file in words, and the ``line``; ``model``: what its volume or its
    model field holds, where the command names only a folder; ``release``: of the engine that the
    file installs; ``replicas``: copies that it starts.
    """

    where: str
    line: int | None
    launch: Launch
    place: Place = field(default_factory=Place)
    model: str | None = None
    release: str | None = None
    replicas: int = 1

    @property
    def unset(self) -> tuple[str, ...]:
        """Variables without a value."""
        return unset_in((*self.launch.args, *self.launch.program))

    def ground(self, overrides: Mapping[str, Any]) -> dict[str, Any]:
        """Return what to judge it on: ``overrides`` of the user before what the file says."""
        values = self.place.ground()
        hardware = overrides.get("hardware")
        if isinstance(hardware, Mapping) or (isinstance(hardware, str) and ":" in hardware):
            values.pop("gpus", None)
        if self.model is not None:
            values["model"] = self.model
        if self.release is not None and self.launch.image is None:
            values["engine_version"] = self.release
        return {**values, **overrides}


@dataclass(frozen=True, slots=True)
class UnreadPart:
    """A part of a file that holds an engine and was not read, and why."""

    where: str
    line: int | None
    why: str

    def to_json(self) -> dict[str, Any]:
        """``{"where", "line", "why"}``."""
        return {"where": self.where, "line": self.line, "why": self.why}


@dataclass(frozen=True, slots=True)
class DeploymentFile:
    """A file: its kind, its engines in order, and what was not read."""

    kind: Kind
    engines: tuple[DeployedEngine, ...] = ()
    unread: tuple[UnreadPart, ...] = ()


FILE = DataFile(Path(__file__).with_name("devices.yaml"), "deployments")
# Alternatives of one engine that are looked up.
MAX_NAMES = 64
_MAKERS = re.compile(r"nvidia|geforce|tesla|amd|instinct|intel|quadro")
_PART = re.compile(r"(?i)(?:-MIG-(?P<mig>[^-]+)|-(?P<partition>[dqc]px-nps\d))?(?:-SHARED)?$")


class _Values(DataRow):
    source: str
    names: dict[str, str]


class _Devices(Sourced):
    """The content of ``devices.yaml``."""

    labels: dict[str, str]
    values: _Values
    families: dict[str, dict[str, str]]


@cache
def _device_data() -> _Devices:
    return FILE.read_as(_Devices)


def device_labels() -> frozenset[str]:
    return frozenset(_device_data().labels)


@cache
def device_resources() -> frozenset[str]:
    """Return what pods ask for to get devices."""
    vendors = cluster_names().vendors.values()
    return frozenset(vendor.resource for vendor in vendors if vendor.resource)


def device_called(name: str, tool_names: Mapping[str, str] | None = None) -> str | None:
    """The profile of a device or of a machine with it; None for an unknown name.

    ``tool_names``: names by profile that a tool has for devices; the first of several counts.
    """
    text = name.strip().strip("'\"")[:128]
    for profile, tool_name in (tool_names or {}).items():
        if tool_name.casefold() == text.casefold():
            return profile
    return _find_device(text)


@lru_cache(maxsize=4096)  # lists of nodes have the same few names over and over
def _find_device(text: str) -> str | None:
    part = _PART.search(text)
    device = _whole_device(text[: part.start()] if part else text)
    part_name = (part["mig"] or part["partition"]) if part else None
    if device is None or part_name is None:
        return device
    return _shipped_profile(f"{device}-{part_name}") or device


def _whole_device(text: str) -> str | None:
    word_profile = _profiles_by_word().get(_find_device_word(_device_data().values.names, text))
    return word_profile or _device_of_machine(text.casefold()) or _shipped_profile(text)


def _find_device_word(words: Mapping[str, str], text: str) -> str:
    return next((word for word in words if word.casefold() == text.casefold()), "")


@cache
def _profiles_by_word() -> dict[str, str]:
    return dict(_device_data().values.names)


def _device_of_machine(kind: str) -> str | None:
    """The device in a cloud's machine, by its family; ``g5`` alone is a family too."""
    for families in _device_data().families.values():
        for family, profile in families.items():
            start, star, end = family.partition("*")
            if kind.startswith(start) and (not star or kind.endswith(end)):
                return profile
            if f"{kind}." == family:
                return profile
    return None


def _shipped_profile(text: str) -> str | None:
    """A shipped device by its name or an alias, whatever stands between letters and digits."""
    profile = _plain_names().get(_plain_device_name(text))
    if profile is None and split_slice(text):
        with suppress(HardwareError):
            return device_profile(text).name
    return profile


@cache
def _plain_names() -> dict[str, str]:
    profiles: dict[str, str] = {}
    for name in device_names(announced=True):
        for alias in (name, *device_profile(name).aliases):
            profiles.setdefault(_plain_device_name(alias), name)
    return profiles


def _plain_device_name(text: str) -> str:
    return _MAKERS.sub("", re.sub(r"[^a-z0-9]", "", text.casefold()))


def choose_device_place(
    alternatives: Iterable[tuple[str, int | None]],
    tool_names: Mapping[str, str] | None = None,
    *,
    nodes: int | None = None,
) -> Place:
    """The place of an engine that may run on any of some devices, by name with their number.

    Of several it is the one with the least memory in all, on which an engine must run as well.
    """
    requests = list(dict.fromkeys(alternatives))[:MAX_NAMES]
    profiles = [
        (device_called(name, tool_names) if name else None, number) for name, number in requests
    ]
    notes = [
        f"{name!r:.80} is no known device."
        for (name, _), (profile, _) in zip(requests, profiles, strict=True)
        if name and not profile
    ]
    usable = [(profile, number) for profile, number in profiles if profile]
    if not usable:
        return Place(None, next((number for _, number in profiles), None), nodes, tuple(notes))
    profile, number = min(usable, key=_place_memory_bytes)
    profile_names = list(dict.fromkeys(name for name, _ in usable))
    if len(profile_names) > 1:
        message = (
            f"the file allows {', '.join(profile_names)}; judged on {profile}, with least memory."
        )
        notes.append(message)
    return Place(profile, number, nodes, tuple(notes))


def _place_memory_bytes(profile_count: tuple[str, int | None]) -> float:
    profile, number = profile_count
    return device_profile(profile).memory_bytes.value * (number or 1)


_HELPER = re.compile(r"router|gateway|bench|lmcache-server|epp|exporter|controller|dashboard")
_HELPS = re.compile(
    r"dynamo\.(frontend|planner)|ray start|multi-node-serving\.sh worker|vllm launch "
)
_SLICE = re.compile(
    r"nvidia\.com/(?P<mig>mig-\d.*)|amd\.com/(?P<partition>[dqc]px_nps\d)|aliyun\.com/gpu-mem"
)


def pod_environment(container: Mapping[str, Any]) -> dict[str, str]:
    """Variables of a pod's container that have a value in the file."""
    env: dict[str, str] = {}
    for entry in yaml_mappings(container, "env"):
        name, value = entry.get("name"), entry.get("value")
        if isinstance(name, str) and isinstance(value, str):
            env[name] = filled_pod(value, env)
    return env


def pod_container(container: Mapping[str, Any], shares_memory: bool) -> Container:
    """A pod's container: ``command`` stands for the image's entrypoint, ``args`` follow it."""
    env = pod_environment(container)
    command, args = (
        tuple(filled_pod(word, env) for word in yaml_texts(container, name))
        for name in ("command", "args")
    )
    mounts = (mount.get("mountPath") for mount in yaml_mappings(container, "volumeMounts"))
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
        yield DeployedEngine(name, line, launch, place, model_here, replicas=replicas)
    if not launches and (why := unread_reason(container.image or "", words)):
        yield UnreadPart(where, line, why)


def _names_folder(launch: Launch) -> bool:
    arguments = Arguments(launch.engine, launch.args, program=launch.program)
    model = Meant(arguments).model
    return model is None or model.startswith(("/", "$", "{"))


def unread_reason(image: str, words: Iterable[str]) -> str | None:
    """Say why a container that holds an engine gave no command; None for one that holds none."""
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
    """Return whether an image is of a program beside engines: a router, a benchmark, a cache."""
    name = image.partition("@")[0].rpartition("/")[2].casefold()
    return _HELPER.search(name) is not None


def pod_devices(
    container: Mapping[str, Any], names: Iterable[str]
) -> tuple[int | None, str, str | None]:
    """Devices that a pod's container asks for, what is wrong with that, and which slice they are.

    The slice is named as it follows a device's name.
    """
    resources = yaml_mapping(container, "resources")
    resource_names = frozenset(names)
    for part in ("limits", "requests"):
        for resource, value in yaml_mapping(resources, part).items():
            if resource in resource_names and isinstance(value, str) and value.isdecimal():
                return (int(value[:6]) or None), "", None
            if match := _SLICE.fullmatch(resource):
                name = (match["mig"] or match["partition"] or "").replace("_", "-")
                number = (parse_count(value) or 1) if name else 1
                wrong = f"{resource} is a part of a device; judged on a whole one."
                return number, wrong, name
    return None, "", None


def with_notes(place: Place, *notes: str) -> Place:
    return replace(place, notes=(*place.notes, *(note for note in notes if note)))


def starts_engine(text: str) -> bool:
    """Return whether a text has a word that starts an engine, in whatever way."""
    starts = (start for grammar in grammars().values() for start in grammar.launch)
    return any(
        (start.program if start.words[0] == "-m" else " ".join(start.words)) in text
        for start in starts
    )
