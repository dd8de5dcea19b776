"""The published runs beside their predictions, computed when a version is built.

To predict them takes seconds. ``published.json`` beside this module holds the predictions, one
figure a line; ``scripts/documents.py published_evidence`` writes it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, replace
from functools import cache
from pathlib import Path, PurePath
from typing import Any

from recipe_core.base.documents import read_shipped
from recipe_core.calibration.records import StoredRun
from recipe_core.calibration.residuals import (
    ComparedFigure,
    Prediction,
    RunsCompared,
    compare_runs,
    measured_of_rows,
)
from recipe_core.estimates.measured.runs import SOURCES, Run, published_runs
from recipe_core.request.serving_workload import LOADS
from recipe_core.request.split_key import load_field_text, split_name

FILE = Path(__file__).with_name("published.json")
# Significant digits of what is kept: bands are wider than the fifth.
DIGITS = 5
PREDICTIONS = ("formulas", "corrected")


@cache
def published_evidence() -> RunsCompared:
    """Return the published runs beside their predictions, as they were when this was built."""
    values = json.loads(FILE.read_text(encoding="utf-8"))
    return RunsCompared(tuple(map(_read_figure, values["figures"])), values["left_out"])


def published_evidence_text() -> str:
    """The content of ``published.json``, computed anew: it takes some ten seconds."""
    runs = [run for run in published_runs() if not run.exclude]
    sources = read_shipped(SOURCES)
    names = {run.id: _published_name(run, sources[run.source]["title"]) for run in runs}
    compared = rename_runs(compare_runs(measured_of_rows(runs)), names)
    lines = [
        json.dumps(_figure_values(figure), ensure_ascii=False, separators=(",", ":"))
        for figure in compared.figures
    ]
    left_out = json.dumps(dict(compared.left_out), ensure_ascii=False)
    rows = ",\n".join(lines)
    return f'{{"schema_version":1,"left_out":{left_out},"figures":[\n{rows}\n]}}\n'


def _published_name(run: Run, title: str) -> str:
    """``InferenceX, TP 8, 64 in flight, 1,024 + 1,024 tokens``."""
    split = split_name(run.request()["candidate"])
    load = load_field_text(LOADS[run.mode], run.load)
    lengths = f"{run.input_tokens:,} + {run.output_tokens:,} tokens"
    return ", ".join((title.partition(",")[0].partition(" (")[0], split, load, lengths))


def rename_runs(compared: RunsCompared, names: Mapping[str, str]) -> RunsCompared:
    """The same runs by names for people; a name that several have gets a number."""
    new_names: dict[str, str] = {}
    counts: dict[str, int] = {}
    for run in dict.fromkeys([figure.run for figure in compared.figures] + [*compared.left_out]):
        name = names.get(run, run)
        counts[name] = counts.get(name, 0) + 1
        new_names[run] = name if counts[name] == 1 else f"{name} ({counts[name]})"
    return RunsCompared(
        tuple(replace(figure, run=new_names[figure.run]) for figure in compared.figures),
        {new_names[run]: reason for run, reason in compared.left_out.items()},
    )


def run_name(entry: StoredRun) -> str:
    """The name of a run as people gave it: in its table, or that of its bundle's folder."""
    path = PurePath(entry.name)
    measured_by_bundle = path.name == "measurement.json" and len(path.parts) > 2
    return path.parent.parent.name if measured_by_bundle else entry.name


def _rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")


def _figure_values(figure: ComparedFigure) -> dict[str, Any]:
    values = {field.name: getattr(figure, field.name) for field in fields(figure)}
    for name in PREDICTIONS:
        band = values[name]
        values[name] = [*map(_rounded, (band.value, band.low, band.high)), band.basis]
    parts = {name: _rounded(seconds) for name, seconds in figure.parts.items()}
    return {**values, "measured": _rounded(figure.measured), "parts": parts}


def _read_figure(values: Mapping[str, Any]) -> ComparedFigure:
    predictions = {name: Prediction(*values[name]) for name in PREDICTIONS}
    return ComparedFigure(**{**values, **predictions})
