"""Sections of ``launch.json``, typed: how servers are asked, supervised, what is made."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Protocol

from .typed_json import Fields, read_typed

# What lies in a finished output: what made it, from what, and the digest of each file.
RECORD = "recipe-compression.json"
# The measured figures of the result, in ``run/``.
RESULT = "compression.json"
FOLDER = "compressed"
TOOLS = "tools"


_A_FILE = {"form": r"(?:[A-Za-z0-9][A-Za-z0-9._-]*)?", "words": "the name of a file"}


@dataclass(frozen=True, slots=True)
class Making:
    """The checkpoint that a bundle makes.

    ``argv`` and ``verify``: words of the tool and of the check afterwards, with ``${root}`` and
    ``${job}``. ``source``: the base, a folder or an id of the hub. ``output``: a folder, of which
    the engine loads the file ``loaded`` ("": the folder itself). ``module`` and ``programs``: what
    the tool's Python has to find. Bytes are estimates.
    """

    tool: str
    title: str
    technique: str
    method: str
    module: str
    programs: tuple[str, ...]
    install: str
    argv: tuple[str, ...]
    verify: tuple[str, ...]
    env: dict[str, str]
    source: str
    output: Path
    job: Path
    device_bytes: int
    host_bytes: int
    disk_bytes: int
    seconds: float | None
    loaded: str = field(default="", metadata=_A_FILE)

    @property
    def name(self) -> str:
        return self.output.name

    @property
    def served(self) -> str:
        return str(self.output / self.loaded) if self.loaded else str(self.output)

    @property
    def part(self) -> Path:
        return self.output.with_name(f".{self.name}.part")

    @property
    def finished(self) -> bool:
        return (self.output / RECORD).is_file()


def read_making(data: Fields, root: Path) -> Making | None:
    """The optional object ``compression`` of a ``launch.json``; None where nothing is made."""
    if data.data.get("compression") is None:
        return None
    data = data.child("compression")
    needs = data.child("needs")
    return read_typed(
        Making,
        data,
        output=Path(os.path.normpath(root / Path(data.text("output")).expanduser())),
        job=root / data.text("job"),
        device_bytes=needs.optional_integer("device_bytes") or 0,
        host_bytes=needs.optional_integer("host_bytes") or 0,
        disk_bytes=needs.optional_integer("disk_bytes") or 0,
        seconds=needs.optional_number("seconds"),
    )


@dataclass(frozen=True, slots=True)
class Supervision:
    """The limits, with their defaults; times in seconds.

    ``crash_budget`` failures of one group of processes within ``window_s`` are answered with a
    restart; one more is not. ``backoff_s`` is the rest before the first restart, which doubles up
    to ``backoff_most_s``. A group that served for ``stable_s`` starts from the beginning.
    ``hang_s``: without an answer, or without a new token while requests run or one is asked for.
    ``slow_s``: how long times per token are above the recipe's band. ``drain_s``: how long running
    requests may take once no new ones are wanted. ``poll_s``: between two looks.
    """

    crash_budget: int = 5
    window_s: float = 600.0
    backoff_s: float = 1.0
    backoff_most_s: float = 60.0
    stable_s: float = 300.0
    hang_s: float = 60.0
    slow_s: float = 300.0
    drain_s: float = 30.0
    poll_s: float = 1.0

    def with_options(self, options: Mapping[str, float | int | None]) -> Supervision:
        """These limits with those that a command line states."""
        limits = {name: value for name, value in options.items() if value is not None}
        return replace(self, **limits)  # type: ignore[arg-type]


USUAL = Supervision()
# What each limit means, by its field; the option is called by it, without its unit.
OPTIONS = {
    "crash_budget": "failures of a server within the window that are answered with a restart",
    "window_s": "seconds in which failures count",
    "backoff_s": "seconds before the first restart; doubles with each that follows",
    "backoff_most_s": "the most seconds before a restart",
    "stable_s": "seconds of service after which earlier failures are forgotten",
    "hang_s": "seconds without an answer, or without tokens while requests run",
    "slow_s": "seconds above the recipe's time per token that count as a slow death",
    "drain_s": "seconds that running requests may take to finish",
    "poll_s": "seconds between two looks",
}


def option_of(field: str) -> str:
    """The option of a limit: ``--backoff-most`` for ``backoff_most_s``."""
    return "--" + field.removesuffix("_s").replace("_", "-")


class Fills(Protocol):
    """The values that fill placeholders in texts and in JSON."""

    def text(self, template: str) -> str: ...

    def json(self, value: Any) -> Any: ...


@dataclass(frozen=True, slots=True)
class Api:
    """The API of a server: path, name of the model, and fields added to every body.

    ``key_variable``: the environment variable with the API key that servers ask for, None where
    they know none; ``key_needed``: whether nothing may be started without one.
    """

    path: str
    model: str
    body: dict[str, Any]
    key_variable: str | None = None
    key_needed: bool = False


def read_api(fields: Fields, fill: Fills) -> Api:
    """The API as ``launch.json`` states it, with placeholders filled.

    Raises:
        InputError: for a field that is not what it should be.
    """
    variable = fields.data.get("key_variable")
    name = {"form": r"[A-Za-z_][A-Za-z0-9_]*", "words": "the name of a variable"}
    return Api(
        fields.text("path", form="/.*", words="a path that starts with /"),
        fill.text(fields.text("model")),
        fill.json(fields.child("body", optional=True).data),
        None if variable is None else fields.text("key_variable", **name),
        fields.data.get("key_needed") is True,
    )


def is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False
