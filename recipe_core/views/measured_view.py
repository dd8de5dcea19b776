"""Runs of one's own against their predictions, for a page: amounts, sentences and tables."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median
from typing import Any

import pandas as pd

from recipe_core.base.units import significant
from recipe_core.calibration.comparison import ComparedFigure, RunsCompared
from recipe_core.calibration.compressions import ComparedCompression
from recipe_core.calibration.kept_compressions import KeptCompression
from recipe_core.calibration.learned import LearnedNumber
from recipe_core.calibration.store import Entry, Overlay
from recipe_core.estimates.columns.corrections import version_of
from recipe_core.views.calibration_text import SCALES, band, share

UNITS = {
    "tpot_s": ("ms", 1e3),
    "ttft_s": ("ms", 1e3),
    "request_latency_s": ("s", 1.0),
    "output_tokens_per_s": ("tokens/s", 1.0),
    "step_s": ("s", 1.0),
}
"""The unit in which a figure is shown, and the factor to it from SI units."""

TITLES = {
    "tpot_s": "Time per output token",
    "ttft_s": "Time to first token",
    "request_latency_s": "Request latency",
    "output_tokens_per_s": "Throughput",
    "step_s": "Step time",
}
"""Figures of runs as a person calls them, in the order in which they are shown."""


def _engine_version(row: ComparedFigure) -> str:
    """An engine and the version that ran, of which some tables say the engine's name again."""
    if row.version.startswith(row.engine):
        return row.version
    return f"{row.engine} {row.version or '(as estimated)'}"


GROUPS: dict[str, Callable[[ComparedFigure], str]] = {
    "Engine version": _engine_version,
    "Model": lambda row: row.model,
    "Device": lambda row: row.device,
    "Load": lambda row: row.mode,
}
"""By what ratios can be grouped."""

STATES = {
    "accepted": "counts",
    "held": "held back",
    "expired": "expired",
}


LEFT_OUT_SHOWN = 8


def run_label(row: ComparedFigure) -> str:
    """A run in one line."""
    what = f"{row.model} on {row.device}, {row.engine}"
    measured, predicted = (
        amount(row.figure, value) for value in (row.measured, row.formulas.value)
    )
    return f"{row.run}: {what}: {measured} measured, {predicted} by the formulas"


def amount(figure: str, value: float) -> str:
    """A figure in its unit."""
    unit, factor = UNITS[figure]
    return f"{significant(value * factor)} {unit}"


def figures_of(compared: RunsCompared) -> list[str]:
    """The figures that any run measured, in the order of ``TITLES``."""
    measured = {row.figure for row in compared.figures}
    return [figure for figure in TITLES if figure in measured]


def errors_frame(compared: RunsCompared) -> pd.DataFrame:
    """Errors by figure, by the formulas and with what the other runs teach."""
    return pd.DataFrame(
        [
            {
                "figure": TITLES[figure],
                "runs": len(rows),
                "error_formulas": median(row.error for row in rows) * 100,
                "error_corrected": median(row.corrected_error for row in rows) * 100,
                "in_band_formulas": _share(row.formulas.holds(row.measured) for row in rows),
                "in_band_corrected": _share(row.corrected.holds(row.measured) for row in rows),
            }
            for figure in figures_of(compared)
            if (rows := rows_of(compared, figure))
        ]
    )


def _share(held: Iterable[bool]) -> float:
    values = list(held)
    return 100 * sum(values) / len(values) if values else math.nan


def rows_of(compared: RunsCompared, figure: str) -> list[ComparedFigure]:
    """The rows of one figure."""
    return [row for row in compared.figures if row.figure == figure]


def runs_frame(entries: Sequence[Entry], *, sources: bool) -> pd.DataFrame:
    """Every stored run with whether it counts, newest first; ``sources``: with paths of files."""
    frame = pd.DataFrame([_run_row(entry) for entry in reversed(entries)])
    unmeasured = [name for name in ("measured", *TITLES) if not frame[name].astype(bool).any()]
    frame = frame.drop(columns=unmeasured)
    return frame if sources else frame.drop(columns="source")


def _run_row(entry: Entry) -> Mapping[str, Any]:
    run = entry.measured
    state = STATES[entry.gate.state]
    return {
        "state": f"{state}: {entry.gate.reason}" if entry.gate.reason else state,
        "run": entry.id,
        "device": entry.device,
        "engine": f"{entry.engine} {version_of(entry.version)}".strip(),
        **{
            name: amount(name, value) if (value := getattr(run, name, None)) else ""
            for name in TITLES
        },
        "measured": run.date,
        "expires": entry.expires,
        "source": entry.source,
    }


def checkpoints_frame(
    entries: Iterable[tuple[KeptCompression, ComparedCompression]], *, sources: bool
) -> pd.DataFrame:
    """Measured checkpoints beside what was expected, newest first; shares in percent."""
    rows = [_checkpoint_row(entry, beside) for entry, beside in entries]
    frame = pd.DataFrame(rows[::-1])
    return frame if sources else frame.drop(columns="source")


def _checkpoint_row(entry: KeptCompression, beside: ComparedCompression) -> Mapping[str, Any]:
    run = entry.measured
    held = {True: "yes", False: "no", None: ""}[beside.in_band]
    return {
        "state": "counts" if entry.counts else "expired",
        "model": run.model,
        "technique": run.technique,
        "method": run.method,
        "measured": run.retained * 100,
        "expected": band(beside.perplexity),
        "held": held,
        "agreement": None if run.agreement is None else run.agreement * 100,
        "before": share(beside.tasks),
        "after": share(beside.tasks_now),
        "tokens": run.tokens,
        "date": run.date,
        "expires": entry.expires,
        "source": entry.source,
    }


def numbers_frame(numbers: Sequence[LearnedNumber]) -> pd.DataFrame:
    """What was learned, the most credible first."""
    return pd.DataFrame(
        [
            {
                "time": SCALES[one.scale][0].upper() + SCALES[one.scale][1:],
                "scope": f"{one.scope}: {', '.join(one.of)}",
                "factor": one.factor,
                "band": f"{one.low:.3g} to {one.high:.3g}",
                "weight": one.weight * 100,
                "runs": len(one.runs),
            }
            for one in sorted(numbers, key=lambda one: -one.weight)
        ]
    )


def verdict(overlay: Overlay, compared: RunsCompared) -> str:
    """How many runs count and what they change, as one sentence."""
    total, counting = len(overlay.entries), sum(entry.counts for entry in overlay.entries)
    noun = "run" if total == 1 else "runs"
    text = f"{counting} of {total} {noun} count"
    changes = [
        f"{TITLES[figure].lower()} {before:.0%} → {after:.0%}"
        for figure in figures_of(compared)
        if (rows := rows_of(compared, figure))
        for before in [median(row.error for row in rows)]
        for after in [median(row.corrected_error for row in rows)]
    ]
    return f"{text}; median error {', '.join(changes)}." if changes else f"{text}."
