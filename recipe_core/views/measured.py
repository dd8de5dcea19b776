"""Own runs and what they taught, as sentences and columns, for terminal and page."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import TypeVar

from recipe_core.accuracy.published import Retained
from recipe_core.base.errors import RecipeError
from recipe_core.base.units import share_text, utilisation
from recipe_core.calibration.evidence import run_name
from recipe_core.calibration.lessons import (
    ComparedCompression,
    Knowledge,
    LearnedNumber,
    LeftOneOut,
)
from recipe_core.calibration.place import VARIABLE, default_path
from recipe_core.calibration.records import StoredCompression, StoredRun
from recipe_core.calibration.residuals import ComparedFigure, RunsCompared
from recipe_core.calibration.store import Overlay
from recipe_core.calibration.uploads import ColumnRead, UploadPreview
from recipe_core.estimates.columns.corrections import version_in_text
from recipe_core.hardware.cluster import device_profile, short_title
from recipe_core.request.metrics import column_metric
from recipe_core.views.columns import Column, known_columns, terminal
from recipe_core.views.size_view import engine_title

Row = TypeVar("Row")
Checkpoint = tuple[StoredCompression, ComparedCompression]
# Figures of runs, in the order in which they are shown.
FIGURES = ("tpot_s", "ttft_s", "request_latency_s", "output_tokens_per_s", "step_s")
SCALES = {"steps": "Decode steps", "prompts": "Prompts", "training": "Training steps"}
STATES = {"accepted": "counts", "held": "held back", "expired": "expired"}
IN_BAND_TEXTS = {True: "yes", False: "no", None: None}
# Rows of a table in a terminal; a calibration may hold a thousand runs.
MAX_ROWS = 40
# Runs without a prediction that are named.
MAX_LEFT_OUT = 8


def shipped_device_title(name: str) -> str:
    """The short title of a device by its name; the name of one that is not shipped."""
    try:
        return short_title(device_profile(name))
    except RecipeError:
        return name


def with_titles(compared: RunsCompared) -> RunsCompared:
    """The same runs with titles of devices and engines in place of their names."""
    figures = [
        replace(
            figure,
            device=shipped_device_title(figure.device),
            engine=engine_title(figure.engine),
        )
        for figure in compared.figures
    ]
    return replace(compared, figures=tuple(figures))


def measured_title(figure: str) -> str:
    return column_metric(figure).title


def _engine_version(row: ComparedFigure) -> str:
    # some tables repeat the engine's name in its version
    if row.version.casefold().startswith(row.engine.casefold()):
        return row.version
    return f"{row.engine} {row.version or '(as estimated)'}"


# By what ratios can be grouped.
GROUPS: dict[str, Callable[[ComparedFigure], str]] = {
    "Engine version": _engine_version,
    "Model": lambda row: row.model,
    "Device": lambda row: row.device,
    "Load": lambda row: row.mode,
}


# --- a calibration in a terminal -----------------------------------------------------------------


def calibration_text(knowledge: Knowledge, *, every_run: bool = False) -> str:
    """The changes and the state of a calibration; ``every_run``: all of its runs too."""
    overlay = knowledge.overlay
    lines = list(_change_lines(knowledge))
    if every_run:
        lines += _entry_tables(knowledge, overlay.entries, overlay.compressions)
    lines.append(_state_line(overlay))
    if knowledge.errors:
        lines.append("median error of the runs that count, each estimated without itself:")
        lines.append(terminal(knowledge.errors, ERRORS))
    if knowledge.numbers:
        lines.append("learned:")
        lines += _table_lines(rank_numbers(knowledge.numbers), NUMBERS)
    if overlay.path != default_path() and not knowledge.dry:
        lines.append(f"used where {VARIABLE}={overlay.path}")
    return "\n".join(lines)


def _change_lines(knowledge: Knowledge) -> Iterator[str]:
    if added := knowledge.added:
        runs, checkpoints = len(added.entries), len(added.compressions)
        counts = [_plural(runs, "run")] if runs or not checkpoints else []
        counts += [_plural(checkpoints, "measured checkpoint")] if checkpoints else []
        verb = "would add" if knowledge.dry else "added"
        repeated = f"; {len(added.repeated_ids):,} were there already" if added.repeated_ids else ""
        yield f"{verb} {' and '.join(counts)}{repeated}"
        yield from _entry_tables(knowledge, added.entries, added.compressions)
    if removed := knowledge.removed:
        names = ", ".join(run.name for run in removed[:5])
        more = f" and {len(removed) - 5:,} more" if len(removed) > 5 else ""
        yield f"took back {len(removed):,}: {names}{more}"


def _entry_tables(
    knowledge: Knowledge, runs: Sequence[StoredRun], checkpoints: Sequence[StoredCompression]
) -> Iterator[str]:
    if runs:
        newest = list(reversed(runs))
        yield from _table_lines(newest, known_columns(newest, run_columns(sources=False)))
    if checkpoints:
        newest_made = list(reversed(knowledge.compared(checkpoints)))
        columns = known_columns(newest_made, checkpoint_columns(sources=False))
        yield from _table_lines(newest_made, columns)


def _table_lines(rows: Sequence[Row], columns: Sequence[Column[Row]]) -> Iterator[str]:
    yield terminal(rows[:MAX_ROWS], columns)
    if len(rows) > MAX_ROWS:
        yield f"  and {len(rows) - MAX_ROWS:,} more (--json lists all)"


def _state_line(overlay: Overlay) -> str:
    counts = overlay.stored
    text = f"{overlay.path}: {_plural(counts.used, 'run')} count{'s' * (counts.used == 1)}"
    text += f", {counts.held:,} are held" if counts.held else ""
    text += f", {counts.expired:,} have expired" if counts.expired else ""
    if total := len(overlay.compressions):
        counting = len(overlay.compressed)
        plural = "s" * (counting == 1)
        text += f"; {_plural(counting, 'measured checkpoint')} count{plural}"
        text += f", {total - counting:,} expired" if total > counting else ""
    return text


def _plural(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'s' * (number != 1)}"


# --- runs beside their predictions ---------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FigureErrors:
    """Errors of the predictions of one figure over its runs, and shares within the 80 % bands.

    ``before``: by the formulas; ``after``: with what the other runs teach.
    """

    figure: str
    runs: int
    before: float
    after: float
    in_band_before: float
    in_band_after: float


def measured_figures(compared: RunsCompared) -> list[str]:
    measured = {row.figure for row in compared.figures}
    return [figure for figure in FIGURES if figure in measured]


def rows_of_figure(compared: RunsCompared, figure: str) -> list[ComparedFigure]:
    return [row for row in compared.figures if row.figure == figure]


def figure_errors(compared: RunsCompared) -> list[FigureErrors]:
    errors = []
    for figure in measured_figures(compared):
        rows = rows_of_figure(compared, figure)
        before = [row.formulas.holds(row.measured) for row in rows]
        after = [row.corrected.holds(row.measured) for row in rows]
        errors.append(
            FigureErrors(
                figure,
                len(rows),
                median(row.error for row in rows),
                median(row.corrected_error for row in rows),
                sum(before) / len(rows),
                sum(after) / len(rows),
            )
        )
    return errors


def calibration_verdict(overlay: Overlay, compared: RunsCompared) -> str:
    """The number of runs that count, and the errors before and after."""
    counting = sum(entry.counts for entry in overlay.entries)
    text = f"{counting} of {_plural(len(overlay.entries), 'run')} count"
    changes = [
        f"{column_metric(errors.figure).label} "
        f"{share_text(errors.before)} → {share_text(errors.after)}"
        for errors in figure_errors(compared)
    ]
    return f"{text}; median error {', '.join(changes)}." if changes else f"{text}."


def run_label(row: ComparedFigure) -> str:
    """A run in one line."""
    show = column_metric(row.figure).show
    measured, predicted = show(row.measured), show(row.formulas.value)
    return (
        f"{row.run}: {row.model} on {row.device}, {row.engine}: "
        f"{measured} measured, {predicted} by the formulas"
    )


def rank_numbers(numbers: Sequence[LearnedNumber]) -> list[LearnedNumber]:
    """Learned numbers, the most credible first."""
    return sorted(numbers, key=lambda number: -number.weight)


UPLOADED: tuple[Column[ColumnRead], ...] = (
    Column("Column", "column", align="left"),
    Column("From", "origin", align="left"),
    Column("Values", "values", align="left"),
)


def upload_verdict(preview: UploadPreview) -> str:
    """The number of runs of a preview that would count, and their effect on the answer."""
    total = len(preview.entries) + preview.checkpoints
    text = f"{preview.counting} of {_plural(total, 'new run')} would count"
    if preview.repeated:
        text += f"; {preview.repeated:,} are kept already"
    if preview.effect:
        return f"{text}. {preview.effect.text}."
    if preview.after:
        return f"{text}. The answer stays as it is: {preview.after}."
    return f"{text}."


def _scope_text(number: LearnedNumber) -> str:
    """``version: H100 SXM, vLLM 0.32.0``."""
    device, *rest = number.of
    if rest:
        name, space, version = rest[0].partition(" ")
        rest[0] = f"{engine_title(name)}{space}{version}"
    return f"{number.scope}: {', '.join([shipped_device_title(device), *rest])}"


# --- columns -------------------------------------------------------------------------------------

ERRORS: tuple[Column[FigureErrors | LeftOneOut], ...] = (
    Column("Figure", lambda errors: measured_title(errors.figure), align="left"),
    Column("Runs", "runs", "{:,.0f}".format),
    Column("Median error", "before", utilisation, help="Of the formulas"),
    Column("With the other runs", "after", utilisation, help="Each run predicted without itself"),
)
IN_BAND: tuple[Column[FigureErrors], ...] = (
    Column(
        "In band",
        "in_band_before",
        utilisation,
        help="Of the formulas alone: 80 % are expected",
    ),
    Column("In band, with the others", "in_band_after", utilisation, help="80 % are expected"),
)
NUMBERS: tuple[Column[LearnedNumber], ...] = (
    Column("Time of", lambda number: SCALES[number.scale], align="left"),
    Column("Scope", lambda number: _scope_text(number), align="left"),
    Column("×", "factor", "{:.3g}".format, help="On the times of the formulas; factors multiply"),
    Column("80 %", lambda number: f"{number.low:.3g} to {number.high:.3g}"),
    Column("Credibility", "weight", share_text, help="How far the runs settle the factor"),
    Column("Runs", lambda number: len(number.runs), "{:,.0f}".format),
)


def run_columns(*, sources: bool, ids: bool = True) -> list[Column[StoredRun]]:
    """Columns of the runs of a calibration; ``sources``: with paths of files, ``ids``: digests."""

    def state(entry: StoredRun) -> str:
        text = STATES[entry.gate.state]
        # an expired run says when in a column of its own
        return f"{text}: {entry.gate.reason}" if entry.gate.state == "held" else text

    columns: list[Column[StoredRun]] = [
        Column("State", state, align="left"),
        *([Column[StoredRun]("Run", "id", align="left")] if ids else []),
        Column("Name", run_name, align="left"),
        Column("Device", lambda entry: shipped_device_title(entry.device), align="left"),
        Column(
            "Engine",
            lambda entry: f"{engine_title(entry.engine)} {version_in_text(entry.ran)}".strip(),
            align="left",
        ),
        *map(_measured_column, FIGURES),
        Column("Measured on", "date"),
        Column("Counts until", "expires", help="Drivers, images and clocks move on"),
    ]
    if sources:
        columns.append(Column("From", "source", align="left"))
    return columns


def _measured_column(figure: str) -> Column[StoredRun]:
    metric = column_metric(figure)
    return Column(metric.title, lambda entry: getattr(entry, figure), metric.show)


def checkpoint_columns(*, sources: bool) -> list[Column[Checkpoint]]:
    """Columns of measured checkpoints, each beside what was expected of it."""
    columns: list[Column[Checkpoint]] = [
        Column("State", lambda row: "counts" if row[0].counts else "expired", align="left"),
        Column("Base", lambda row: row[0].model, align="left"),
        Column("Technique", lambda row: row[0].technique, align="left"),
        Column("Method", lambda row: row[0].method or None, align="left"),
        Column(
            "Perplexity kept",
            lambda row: row[0].retained,
            lambda share: share_text(share, 2),
            help="Of the base over that of the result",
        ),
        Column(
            "Expected (80 % band)",
            lambda row: _expected_band(row[1].perplexity),
            help="Of perplexity, by published figures alone",
        ),
        Column("In band", lambda row: IN_BAND_TEXTS[row[1].in_band]),
        Column(
            "Same answers",
            lambda row: row[0].agreement,
            utilisation,
            help="Equal tokens of greedy answers",
        ),
        Column(
            "Accuracy expected",
            lambda row: _expected_share(row[1].tasks),
            utilisation,
            help="Mean over tasks, by published figures alone",
        ),
        Column(
            "With it",
            lambda row: _expected_share(row[1].tasks_now),
            utilisation,
            help="Retained perplexity is taken as a floor of accuracy",
        ),
        Column(
            "Tokens",
            lambda row: row[0].tokens,
            "{:,.0f}".format,
            help="Of the text that was read",
        ),
        Column("Measured on", lambda row: row[0].date),
        Column("Counts until", lambda row: row[0].expires),
    ]
    if sources:
        columns.append(Column("From", lambda row: row[0].source, align="left"))
    return columns


def _expected_share(retained: Retained) -> float | None:
    return retained.value if retained.is_known else None


def _expected_band(retained: Retained) -> str | None:
    if not retained.is_known:
        return None
    value, *ends = (share_text(share, 1) for share in (retained.value, retained.low, retained.high))
    return f"{value} ({' – '.join(ends)})"
