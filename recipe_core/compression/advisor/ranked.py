"""Rows of advice in order, and which is the best at what."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from recipe_core.compression.advisor.figures import FIGURES, Split
from recipe_core.compression.advisor.judged import Base
from recipe_core.compression.advisor.row import FormatRow, State
from recipe_core.plans.serving_kind import AS_GOOD
from recipe_core.request.metrics import goals_of, is_more_better
from recipe_core.request.objective import Objective

# What stands for a figure where no price is known.
UNPRICED = {"usd_per_million_output_tokens": "output_tokens_per_s_per_gpu"}
# What a technique can be the best at, on the split of the base, with accuracy beside these.
BEST_AT = {
    "memory": "total_bytes",
    "concurrency": "requests_held",
    "ttft": "ttft_s",
    "tpot": "tpot_s",
    "throughput": "output_tokens_per_s",
    "cost": "usd_per_million_output_tokens",
    "energy": "joules_per_token",
}
# Where no least accuracy is asked for, the share at which the band of a technique must start for it
# to stand among the first: what may lose more is a bet, however cheap it is.
SURELY_KEPT = 0.9
PLACES: tuple[State, ...] = (
    "estimated",
    "memory only",
    "already",
    "no split",
    "void",
    "unknown",
    "refused",
)


def rank_formats(
    rows: Sequence[FormatRow], base: Base, objective: Objective
) -> tuple[FormatRow, ...]:
    """The rows, those that run within the limit on accuracy first, each best by the objective.

    A technique whose accuracy is unknown comes after those that keep a limit on it. Without a limit
    those come last that may keep less than `SURELY_KEPT`, unless accuracy is a goal.
    """
    runs = [row for row in rows if row.state == "estimated" and row.runs]
    runs.sort(key=lambda row: (_limit_class(row, objective), _log_score(row, base, objective)))
    numbered = [replace(row, rank=number) for number, row in enumerate(runs, 1)]
    ranked_names = {row.name for row in runs}
    rest = [row for row in rows if row.name not in ranked_names]
    rest.sort(key=lambda row: PLACES.index(row.state))
    return tuple(_mark_best([*numbered, *rest], objective))


def _limit_class(row: FormatRow, objective: Objective) -> int:
    """0 within the limit on accuracy, or what is surely kept, 1 where it is unknown, 2 beyond."""
    within = row.within
    if objective.limits.accuracy_recovery is None:
        if "accuracy" in objective.goals:
            return 0
        within = row.accuracy.low >= SURELY_KEPT if row.accuracy.known else None
    if within is None:
        return 1
    return 0 if within else 2


def _log_score(row: FormatRow, base: Base, objective: Objective) -> float:
    """Logarithm of the weighed goals of its best split; less is better."""
    score = 0.0
    for goal, weight in objective.goals.items():
        if goal == "accuracy":
            score += weight * math.log(_lost(row))
        elif row.best is not None:
            score += weight * _log_figure(row.best, goals_of("closed")[goal][0], base.best)
    return score


def _lost(row: FormatRow) -> float:
    return max(1 - row.accuracy.value, 0.0) + AS_GOOD if row.accuracy.known else 1 + AS_GOOD


def _log_figure(split: Split, name: str, base: Split) -> float:
    if name not in split.values:
        name = UNPRICED.get(name, name)
    value = split.values.get(name)
    if value is None or value <= 0:
        return math.inf
    sign = -1 if is_more_better(FIGURES[name]) else 1
    return sign * math.log(value / base.values.get(name, 1.0))


def _mark_best(rows: list[FormatRow], objective: Objective) -> list[FormatRow]:
    """The rows with what each is the best at among the first group, those within the limit."""
    worst_class = 0 if objective.limits.accuracy_recovery is not None else 1
    able = [
        row
        for row in rows
        if row.same_split is not None
        and row.state == "estimated"
        and _limit_class(row, objective) <= worst_class
    ]
    marks: dict[str, list[str]] = {}
    for goal, name in BEST_AT.items():
        measured = [
            row for row in able if row.same_split is not None and name in row.same_split.values
        ]
        if measured:
            winner = min(measured, key=lambda row: _signed_figure(row, name))
            marks.setdefault(winner.name, []).append(goal)
    sure = [row for row in able if row.accuracy.known]
    if sure:
        winner = max(sure, key=lambda row: (row.accuracy.value, row.accuracy.low))
        marks.setdefault(winner.name, []).append("accuracy")
    return [replace(row, best_at=tuple(marks.get(row.name, ()))) for row in rows]


def _signed_figure(row: FormatRow, name: str) -> float:
    assert row.same_split is not None  # noqa: S101 - the caller looked
    return row.same_split.values[name] * (-1 if is_more_better(FIGURES[name]) else 1)
