"""What runs where: the rows of ``support/*.csv``, and the answer for one engine and device."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache

from recipe_core.compression.families import covers, families, family, family_of
from recipe_core.compression.runners import runner
from recipe_core.compression.support import Support, Verdict
from recipe_core.compression.support_rows import ANY, Placed, holds, placed, sources
from recipe_core.compression.technique import technique as technique_of
from recipe_core.compression.technique import techniques
from recipe_core.hardware.profile import Device

BEST: tuple[Verdict, ...] = (
    "native",
    "weight-only kernel",
    "emulated",
    "memory only",
    "unknown",
    "refused",
)
"""Of several variants of a technique, an engine is planned with the first of these."""


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

    version: the runner's release; "": the newest that was read.

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
        return _support(technique, engine, hardware, version)
    shown = device if isinstance(device, str) else f"architecture {device.architecture}"
    note = f"No family of hardware is known for {shown}."
    return Support(technique, engine, "", "unknown", note=note)


def matrix(engine: str) -> dict[str, dict[str, Support]]:
    """Techniques that a runner says anything of, by families of hardware that it has.

    Rows are in the order of ``techniques.yaml``, columns in that of ``families.yaml``.
    """
    columns = [name for name in families() if _has(engine, name)]
    named = {name for one in placed() if one.engine in _chain(engine) for name in one.names}
    return {
        name: {column: support_of(name, engine, column) for column in columns}
        for name in _in_order(named)
    }


def _in_order(names: Iterable[str]) -> list[str]:
    chosen = set(names)
    return [name for name in techniques() if name in chosen]


def _has(engine: str, hardware: str) -> bool:
    """Whether any row of the runner, or of what it wraps, is about the hardware."""
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
def _support(technique: str, engine: str, hardware: str, version: str = "") -> Support:
    own = _own(technique, engine, hardware, version)
    if own is not None:
        return own
    wrapped = runner(engine).wraps
    if wrapped:
        return _of_wrapped(_support(technique, wrapped, hardware), engine)
    further = (
        _elsewhere(technique, engine, hardware),
        _of_parts(technique, engine, hardware, version),
        _of_whole(technique, engine, hardware, version),
    )
    for answer in further:
        if answer is not None:
            return answer
    said = _best([one for one in _rows_of(technique, ANY) if covers(one.row.hardware, hardware)])
    if said is not None:
        return replace(_answer(said, technique, hardware), engine=engine, inferred=True)
    where = family(hardware).title
    note = f"Nothing that {runner(engine).title} says of {technique} on {where} was found."
    return Support(technique, engine, hardware, "unknown", note=note)


def _own(technique: str, engine: str, hardware: str, version: str) -> Support | None:
    """The best row of the runner itself: for the family, else for a group that includes it."""
    found = [one for one in _rows_of(technique, engine) if holds(one.row, version)]
    exact = _best([one for one in found if one.row.hardware == hardware])
    if exact is not None:
        return _answer(exact, technique, hardware)
    wider = _best([one for one in found if covers(one.row.hardware, hardware)])
    if wider is None:
        return None
    return replace(_answer(wider, technique, hardware), inferred=True)


@cache
def _rows_of(technique: str, engine: str) -> tuple[Placed, ...]:
    return tuple(one for one in placed() if one.engine == engine and technique in one.names)


def _best(found: Sequence[Placed]) -> Placed | None:
    return min(found, key=lambda one: BEST.index(one.row.verdict), default=None)


def _answer(one: Placed, technique: str, hardware: str) -> Support:
    row = one.row
    source = sources()[row.source]
    return Support(
        technique=technique,
        engine=one.engine,
        hardware=hardware,
        verdict=row.verdict,
        variant=row.variant,
        min_version=row.min_version,
        last_version=row.last_version,
        words=row.words,
        note=row.note,
        source=source.title,
        url=source.url or "",
        date=source.date or "",
        inferred=row.status == "inferred",
    )


def _of_wrapped(found: Support, engine: str) -> Support:
    note = f"{runner(engine).title} starts {runner(found.engine).title}. {found.note}".strip()
    return replace(found, engine=engine, note=note, min_version="", inferred=True)


def _elsewhere(technique: str, engine: str, hardware: str) -> Support | None:
    """The refusal of a runner that has no kernels for the hardware at all."""
    only = runner(engine).only
    if only is None or any(covers(name, hardware) for name in only.families):
        return None
    source = sources()[only.source]
    return Support(
        technique,
        engine,
        hardware,
        "refused",
        words=only.words,
        note=f"{runner(engine).title} does not run on {family(hardware).title} at all.",
        source=source.title,
        url=source.url or "",
        date=source.date or "",
    )


def _of_parts(technique: str, engine: str, hardware: str, version: str) -> Support | None:
    """A technique of several parts: runs as its worst part does."""
    parts = [_support(name, engine, hardware, version) for name in technique_of(technique).parts]
    if not parts:
        return None
    worst = max(parts, key=lambda part: BEST.index(part.verdict))
    note = f"Judged by its part {worst.technique}. {worst.note}".strip()
    return replace(worst, technique=technique, note=note, inferred=True)


def _of_whole(technique: str, engine: str, hardware: str, version: str) -> Support | None:
    """Weights alone in a format: run where the engine takes the format and computes in 16 bit."""
    whole = technique_of(technique).weights_of
    if whole is None:
        return None
    found = _support(whole, engine, hardware, version)
    if found.verdict != "weight-only kernel":
        return None
    note = f"{whole} runs so here: its weights are stored small and multiplied in 16 bit."
    return replace(found, technique=technique, note=note, inferred=True)
