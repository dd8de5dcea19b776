"""Imported measurements, measurements beside estimates, and experiments, as text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from recipe_core.base.texts import quote_command, quote_shell
from recipe_core.base.units import share_text
from recipe_core.calibration.importers.rows import ImportedTable
from recipe_core.calibration.trials.search_problem import point_text, trial_figures
from recipe_core.calibration.trials.tune import Tuned
from recipe_core.calibration.trials.verify import Comparison, Report
from recipe_core.calibration.validation.reconcile import EXPLAINED, MATCH, Ends, Reconciled, Row
from recipe_core.calibration.validation.reconcile import FIGURES as RECONCILED
from recipe_core.request.metrics import column_metric
from recipe_core.views.columns import Column, terminal

STATES = ("measured", "given up", "failed", "not started")
# Best trials of a search that are listed.
MAX_TRIALS = 5


def verify_text(report: Report) -> str:
    """A reproducibility report: the comparisons, what was left out, the verdict."""
    recipe, choice = report.recipe, report.choice
    lines = [
        f"{recipe.name}: {recipe.engine.title} {recipe.engine.version}, "
        f"{recipe.device.count} × {recipe.device.title}; "
        f"{choice.prompts} prompts, {choice.tokens} tokens each",
        "",
    ]
    for comparison in report.comparisons:
        lines += _comparison_lines(comparison)
    if report.left_out:
        lines += ["", "not compared:"]
        lines += [f"  {name}: {reason}" for name, reason in report.left_out.items()]
    outside = sum(comparison.verdict == "outside" for comparison in report.comparisons)
    verdicts = {
        "within": "every comparison is within its tolerance",
        "outside": f"{outside} of {len(report.comparisons)} comparisons are outside tolerance",
        "not judged": "nothing could be judged",
    }
    return "\n".join([*lines, "", verdicts[report.verdict]])


def _comparison_lines(comparison: Comparison) -> Iterator[str]:
    alike, apart = comparison.alike, comparison.apart
    numbers = [f"{alike.identical} of {alike.prompts} answers identical"]
    if alike.first_divergence:
        middle, first = (alike.first_divergence[name] for name in ("median", "least"))
        numbers.append(f"others part at {alike.unit[:-1]} {middle:g} (median; first at {first:g})")
    if apart:
        numbers.append(f"log-probabilities differ {apart.mean_abs:.2g} (most {apart.max_abs:.2g})")
        if apart.kl_mean is not None:
            numbers.append(f"divergence {apart.kl_mean:.2g} nats")
    yield f"{comparison.title}: {comparison.verdict} tolerance ({comparison.kind})"
    yield f"  {'; '.join(numbers)}"
    yield from (f"  {reason}" for reason in comparison.broken)


def tune_text(outcome: Tuned, output: Path | None = None) -> str:
    """The best trials of a search, the gain over the recommended point, and the next step."""
    states = Counter(row["state"] for row in outcome.trials)
    counts = ", ".join(f"{states[state]} {state}" for state in STATES if states[state])
    lines = [f"{outcome.base.name}, by {outcome.aim.title}: {counts}; ended by {outcome.ended}"]
    lines += [
        f"  limit {name} was not checked: {reason}"
        for name, reason in outcome.aim.unchecked.items()
    ]
    recommended = {knob.name: knob.values[knob.base] for knob in outcome.space}
    measured = [row for row in outcome.trials if row["state"] == "measured"]
    ranked = sorted(measured, key=lambda row: (not row["keeps_limits"], row["score"]))
    for row in ranked[:MAX_TRIALS]:
        point = point_text(row["values"], recommended)
        lines.append(f"  {trial_figures(row['metrics'])}  {point}")
    if gain := outcome.gain:
        ratios = gain.mean_ratio, gain.low_ratio, gain.high_ratio
        mean, low, high = (share_text(ratio - 1, 1, signed=True) for ratio in ratios)
        lines.append(
            f"measured again in {gain.pairs} pairs: {mean} ({low} to {high} with 90 % confidence; "
            f"the recommended point alone varies by {share_text(gain.noise_share, 1)})"
        )
    lines += outcome.notes
    if outcome.recipe is not None and outcome.best is not None:
        lines.append(f"better: {point_text(outcome.best['values'], recommended)}")
        again = "-o BUNDLE --resume measures both again and writes it"
        lines.append(f"wrote {output}" if output else again)
    return "\n".join(lines)


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
    Column("Verdict", "verdict", align="left"),
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
