"""Sections of ``launch.json``, typed: how servers are asked, supervised, what is made."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Protocol

from .errors import InputError

_REBUILD = "Build the bundle again with `recipe build`."


@dataclass(frozen=True, slots=True)
class Fields:
    """One JSON object and where it is (``launch.json: processes[0]``)."""

    data: dict[str, Any]
    where: str

    def fail(self, key: str, expected: str) -> InputError:
        problem = f"got {self.data[key]!r}" if key in self.data else "it is missing"
        return InputError(
            f"expected {expected}, {problem}.", field=f"{self.where}.{key}", hint=_REBUILD
        )

    def text(self, key: str) -> str:
        """Text that is not empty."""
        value = self.data.get(key)
        if not isinstance(value, str) or not value:
            raise self.fail(key, "text")
        return value

    def optional_text(self, key: str) -> str | None:
        """Text, or None when it is null or absent."""
        return None if self.data.get(key) is None else self.text(key)

    def one_of(self, key: str, allowed: tuple[str, ...]) -> str:
        """One of a few words."""
        value = self.data.get(key)
        if not isinstance(value, str) or value not in allowed:
            raise self.fail(key, "one of " + ", ".join(allowed))
        return value

    def integer(self, key: str, *, low: int = 0) -> int:
        """A whole number of at least ``low``."""
        value = self.data.get(key)
        if isinstance(value, bool) or not isinstance(value, int) or value < low:
            raise self.fail(key, f"a whole number of at least {low}")
        return value

    def optional_integer(self, key: str, *, low: int = 0) -> int | None:
        """A whole number, or None when it is null or absent."""
        return None if self.data.get(key) is None else self.integer(key, low=low)

    def optional_number(self, key: str) -> float | None:
        """A number above 0, or None when it is null or absent."""
        value = self.data.get(key)
        if value is None:
            return None
        numeric = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not numeric or not 0 < value < float("inf"):
            raise self.fail(key, "a number above 0")
        return float(value)

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of text, empty when absent."""
        value = self.data.get(key, [])
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.fail(key, "a list of text")
        return tuple(value)

    def integers(self, key: str) -> tuple[int, ...]:
        """A list of whole numbers, empty when absent."""
        value = self.data.get(key, [])
        valid = isinstance(value, list) and all(type(n) is int and n >= 0 for n in value)
        if not valid:
            raise self.fail(key, "a list of whole numbers")
        return tuple(value)

    def text_map(self, key: str) -> dict[str, str]:
        """An object whose values are text, empty when absent."""
        value = self.data.get(key, {})
        if not isinstance(value, dict) or not all(isinstance(item, str) for item in value.values()):
            raise self.fail(key, "an object of text")
        return dict(value)

    def child(self, key: str, *, optional: bool = False) -> Fields:
        """The object inside this one."""
        value = self.data.get(key, {} if optional else None)
        if not isinstance(value, dict):
            raise self.fail(key, "an object")
        return Fields(value, f"{self.where}.{key}")

    def children(self, key: str) -> tuple[Fields, ...]:
        """The objects in a list that is not empty."""
        value = self.data.get(key)
        objects = isinstance(value, list) and all(isinstance(item, dict) for item in value)
        if not value or not objects:
            raise self.fail(key, "a list of objects")
        return tuple(Fields(item, f"{self.where}.{key}[{i}]") for i, item in enumerate(value))


# What lies in a finished output: what made it, from what, and the digest of each file.
RECORD = "recipe-compression.json"
# The measured figures of the result, in ``run/``.
RESULT = "compression.json"
FOLDER = "compressed"
TOOLS = "tools"


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
    loaded: str
    job: Path
    device_bytes: int
    host_bytes: int
    disk_bytes: int
    seconds: float | None

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


def read_making(fields: Fields, root: Path) -> Making | None:
    """The optional object ``compression`` of a ``launch.json``; None where nothing is made."""
    if fields.data.get("compression") is None:
        return None
    data = fields.child("compression")
    output = os.path.normpath(root / Path(data.text("output")).expanduser())
    loaded = data.optional_text("loaded") or ""
    if loaded and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", loaded):
        raise data.fail("loaded", "the name of a file")
    needs = data.child("needs")
    return Making(
        tool=data.text("tool"),
        title=data.text("title"),
        technique=data.text("technique"),
        method=data.text("method"),
        module=data.text("module"),
        programs=data.texts("programs"),
        install=data.text("install"),
        argv=data.texts("argv"),
        verify=data.texts("verify"),
        env=data.text_map("env"),
        source=data.text("source"),
        output=Path(output),
        loaded=loaded,
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


def read_supervision(data: Fields) -> Supervision:
    """The optional object ``supervision`` of a ``launch.json``.

    Raises:
        InputError: for a limit that is no number above 0.
    """
    if data.data.get("supervision") is None:
        return Supervision()
    limits = data.child("supervision")
    values: dict[str, float | int | None] = {
        field.name: limits.optional_integer(field.name)
        if field.name == "crash_budget"
        else limits.optional_number(field.name)
        for field in fields(Supervision)
    }
    return Supervision().with_options(values)


_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class Fills(Protocol):
    """What fills placeholders in texts and in JSON."""

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
    path, variable = fields.text("path"), fields.optional_text("key_variable")
    if not path.startswith("/"):
        raise fields.fail("path", "a path that starts with /")
    if variable is not None and not _VARIABLE.fullmatch(variable):
        raise fields.fail("key_variable", "the name of a variable")
    return Api(
        path,
        fill.text(fields.text("model")),
        fill.json(fields.child("body", optional=True).data),
        variable,
        fields.data.get("key_needed") is True,
    )


def is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False
