"""Pareto fronts of a plan."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

import numpy as np

from recipe_core.base.arrays import Bool, Float
from recipe_core.base.errors import InputError
from recipe_core.request.metrics import is_more_better

if TYPE_CHECKING:
    from recipe_core.plans.table import PlanTable


def front_of_columns(table: PlanTable, *columns: str, among: Bool | None = None) -> Bool:
    """Rows on the Pareto front of two or three columns, among those that hold their load.

    ``columns``: by default the tradeoff that plans of the kind state. ``among``: and among these
    rows only.

    Raises:
        InputError: for a column that there is not, or another number of them.
    """
    columns = columns or table.spec.frontier
    comparable = _comparable_columns(table)
    if not set(columns) <= set(comparable) or len(columns) not in (2, 3):
        raise InputError(
            f"a Pareto front is of two or three columns, not {', '.join(columns)}.",
            hint=f"Columns: {', '.join(comparable)}.",
        )
    signed = [
        (-1 if is_more_better(name) else 1) * np.asarray(table.columns[name], dtype=float)
        for name in columns
    ]
    finite: Bool = np.all(np.isfinite(signed), axis=0)
    rows = table.holds & finite if among is None else table.holds & finite & among
    return pareto_front(*signed, among=rows)


def _comparable_columns(table: PlanTable) -> tuple[str, ...]:
    quantities = [*table.blocks[0].quantities] if table.blocks else []
    derived = [measure.column for measure in table.measures.values()]
    return tuple(dict.fromkeys([*quantities, *derived, "gpus", "load"]))


def front_of_measures(table: PlanTable, *names: str, among: Bool | None = None) -> Bool:
    """Rows on the Pareto front of two or three measures; as ``front_of_columns``."""
    return front_of_columns(table, *(table.measures[name].column for name in names), among=among)


def front_with_accuracy(table: PlanTable) -> Bool | None:
    """Rows that no other beats in cost, time per output token or accuracy without losing one.

    Of devices without a price output per device stands for cost. None where rows do not differ in
    accuracy.
    """
    accuracy = table.columns["accuracy"][table.holds] if table.blocks else np.zeros(0)
    if len(np.unique(accuracy[np.isfinite(accuracy)])) < 2:
        return None
    cost = "usd_per_million_output_tokens"
    if not all(block.setting.cluster.usd_per_device_hour for block in table.blocks):
        cost = table.spec.unpriced[cost]
    return front_of_columns(table, cost, "tpot_s", "accuracy")


def pareto_front(*columns: Float, among: Bool) -> Bool:
    """Rows of ``among`` on the Pareto front of two or three quantities, of which less is better.

    No other row beats them in one without losing in another. Rows are walked from the best in the
    first quantity on. With two quantities one is on the front when it is better in the second than
    all before; with three when it is not beaten in both others by one before (kept as a staircase).
    Of equal rows the first counts.
    """
    on = np.zeros(len(among), dtype=bool)
    rows = np.flatnonzero(among)
    order = rows[np.lexsort(tuple(column[rows] for column in reversed(columns)))]
    if not len(order):
        return on
    if len(columns) == 2:
        second = columns[1][order]
        on[order[second < np.r_[np.inf, np.minimum.accumulate(second)[:-1]]]] = True
        return on
    stairs: list[tuple[float, float]] = []  # second rising, third falling
    for row, second, third in zip(order, columns[1][order], columns[2][order], strict=True):
        k = bisect_right(stairs, (second, np.inf))
        if k and stairs[k - 1][1] <= third:
            continue
        on[row] = True
        end = k
        while end < len(stairs) and stairs[end][1] >= third:
            end += 1
        start = k - 1 if k and stairs[k - 1][0] == second else k
        stairs[start:end] = [(float(second), float(third))]
    return on
