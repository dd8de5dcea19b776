"""``launch.json``'s ``compression``: the checkpoint that this bundle makes, and what that takes."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from .fields import Fields

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
