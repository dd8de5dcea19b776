"""The checkpoint that a bundle makes before its engine loads it, as ``launch.json`` states it."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

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
