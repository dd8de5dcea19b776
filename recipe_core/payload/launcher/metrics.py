"""Metrics of a measurement from its samples, and their comparison with the prediction."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean
from typing import Any

from .client import Sample

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
