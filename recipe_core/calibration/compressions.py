"""Measured checkpoints beside what published figures let expect of them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from recipe_core.accuracy.accuracy import estimate_retained
from recipe_core.accuracy.checkpoints import MeasuredCompression
from recipe_core.accuracy.own import PERPLEXITY, with_own_figure
from recipe_core.accuracy.retained import Retained
from recipe_core.base.errors import RecipeError


@dataclass(frozen=True, slots=True)
class ComparedCompression:
    """A measured checkpoint beside its predictions, all as shares of the base.

    perplexity: what was predicted of the figure that was measured. tasks: what is expected of the
    mean over accuracy tasks by published figures alone; tasks_now: with the measurement.
    """

    run: MeasuredCompression
    perplexity: Retained
    tasks: Retained
    tasks_now: Retained

    @property
    def in_band(self) -> bool | None:
        """Whether the measured figure lies in the predicted 80 % band; None where there is none."""
        if not self.perplexity.known:
            return None
        return self.perplexity.low <= self.run.retained <= self.perplexity.high

    def to_json(self) -> dict[str, Any]:
        """Plain values; null where nothing is expected."""
        return {
            "perplexity": _retained_values(self.perplexity),
            "in_band": self.in_band,
            "accuracy": _retained_values(self.tasks),
            "accuracy_with_it": _retained_values(self.tasks_now),
        }


def _retained_values(retention: Retained) -> dict[str, float] | None:
    return dict(retention.to_json()["retained"]) if retention.known else None


def compare_compressions(runs: Iterable[MeasuredCompression]) -> list[ComparedCompression]:
    """Each measured checkpoint beside what was expected of it, in order."""
    return [_compare_compression(run) for run in runs]


def _compare_compression(run: MeasuredCompression) -> ComparedCompression:
    tasks = _published_expectation(run, "")
    moved = with_own_figure(tasks, [run], run.model, run.technique)
    return ComparedCompression(run, _published_expectation(run, PERPLEXITY), tasks, moved)


def _published_expectation(run: MeasuredCompression, benchmark: str) -> Retained:
    """By published figures; unknown for a technique that this version does not know."""
    try:
        return estimate_retained(
            run.model, run.technique, method=run.method, benchmark=benchmark, nearest=1
        )
    except RecipeError as error:
        return Retained(math.nan, math.nan, math.nan, error.message, known=False)
