"""What runs where: the rows of ``support/*.csv``, and the answer for one engine and device."""

from __future__ import annotations

import csv
import fnmatch
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from recipe_core.accuracy.families import covers, families, family, family_of, groups
from recipe_core.accuracy.runners import runner, runners
from recipe_core.accuracy.support import Support, Verdict
from recipe_core.accuracy.technique import technique as technique_of
from recipe_core.accuracy.technique import techniques
from recipe_core.base.data_files import DataFile
from recipe_core.base.provenance import Source
from recipe_core.base.resources import PACKAGE
from recipe_core.base.types import Text
from recipe_core.engines.spec import engine as serving_engine
from recipe_core.engines.spec import engine_names
from recipe_core.hardware.profile import Device

FOLDER = PACKAGE / "accuracy" / "support"
# A file, and hardware, that is every runner's and every family's.
ANY = "any"
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


# Of several variants of a technique, an engine is planned with the first of these.
BEST: tuple[Verdict, ...] = (
    "native",
    "weight-only kernel",
    "emulated",
    "memory only",
    "unknown",
    "refused",
)


def rows(
    technique: str | None = None, engine: str | None = None, hardware: str | None = None
) -> tuple[Support, ...]:
    """Rows as they were read: of a technique, of a runner, of a family of hardware (None: of all).

    A row for a group of families is one of each of them.
    """
    return tuple(
        _answer(one, one.row.technique, one.row.hardware)
        for one in placed()
        if (engine is None or one.engine == engine)
        and (technique is None or technique in one.names)
        and (hardware is None or covers(one.row.hardware, hardware))
    )


def support_of(technique: str, engine: str, device: Device | str, version: str = "") -> Support:
    """Whether a runner runs a technique on a device (a profile, its name, or a family's name).

    version: the runner's release; "": the one that recipes install, else the newest that was read.

    The best of the runner's own rows for the family, else for a group with it, else what is said of
    the engine that it wraps, of the technique's parts, or of every runner. Where nothing is said,
    the verdict is "unknown" and ``note`` says what is missing.

    Raises:
        InputError: for an unknown technique, runner or device.
    """
    technique_of(technique)
    runner(engine)
    hardware = family_of(device)
    if hardware:
        return _support(technique, engine, hardware, version or release(engine))
    shown = device if isinstance(device, str) else f"architecture {device.architecture}"
    note = f"No family of hardware is known for {shown}."
    return Support(technique, engine, "", "unknown", note=note)


def matrix(engine: str, version: str = "") -> dict[str, dict[str, Support]]:
    """Techniques that a runner says anything of, by families of hardware that it speaks of.

    version: as in `support_of`.

    Rows are in the order of ``techniques.yaml``, columns in that of ``families.yaml``.
    """
    columns = [name for name in families() if _has(engine, name)]
    named = {name for one in placed() if one.engine in _chain(engine) for name in one.names}
    return {
        name: {column: support_of(name, engine, column, version) for column in columns}
        for name in _in_order(named)
    }


def _in_order(names: Iterable[str]) -> list[str]:
    wanted_names = set(names)
    return [name for name in techniques() if name in wanted_names]


def _has(engine: str, hardware: str) -> bool:
    return any(
        one.engine in _chain(engine) and covers(one.row.hardware, hardware)
        for one in placed()
        if one.row.hardware != ANY
    )


def _chain(engine: str) -> tuple[str, ...]:
    """The runner and the engines that it wraps, outermost first."""
    wraps = runner(engine).wraps
    return (engine, *(_chain(wraps) if wraps else ()))


@cache
def _support(technique: str, engine: str, hardware: str, version: str) -> Support:
    asked = _Asked(technique, engine, hardware, version)
    found = next((answer for find in _PLACES if (answer := find(asked)) is not None), None)
    return _with_silicon(found or _nothing(asked))


@dataclass(frozen=True, slots=True)
class _Asked:
    """What is looked up: names of a technique, a runner and a family; the runner's release."""

    technique: str
    engine: str
    hardware: str
    version: str


def release(engine: str, within: str = "") -> str:
    """The release of a runner that recipes install, within another ("": by itself); "": none."""
    if within:
        return serving_engine(within).wrapped_version or release(engine)
    return serving_engine(engine).version if engine in engine_names() else ""


def _own(asked: _Asked) -> Support | None:
    """The best row of the runner itself: for the family, else for a group that includes it."""
    found = [
        one for one in _rows_of(asked.technique, asked.engine) if holds(one.row, asked.version)
    ]
    exact = _best([one for one in found if one.row.hardware == asked.hardware])
    if exact is not None:
        return _answer(exact, asked.technique, asked.hardware)
    wider = _best([one for one in found if covers(one.row.hardware, asked.hardware)])
    if wider is None:
        return None
    answer = _answer(wider, asked.technique, asked.hardware)
    # What holds on any hardware holds on this one; a group's row may not have named the family.
    return answer if wider.row.hardware == ANY else replace(answer, inferred=True)


def _of_wrapped(asked: _Asked) -> Support | None:
    """What is said of the engine that the runner starts, at the release that it comes with."""
    wrapped = runner(asked.engine).wraps
    if wrapped is None:
        return None
    version = release(wrapped, asked.engine)
    found = _support(asked.technique, wrapped, asked.hardware, version)
    starts = f"{runner(asked.engine).title} starts {runner(wrapped).title} {version}".strip()
    note = f"{starts}. {found.note}".strip()
    return replace(found, engine=asked.engine, note=note, inferred=True)


def _elsewhere(asked: _Asked) -> Support | None:
    """The refusal of a runner that has no kernels for the hardware at all."""
    only = runner(asked.engine).only
    if only is None or any(covers(name, asked.hardware) for name in only.families):
        return None
    title = runner(asked.engine).title
    answer = Support(
        asked.technique,
        asked.engine,
        asked.hardware,
        "refused",
        words=only.words,
        note=f"{title} does not run on {family(asked.hardware).title} at all.",
    )
    return _cited(answer, only.source)


def _of_parts(asked: _Asked) -> Support | None:
    """A technique of several parts: runs as its worst part does."""
    parts = [
        _support(name, asked.engine, asked.hardware, asked.version)
        for name in technique_of(asked.technique).parts
    ]
    if not parts:
        return None
    worst = max(parts, key=lambda part: BEST.index(part.verdict))
    note = f"Judged by its part {worst.technique}. {worst.note}".strip()
    return replace(worst, technique=asked.technique, note=note, inferred=True)


def _of_whole(asked: _Asked) -> Support | None:
    """Weights alone in a format: run where the engine takes the format and computes in 16 bit."""
    whole = technique_of(asked.technique).weights_of
    if whole is None:
        return None
    found = _support(whole, asked.engine, asked.hardware, asked.version)
    if found.verdict != "weight-only kernel":
        return None
    note = f"{whole} runs so here: its weights are stored small and multiplied in 16 bit."
    return replace(found, technique=asked.technique, note=note, inferred=True)


def _of_every(asked: _Asked) -> Support | None:
    """What is true of every runner."""
    said = _best(
        [one for one in _rows_of(asked.technique, ANY) if covers(one.row.hardware, asked.hardware)]
    )
    if said is None:
        return None
    answer = _answer(said, asked.technique, asked.hardware)
    return replace(answer, engine=asked.engine, inferred=True)


# Where an answer is looked for, in this order.
_PLACES = (_own, _of_wrapped, _elsewhere, _of_parts, _of_whole, _of_every)


def _nothing(asked: _Asked) -> Support:
    """The answer where nothing is said: of this release, or at all."""
    title, where = runner(asked.engine).title, family(asked.hardware).title
    named = technique_of(asked.technique).title
    note = f"Nothing that {title} says of {named} on {where} was found."
    if any(covers(one.row.hardware, asked.hardware) for one in _said(asked)):
        note = f"What {title} says of {named} on {where} is not of release {asked.version}."
    return Support(asked.technique, asked.engine, asked.hardware, "unknown", note=note)


def _said(asked: _Asked) -> tuple[Placed, ...]:
    return _rows_of(asked.technique, asked.engine)


def _with_silicon(answer: Support) -> Support:
    """A kind of sparsity, with what the hardware itself makes of it."""
    if technique_of(answer.technique).kind != "sparsity":
        return answer
    one = family(answer.hardware)
    does = "skip two zeros of four and no others" if one.sparse_2_4 else "skip no zeros"
    return replace(answer, note=f"{answer.note} Matrix units of {one.title} {does}.".strip())


@cache
def _rows_of(technique: str, engine: str) -> tuple[Placed, ...]:
    return tuple(one for one in placed() if one.engine == engine and technique in one.names)


def _best(found: Sequence[Placed]) -> Placed | None:
    return min(found, key=lambda one: BEST.index(one.row.verdict), default=None)


def _answer(one: Placed, technique: str, hardware: str) -> Support:
    row = one.row
    answer = Support(
        technique=technique,
        engine=one.engine,
        hardware=hardware,
        verdict=row.verdict,
        variant=row.variant,
        min_version=row.min_version,
        last_version=row.last_version,
        words=row.words,
        note=row.note,
        inferred=row.status == "inferred",
    )
    return _cited(answer, row.source)


def _cited(answer: Support, key: str) -> Support:
    source = sources()[key]
    return replace(answer, source=source.title, url=source.url or "", date=source.date or "")
