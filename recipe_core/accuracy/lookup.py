"""Support by runner: the rows of ``support/*.csv``, and the answer for one engine and device."""

from __future__ import annotations

import csv
import fnmatch
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Annotated, Literal

from pydantic import Field

from recipe_core.accuracy.runners import (
    Support,
    Verdict,
    covers,
    families,
    family,
    family_of,
    hardware_groups,
    runner,
    runners,
)
from recipe_core.accuracy.technique import technique as technique_of
from recipe_core.accuracy.technique import techniques
from recipe_core.base.data_files import DataFile, DataRow
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


class Row(DataRow):
    """The answer of one runner for one technique on one family of hardware.

    technique: a name, or a pattern of names (``gguf_q?_k*``). variant: the runner's own word.
    min_version, last_version: the releases it holds for ("": the oldest, the newest that was read).
    words: what the runner says, at most 200 characters; a refusal has some. source: a key of
    ``support_sources.yaml``. status: whether the hardware is named there, or a stated rule was
    applied to it.
    """

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
class SupportEntry:
    """A row with its runner's name and the techniques that it speaks of."""

    engine: str
    row: Row
    names: frozenset[str]


def covers_release(row: Row, version: str) -> bool:
    """Return whether a row speaks of a release ("": of the newest that was read)."""
    if not version:
        return not row.last_version
    release = _version_numbers(version)
    after = row.min_version and release < _version_numbers(row.min_version)
    before = row.last_version and release > _version_numbers(row.last_version)
    return not (after or before)


def _version_numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version))


class _Sources(DataRow):
    schema_version: Literal[1]
    sources: dict[Text, Source]


@cache
def support_sources() -> dict[str, Source]:
    return SOURCES.read_as(_Sources).sources


@cache
def support_entries() -> tuple[SupportEntry, ...]:
    """Every row of every runner, files in the order of their names.

    Raises:
        InputError: names the file, the line, the value and the fix.
    """
    files = sorted(FOLDER.glob("*.csv"))
    return tuple(entry for path in files for entry in _read_support_file(path.stem))


def _read_support_file(engine: str) -> list[SupportEntry]:
    file = DataFile(FOLDER / f"{engine}.csv", "engine")
    if engine != ANY and engine not in runners():
        raise file.problem("", "is named after no runner", "Add it to runners.yaml.")
    with file.path.open(newline="", encoding="utf-8") as lines:
        return [
            _check_support_row(file, engine, number, values)
            for number, values in enumerate(csv.DictReader(lines), start=2)
        ]


def _check_support_row(
    file: DataFile, engine: str, line: int, values: dict[str, str]
) -> SupportEntry:
    row = file.validated(values, Row)
    problem = _support_row_problem(row)
    if problem:
        raise file.problem(f"line {line}", *problem)
    return SupportEntry(engine, row, frozenset(row.names))


def _support_row_problem(row: Row) -> tuple[str, str] | None:
    """Return what is wrong with a row beside its shape, and the fix."""
    if not row.names:
        return f"{row.technique!r} is no technique", "Add it to techniques.yaml."
    if (
        row.hardware != ANY
        and row.hardware not in families()
        and row.hardware not in hardware_groups()
    ):
        return f"{row.hardware!r} is no family or group", "Add it to families.yaml."
    if row.source not in support_sources():
        return f"source {row.source!r} is not listed", "Add it to support_sources.yaml."
    if row.verdict == "refused" and not (row.words and support_sources()[row.source].url):
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


def support_rows(
    technique: str | None = None, engine: str | None = None, hardware: str | None = None
) -> tuple[Support, ...]:
    """Rows as they were read: of a technique, of a runner, of a family of hardware (None: of all).

    A row for a group of families is one of each of them.
    """
    return tuple(
        _row_support(entry, entry.row.technique, entry.row.hardware)
        for entry in support_entries()
        if (engine is None or entry.engine == engine)
        and (technique is None or technique in entry.names)
        and (hardware is None or covers(entry.row.hardware, hardware))
    )


def support_of(technique: str, engine: str, device: Device | str, version: str = "") -> Support:
    """Look up whether a runner has a technique on a device (a profile, its name, or a family).

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
        return _look_up_support(technique, engine, hardware, version or installed_release(engine))
    shown = device if isinstance(device, str) else f"architecture {device.architecture}"
    note = f"No family of hardware is known for {shown}."
    return Support(technique, engine, "", "unknown", note=note)


@cache
def _look_up_support(technique: str, engine: str, hardware: str, version: str) -> Support:
    query = _Query(technique, engine, hardware, version)
    support = next((answer for find in _PLACES if (answer := find(query)) is not None), None)
    return _with_silicon(support or _unknown_support(query))


@dataclass(frozen=True, slots=True)
class _Query:
    """A lookup: names of a technique, a runner and a family; the runner's release."""

    technique: str
    engine: str
    hardware: str
    version: str


def installed_release(engine: str, within: str = "") -> str:
    """The release of a runner that recipes install, within another ("": by itself); "": none."""
    if within:
        return serving_engine(within).wrapped_version or installed_release(engine)
    return serving_engine(engine).version if engine in engine_names() else ""


def _of_runner(query: _Query) -> Support | None:
    """The best row of the runner itself: for the family, else for a group that includes it."""
    candidates = [
        entry
        for entry in _rows_of(query.technique, query.engine)
        if covers_release(entry.row, query.version)
    ]
    exact = _best_row([entry for entry in candidates if entry.row.hardware == query.hardware])
    if exact is not None:
        return _row_support(exact, query.technique, query.hardware)
    wider = _best_row([entry for entry in candidates if covers(entry.row.hardware, query.hardware)])
    if wider is None:
        return None
    answer = _row_support(wider, query.technique, query.hardware)
    # What holds on any hardware holds on this one; a group's row may not have named the family.
    return answer if wider.row.hardware == ANY else replace(answer, inferred=True)


def _of_wrapped(query: _Query) -> Support | None:
    """Look up the engine that the runner starts, at the release that it comes with."""
    wrapped = runner(query.engine).wraps
    if wrapped is None:
        return None
    version = installed_release(wrapped, query.engine)
    support = _look_up_support(query.technique, wrapped, query.hardware, version)
    starts = f"{runner(query.engine).title} starts {runner(wrapped).title} {version}".strip()
    note = f"{starts}. {support.note}".strip()
    return replace(support, engine=query.engine, note=note, inferred=True)


def _of_other_hardware(query: _Query) -> Support | None:
    """The refusal of a runner that has no kernels for the hardware at all."""
    only = runner(query.engine).only
    if only is None or any(covers(name, query.hardware) for name in only.families):
        return None
    title = runner(query.engine).title
    answer = Support(
        query.technique,
        query.engine,
        query.hardware,
        "refused",
        words=only.words,
        note=f"{title} does not run on {family(query.hardware).title} at all.",
    )
    return _cite_source(answer, only.source)


def _of_parts(query: _Query) -> Support | None:
    """A technique of several parts: runs as its worst part does."""
    parts = [
        _look_up_support(name, query.engine, query.hardware, query.version)
        for name in technique_of(query.technique).parts
    ]
    if not parts:
        return None
    worst = max(parts, key=lambda part: BEST.index(part.verdict))
    note = f"Judged by its part {worst.technique}. {worst.note}".strip()
    return replace(worst, technique=query.technique, note=note, inferred=True)


def _of_whole(query: _Query) -> Support | None:
    """Weights alone in a format: run where the engine takes the format and computes in 16 bit."""
    full_technique = technique_of(query.technique).weights_of
    if full_technique is None:
        return None
    support = _look_up_support(full_technique, query.engine, query.hardware, query.version)
    if support.verdict != "weight-only kernel":
        return None
    note = f"{full_technique} runs so here: its weights are stored small and multiplied in 16 bit."
    return replace(support, technique=query.technique, note=note, inferred=True)


def _of_every(query: _Query) -> Support | None:
    """Return what is true of every runner."""
    best = _best_row(
        [
            entry
            for entry in _rows_of(query.technique, ANY)
            if covers(entry.row.hardware, query.hardware)
        ]
    )
    if best is None:
        return None
    answer = _row_support(best, query.technique, query.hardware)
    return replace(answer, engine=query.engine, inferred=True)


# Where an answer is looked for, in this order.
_PLACES = (_of_runner, _of_wrapped, _of_other_hardware, _of_parts, _of_whole, _of_every)


def _unknown_support(query: _Query) -> Support:
    """The answer where nothing is said: of this release, or at all."""
    title, where = runner(query.engine).title, family(query.hardware).title
    technique_title = technique_of(query.technique).title
    note = f"Nothing that {title} says of {technique_title} on {where} was found."
    if any(
        covers(entry.row.hardware, query.hardware)
        for entry in _rows_of(query.technique, query.engine)
    ):
        note = (
            f"What {title} says of {technique_title} on {where} is not of release {query.version}."
        )
    return Support(query.technique, query.engine, query.hardware, "unknown", note=note)


def _with_silicon(answer: Support) -> Support:
    """A kind of sparsity, with what the hardware itself makes of it."""
    if technique_of(answer.technique).kind != "sparsity":
        return answer
    hardware = family(answer.hardware)
    does = "skip two zeros of four and no others" if hardware.sparse_2_4 else "skip no zeros"
    return replace(answer, note=f"{answer.note} Matrix units of {hardware.title} {does}.".strip())


@cache
def _rows_of(technique: str, engine: str) -> tuple[SupportEntry, ...]:
    return tuple(
        entry for entry in support_entries() if entry.engine == engine and technique in entry.names
    )


def _best_row(candidates: Sequence[SupportEntry]) -> SupportEntry | None:
    return min(candidates, key=lambda entry: BEST.index(entry.row.verdict), default=None)


def _row_support(entry: SupportEntry, technique: str, hardware: str) -> Support:
    row = entry.row
    answer = Support(
        technique=technique,
        engine=entry.engine,
        hardware=hardware,
        verdict=row.verdict,
        variant=row.variant,
        min_version=row.min_version,
        last_version=row.last_version,
        words=row.words,
        note=row.note,
        inferred=row.status == "inferred",
    )
    return _cite_source(answer, row.source)


def _cite_source(answer: Support, key: str) -> Support:
    source = support_sources()[key]
    return replace(answer, source=source.title, url=source.url or "", date=source.date or "")
