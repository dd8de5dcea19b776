"""What a deployment file says of an engine: its command, its devices, and where that stands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from recipe_core.commands.launches import Launch

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
        """As fields of `recipe_core.commands.context.Ground`."""
        values = {"hardware": self.device, "gpus": self.per_node, "nodes": self.nodes}
        return {name: value for name, value in values.items() if value is not None}


@dataclass(frozen=True, slots=True)
class DeployedEngine:
    """One server of a file.

    ``where``: its place in the file in words, and the ``line``; ``model``: what its volume or its
    model field holds, where the command names only a folder; ``release``: of the engine that the
    file installs; ``replicas``: copies that it starts. ``unset``: variables without a value.
    """

    where: str
    line: int | None
    launch: Launch
    place: Place = field(default_factory=Place)
    model: str | None = None
    release: str | None = None
    replicas: int = 1
    unset: tuple[str, ...] = ()

    def ground(self, overrides: Mapping[str, Any]) -> dict[str, Any]:
        """What to judge it on: ``overrides`` of the user before what the file says."""
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
