"""What was imported, and what it is beside an estimate, as text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from recipe_core.base.columns import aligned
from recipe_core.base.quoting import shell, shell_command
from recipe_core.base.units import count, duration, gib
from recipe_core.calibration.run_rows import ImportedTable
from recipe_core.calibration.validation.reconcile import EXPLAINED, MATCH, TITLES, Reconciled, Row

HEAD = ("figure", "measured", "estimated", "band", "verdict")
WIDTH = 120


def imported_text(table: ImportedTable, output: Path | None, there: int) -> str:
    """Which rows were made, where their columns are from, and what gave none."""
    lines = []
    for one in table.rows:
        lines.append(f"{one.row.id}: {one.row.title}")
        lines += [f"  {', '.join(columns)}: {origin}" for origin, columns in one.sources.items()]
        lines += [f"  note: {note}" for note in table.notes.get(one.row.id, ())]
        if reason := getattr(one.row, "exclude", ""):
            lines.append(f"  does not count: {reason}")
    lines += [f"{name}: {reason}" for name, reason in table.left_out.items()]
    if output is not None and table.rows:
        added = f", {len(table.rows):,} of them new" if there else ""
        lines.append(f"{there + len(table.rows):,} rows in {output}{added}")
        if "sequence_length" not in table.rows[0].origins:
            lines.append(f"learn from them: recipe calibrate {shell(str(output))}")
    return "\n".join(lines)


def reconciled_text(answers: Sequence[Reconciled], sources: Sequence[str], request: str) -> str:
    """Every measurement as a table, its explanations, and the offer to learn from it."""
    parts = [_one_text(answer) for answer in answers]
    if offer := _offer(answers, sources, request):
        parts.append(offer)
    return "\n\n".join(parts)


def _one_text(answer: Reconciled) -> str:
    one = answer.measurement
    place = f", {one.place}" if one.place else ""
    lines = [f"{answer.source}{place} ({one.format})"]
    if answer.rows:
        cells = [_cells(row) for row in answer.rows]
        table = aligned(HEAD, cells, left=("figure", "verdict"), width=WIDTH)
        lines.append(table.strip("\n"))
    else:
        lines.append("no figure that an estimate has too")
    for row in answer.rows:
        lines += _why(row)
    if answer.facts:
        lines.append(f"differs from the request: {'; '.join(answer.facts)}")
    if answer.not_estimated:
        lines.append(f"without an estimate: {', '.join(map(_title, answer.not_estimated))}")
    lines += [f"the estimate refuses the request: {reason}" for reason in answer.refused]
    lines += [f"note: {note}" for note in (*answer.notes, *one.notes)]
    return "\n".join(lines)


def _title(figure: str) -> str:
    return TITLES.get(figure, figure)


def _cells(row: Row) -> tuple[str, ...]:
    low, high = (amount(row.figure, end) for end in row.band)
    measured, estimated = amount(row.figure, row.measured), amount(row.figure, row.estimated)
    return (_title(row.figure), measured, estimated, f"{low} to {high}", row.verdict)


def _why(row: Row) -> list[str]:
    """What makes a figure fit, or how far the facts bring it."""
    if row.verdict == MATCH or row.again is None or row.again_band is None:
        return []
    low, high = (amount(row.figure, end) for end in row.again_band)
    again = f"{amount(row.figure, row.again)}, {low} to {high}"
    if row.verdict == EXPLAINED:
        why = " and ".join(row.explained_by)
        return [f"{_title(row.figure)}: explained by {why} (then {again})"]
    return [f"{_title(row.figure)}: not explained (with all that differs {again})"]


def amount(figure: str, value: float) -> str:
    """A figure in the unit that people read."""
    if figure.endswith("_bytes"):
        return gib(value)
    if figure == "mfu":
        return f"{value:.1%}"
    if figure.endswith("_s") and "per_s" not in figure:
        return duration(value)
    return count(value) if value >= 100 else f"{value:.3g}"


def _offer(answers: Sequence[Reconciled], sources: Sequence[str], request: str) -> str:
    """The commands that learn from what was measured; empty where nothing of it can be learned."""
    useful = [
        answer
        for answer in answers
        if answer.measurement.kind == "serving"
        and answer.measurement.teaches
        and not answer.measurement.excluded
    ]
    files = [source for source in sources if any(one.source == source for one in useful)]
    local = [source for source in files if "://" not in source]
    if not local:
        return ""
    words = ["recipe", "import", *local, "--request", request, "-o", "runs.csv"]
    return f"Learn from it:\n  {shell_command(words)}\n  recipe calibrate runs.csv"
