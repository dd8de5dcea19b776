"""Expected accuracy of a compressed model, with the published figures nearest to the question."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from recipe_core.compression.published import LIKELIHOODS, Figure, figures, keys
from recipe_core.compression.retained import Retained
from recipe_core.compression.technique import technique as technique_named


def retained(
    model: str,
    technique: str,
    *,
    method: str = "",
    benchmark: str = "",
    parameters_b: float | None = None,
    nearest: int = 5,
) -> Retained:
    """Expected share of the base's accuracy; stands on medians of the technique for now."""
    technique_named(technique)
    likelihood = benchmark.endswith("_ppl") or benchmark in LIKELIHOODS
    rows = [row for row in figures() if row.technique == technique]
    rows = [row for row in rows if _likelihood(row) == likelihood] or rows
    if not rows:
        return Retained(math.nan, math.nan, math.nan, "No figures are published.", known=False)
    low, value, high = np.quantile([row.retained for row in rows], [0.1, 0.5, 0.9])
    shown = sorted(rows, key=lambda row: (row.model != model, row.benchmark != benchmark))
    return Retained(
        float(value),
        float(low),
        float(high),
        f"median of {len(rows)} published figures",
        tuple(row.as_published() for row in shown[:nearest]),
    )


def _likelihood(row: Figure) -> bool:
    return keys().benchmarks[row.benchmark].kind in LIKELIHOODS


def combined(parts: Sequence[Retained]) -> Retained:
    """Two techniques together: what each retains is multiplied."""
    if not all(part.known for part in parts):
        return next(part for part in parts if not part.known)
    value = math.prod(part.value for part in parts)
    below = math.hypot(*(math.log(part.value / part.low) for part in parts))
    above = math.hypot(*(math.log(part.high / part.value) for part in parts))
    basis = " × ".join(part.basis for part in parts)
    shown = tuple(figure for part in parts for figure in part.nearest)
    return Retained(value, value * math.exp(-below), value * math.exp(above), basis, shown)
