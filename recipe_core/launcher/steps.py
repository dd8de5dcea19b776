"""A training run's own record: the steps in ``run/metrics.csv``, what they say, and how that compares with what was predicted."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from .files import read_object
from .metrics import bands, number
from .plan import LaunchPlan

FIGURES = ("step_s", "tokens_per_s", "tokens_per_s_per_gpu", "mfu", "peak_memory_bytes")
"""What expected.json predicts of a step, in the order it is shown."""
WARM_UP = 2
"""First steps after a start that are not measured: caches and kernels are made in them."""


@dataclass(frozen=True, slots=True)
class Step:
    """One row; a figure that is not there is None."""

    number: int
    values: dict[str, float | None]

    def get(self, name: str) -> float | None:
        """One of its figures."""
        return self.values.get(name)


def metrics_file(plan: LaunchPlan) -> Path | None:
    """Where the run writes its steps; None for a framework that writes none."""
    return plan.run / "metrics.csv" if (plan.root / "train.json").is_file() else None


def read_steps(path: Path | None) -> list[Step]:
    """Complete rows so far."""
    if path is None or not path.is_file():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if None not in row and None not in row.values()]
    return [
        Step(int(row["step"]), {name: _value(text) for name, text in row.items()})
        for row in rows
        if row["step"].isdigit()
    ]


def _value(text: str) -> float | None:
    try:
        return number(float(text))
    except ValueError:
        return None


def planned_steps(plan: LaunchPlan) -> int | None:
    """How many steps the run has, by expected.json."""
    found = read_object(plan.root / "expected.json").get("run")
    steps = number(found.get("steps")) if isinstance(found, dict) else None
    return int(steps) if steps else None


def figures(steps: list[Step]) -> dict[str, float | None]:
    """Medians over steps; of memory the most."""
    out: dict[str, float | None] = {}
    for name in FIGURES:
        known = [value for step in steps if (value := step.get(name)) is not None]
        out[name] = (
            None if not known else max(known) if name == "peak_memory_bytes" else median(known)
        )
    return out


def comparison(plan: LaunchPlan, steps: list[Step]) -> dict[str, Any]:
    """Measured, predicted, bands and their ratios."""
    expected = read_object(plan.root / "expected.json")
    training = expected.get("training")
    predicted = {
        name: number(training.get(name)) if isinstance(training, dict) else None for name in FIGURES
    }
    measured = figures(steps)
    ratio = {
        name: round(m / p, 4)
        if (m := measured[name]) is not None and (p := predicted[name])
        else None
        for name in FIGURES
    }
    return {
        "metrics": measured,
        "predicted": predicted,
        "bands": {k: list(v) for k, v in bands(expected).items()},
        "ratio": ratio,
    }
