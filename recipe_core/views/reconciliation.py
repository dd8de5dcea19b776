"""Imported measurements, and measurements beside an estimate, as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from recipe_core.base.texts import quote_command, quote_shell
from recipe_core.calibration.run_rows import ImportedTable
from recipe_core.calibration.validation.reconcile import EXPLAINED, MATCH, Ends, Reconciled, Row
from recipe_core.calibration.validation.reconcile import FIGURES as RECONCILED
from recipe_core.request.metrics import column_metric
from recipe_core.views.columns import Column, terminal


def imported_text(table: ImportedTable, output: Path | None, existing: int) -> str:
    """Rows that were made with the sources of their columns, and the files that gave none.

    ``existing``: rows of ``output`` before.
    """
    lines = []
    for imported in table.rows:
        row = imported.row
        lines.append(f"{row.id}: {row.title}")
        lines += [
            f"  {', '.join(columns)}: {origin}" for origin, columns in imported.sources.items()
        ]
        lines += [f"  note: {note}" for note in table.notes.get(row.id, ())]
        if reason := getattr(row, "exclude", ""):
            lines.append(f"  does not count: {reason}")
    lines += [f"{name}: {reason}" for name, reason in table.left_out.items()]
    if output is not None and table.rows:
        added = f", {len(table.rows):,} of them new" if existing else ""
        lines.append(f"{existing + len(table.rows):,} rows in {output}{added}")
        if "sequence_length" not in table.rows[0].origins:
            lines.append(f"learn from them: recipe calibrate {quote_shell(str(output))}")
    return "\n".join(lines)


def reconciled_text(answers: Sequence[Reconciled], sources: Sequence[str], request: str) -> str:
    """Every measurement as a table, its explanations, and the commands that learn from it."""
    parts = ["\n".join(_measurement_lines(answer)) for answer in answers]
    if offer := _learning_commands(answers, sources, request):
        parts.append(offer)
    return "\n\n".join(parts)


def _measurement_lines(answer: Reconciled) -> Iterator[str]:
    measurement = answer.measurement
    place = f", {measurement.place}" if measurement.place else ""
    yield f"{answer.source}{place} ({measurement.format})"
    if answer.rows:
        yield terminal(answer.rows, FIGURES)
    else:
        yield "no figure that an estimate has too"
    for row in answer.rows:
        if text := _explanation(row):
            yield text
    if answer.facts:
        yield f"differs from the request: {'; '.join(answer.facts)}"
    if answer.not_estimated:
        yield f"without an estimate: {', '.join(map(_figure_name, answer.not_estimated))}"
    for reason in answer.refused:
        yield f"the estimate refuses the request: {reason}"
    for note in (*answer.notes, *measurement.notes):
        yield f"note: {note}"


def _figure_name(figure: str) -> str:
    return column_metric(figure).label if figure in RECONCILED else figure


def _amount(figure: str, value: float) -> str:
    return column_metric(figure).show(value)


def _ends_text(figure: str, ends: Ends) -> str:
    return " to ".join(_amount(figure, end) for end in ends)


FIGURES: tuple[Column[Row], ...] = (
    Column("Figure", lambda row: _figure_name(row.figure), align="left"),
    Column("Measured", lambda row: _amount(row.figure, row.measured)),
    Column("Estimated", lambda row: _amount(row.figure, row.estimated)),
    Column("Band", lambda row: _ends_text(row.figure, row.band)),
    Column("Verdict", lambda row: row.verdict, align="left"),
)


def _explanation(row: Row) -> str:
    """The facts that make a figure fit, or how far they bring it; empty where it fits."""
    if row.verdict == MATCH or row.again is None or row.again_band is None:
        return ""
    band = _ends_text(row.figure, row.again_band)
    again = f"{_amount(row.figure, row.again)}, {band}"
    if row.verdict == EXPLAINED:
        facts = " and ".join(row.explained_by)
        return f"{_figure_name(row.figure)}: explained by {facts} (then {again})"
    return f"{_figure_name(row.figure)}: not explained (with all that differs {again})"


def _learning_commands(answers: Sequence[Reconciled], sources: Sequence[str], request: str) -> str:
    """The commands that learn from what was measured; empty where nothing of it can be learned."""
    useful = {
        answer.source
        for answer in answers
        if answer.measurement.kind == "serving"
        and answer.measurement.teaches
        and not answer.measurement.excluded
    }
    files = [source for source in sources if source in useful and "://" not in source]
    if not files:
        return ""
    words = ["recipe", "import", *files, "--request", request, "-o", "runs.csv"]
    return f"Learn from it:\n  {quote_command(words)}\n  recipe calibrate runs.csv"
