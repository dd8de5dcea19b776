"""Metrics of a measurement and steps of a training run, compared with the prediction."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

from .client import Sample
from .files import read_file_end, read_object
from .plan import LaunchPlan

# The figures that expected.json may predict, in the order they are shown.
FIGURES = (
    "ttft_s",
    "ttft_p50_s",
    "ttft_p95_s",
    "tpot_s",
    "tpot_p95_s",
    "request_latency_s",
    "output_tokens_per_s",
)


def quantile(values: Sequence[float], share: float) -> float | None:
    """A quantile, interpolated linearly between the two nearest ranks; None without values."""
    if not values:
        return None
    ordered = sorted(values)
    position = share * (len(ordered) - 1)
    low, high = math.floor(position), math.ceil(position)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def request_figures(samples: Sequence[Sample]) -> dict[str, float | None]:
    """Means and percentiles; throughput is from the first request to the last token."""
    first_tokens = [sample.ttft_s for sample in samples]
    per_token = [sample.tpot_s for sample in samples if sample.tpot_s is not None]
    span = max(sample.last for sample in samples) - min(sample.started for sample in samples)
    return {
        "ttft_s": fmean(first_tokens),
        "ttft_p50_s": quantile(first_tokens, 0.50),
        "ttft_p95_s": quantile(first_tokens, 0.95),
        "tpot_s": fmean(per_token) if per_token else None,
        "tpot_p95_s": quantile(per_token, 0.95),
        "request_latency_s": fmean(sample.latency_s for sample in samples),
        "output_tokens_per_s": sum(sample.output_tokens for sample in samples) / span
        if span > 0
        else None,
    }


def predictions(expected: dict[str, Any]) -> dict[str, float | None]:
    """The same metrics from expected.json; None where it has no number."""
    serving = expected.get("serving")
    serving = serving if isinstance(serving, dict) else {}
    return {key: finite_number(serving.get(key)) for key in FIGURES}


def expected_bands(expected: dict[str, Any]) -> dict[str, tuple[float, float]]:
    """Low and high ends from expected.json, where both are numbers."""
    value = expected.get("bands")
    out = {}
    for key, band in (value if isinstance(value, dict) else {}).items():
        ends = [finite_number(end) for end in band] if isinstance(band, list) else []
        if len(ends) == 2 and ends[0] is not None and ends[1] is not None:
            out[str(key)] = (ends[0], ends[1])
    return out


def figure_ratios(
    measured: dict[str, float | None], predicted: dict[str, float | None]
) -> dict[str, float | None]:
    """Measured over predicted: above 1 is more than predicted."""
    return {key: ratio_of(measured.get(key), predicted.get(key)) for key in FIGURES}


def ratio_of(measured: float | None, predicted: float | None) -> float | None:
    """Measured over predicted; None where one is missing."""
    return round(measured / predicted, 4) if measured is not None and predicted else None


def finite_number(value: object) -> float | None:
    """A finite number; anything else, booleans too, counts as not given."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    return float(value)


# Metrics that expected.json predicts of a step, in the order of the table.
STEP_FIGURES = ("step_s", "tokens_per_s", "tokens_per_s_per_gpu", "mfu", "peak_memory_bytes")
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
    for name in STEP_FIGURES:
        numbers = [value for step in steps if (value := step.get(name)) is not None]
        combine = max if name == "peak_memory_bytes" else median
        out[name] = combine(numbers) if numbers else None
    return out


def comparison(plan: LaunchPlan, steps: list[Step]) -> dict[str, Any]:
    """Measured, predicted, bands and their ratios."""
    expected = read_object(plan.folder / "expected.json")
    training = expected.get("training")
    training = training if isinstance(training, dict) else {}
    predicted = {name: finite_number(training.get(name)) for name in STEP_FIGURES}
    measured = step_figures(steps)
    return {
        "metrics": measured,
        "predicted": predicted,
        "bands": {k: list(v) for k, v in expected_bands(expected).items()},
        "ratio": {name: ratio_of(measured[name], predicted[name]) for name in STEP_FIGURES},
    }
