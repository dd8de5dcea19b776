"""The steps of a training run in ``run/metrics.csv``, compared with the prediction."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from .files import read_object
from .metrics import expected_bands, finite_number, ratio_of
from .plain import read_file_end
from .plan import LaunchPlan

# Metrics that expected.json predicts of a step, in the order of the table.
FIGURES = ("step_s", "tokens_per_s", "tokens_per_s_per_gpu", "mfu", "peak_memory_bytes")
_MOST_BYTES = 1 << 30
# First steps after a start that are not measured: they build caches and kernels.
WARM_UP = 2


@dataclass(frozen=True, slots=True)
class Step:
    """One row; missing values are None."""

    number: int
    values: dict[str, float | None]

    def get(self, name: str) -> float | None:
        return self.values.get(name)


def metrics_file(plan: LaunchPlan) -> Path | None:
    """The file of the run's steps; None for a framework that writes none."""
    return plan.run / "metrics.csv" if (plan.root / "train.json").is_file() else None


def read_steps(path: Path | None) -> list[Step]:
    """Complete rows so far; lines that a loss of power damaged are left out."""
    text = read_file_end(path, _MOST_BYTES) if path is not None else None
    if text is None:
        return []
    lines = text.decode("utf-8", errors="replace").replace("\0", "").splitlines()
    rows = csv.DictReader(line for line in lines if "\ufffd" not in line)
    return [
        Step(int(row["step"]), {name: _parse_step_value(text) for name, text in row.items()})
        for row in rows
        if None not in row and None not in row.values() and row.get("step", "").isdecimal()
    ]


def _parse_step_value(text: str) -> float | None:
    try:
        return finite_number(float(text))
    except ValueError:
        return None


def planned_steps(plan: LaunchPlan) -> int | None:
    """The number of steps of the run, from expected.json."""
    run = read_object(plan.folder / "expected.json").get("run")
    steps = finite_number(run.get("steps")) if isinstance(run, dict) else None
    return int(steps) if steps else None


def step_figures(steps: list[Step]) -> dict[str, float | None]:
    """Medians over steps; the maximum of memory."""
    out: dict[str, float | None] = {}
    for name in FIGURES:
        numbers = [value for step in steps if (value := step.get(name)) is not None]
        combine = max if name == "peak_memory_bytes" else median
        out[name] = combine(numbers) if numbers else None
    return out


def comparison(plan: LaunchPlan, steps: list[Step]) -> dict[str, Any]:
    """Measured, predicted, bands and their ratios."""
    expected = read_object(plan.folder / "expected.json")
    training = expected.get("training")
    training = training if isinstance(training, dict) else {}
    predicted = {name: finite_number(training.get(name)) for name in FIGURES}
    measured = step_figures(steps)
    return {
        "metrics": measured,
        "predicted": predicted,
        "bands": {k: list(v) for k, v in expected_bands(expected).items()},
        "ratio": {name: ratio_of(measured[name], predicted[name]) for name in FIGURES},
    }
