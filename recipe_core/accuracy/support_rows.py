"""``support/*.csv``: one file a runner, one row for what it says of a technique on hardware."""

from __future__ import annotations

import csv
import fnmatch
import re
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from recipe_core.accuracy.families import families, groups
from recipe_core.accuracy.runners import runners
from recipe_core.accuracy.support import Verdict
from recipe_core.accuracy.technique import techniques
from recipe_core.base.data_files import DataFile
from recipe_core.base.provenance import Source
from recipe_core.base.resources import PACKAGE
from recipe_core.base.types import Text

FOLDER = PACKAGE / "accuracy" / "support"
ANY = "any"
"""A file, and hardware, that is every runner's and every family's."""
SOURCES = DataFile(PACKAGE / "accuracy" / "support_sources.yaml", "engine")


Version = Annotated[str, Field(pattern=r"^([a-z]?\d[\w.]*)?$")]


class Row(BaseModel):
    """What one runner says of one technique on one family of hardware.

    technique: a name, or a pattern of names (``gguf_q?_k*``). variant: the runner's own word.
    min_version, last_version: the releases it holds for ("": the oldest, the newest that was read).
    words: what the runner says, at most 200 characters; a refusal has some. source: a key of
    ``support_sources.yaml``. status: whether the hardware is named there, or a stated rule was
    applied to it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    technique: Text
    variant: Annotated[str, Field(max_length=60)]
    hardware: Text
    verdict: Verdict
    min_version: Version
    last_version: Version
    source: Text
    words: Annotated[str, Field(max_length=200)]
    note: Annotated[str, Field(max_length=300)]
    status: Literal["read", "inferred"]

    @property
    def names(self) -> tuple[str, ...]:
        """The techniques that it speaks of."""
        return tuple(fnmatch.filter(techniques(), self.technique))


@dataclass(frozen=True, slots=True)
class Placed:
    """A row with its runner's name and the techniques that it speaks of."""

    engine: str
    row: Row
    names: frozenset[str]


def holds(row: Row, version: str) -> bool:
    """Whether a row speaks of a release ("": of the newest that was read)."""
    if not version:
        return not row.last_version
    release = _numbers(version)
    after = row.min_version and release < _numbers(row.min_version)
    before = row.last_version and release > _numbers(row.last_version)
    return not (after or before)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version))


class _Sources(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    schema_version: Literal[1]
    sources: dict[Text, Source]


@cache
def sources() -> dict[str, Source]:
    """Where rows were read, by key."""
    return SOURCES.read_as(_Sources).sources


@cache
def placed() -> tuple[Placed, ...]:
    """Every row of every runner, files in the order of their names.

    Raises:
        InputError: names the file, the line, the value and the fix.
    """
    files = sorted(FOLDER.glob("*.csv"))
    return tuple(one for path in files for one in _of_file(path.stem))


def _of_file(engine: str) -> list[Placed]:
    file = DataFile(FOLDER / f"{engine}.csv", "engine")
    if engine != ANY and engine not in runners():
        raise file.problem("", "is named after no runner", "Add it to runners.yaml.")
    with file.path.open(newline="", encoding="utf-8") as lines:
        return [
            _checked(file, engine, number, values)
            for number, values in enumerate(csv.DictReader(lines), start=2)
        ]


def _checked(file: DataFile, engine: str, line: int, values: dict[str, str]) -> Placed:
    row = file.validated(values, Row)
    problem = _problem(row)
    if problem:
        raise file.problem(f"line {line}", *problem)
    return Placed(engine, row, frozenset(row.names))


def _problem(row: Row) -> tuple[str, str] | None:
    """What is wrong with a row beside its shape, and the fix."""
    if not row.names:
        return f"{row.technique!r} is no technique", "Add it to techniques.yaml."
    if row.hardware != ANY and row.hardware not in families() and row.hardware not in groups():
        return f"{row.hardware!r} is no family or group", "Add it to families.yaml."
    if row.source not in sources():
        return f"source {row.source!r} is not listed", "Add it to support_sources.yaml."
    if row.verdict == "refused" and not (row.words and sources()[row.source].url):
        return "a refusal without words and address", "Quote the engine, or write unknown."
    return None
