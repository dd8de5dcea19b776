"""A plan as tables for a page: splits that fit, refused ones, rows to compare by memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pandas as pd

from recipe_core.base.units import rounded
from recipe_core.search.plan import Plan

SHOWN_ROWS = 300
"""Splits that a table lists."""


def splits_frame(plan: Plan, rows: Sequence[int]) -> pd.DataFrame:
    """Rows of a plan: key, name, and every measure in its unit to three significant digits.

    With limits also ``sure``: the probability that they hold, in percent.
    """
    index = np.asarray(rows, dtype=int)
    measures = {name: rounded(plan.values(name, index)) for name in plan.measures}
    names = {"key": [plan.key(row) for row in rows], "split": [plan.label(row) for row in rows]}
    front = np.where(plan.front(*plan.axes)[index], "◆", "")
    sure = {"sure": np.round(plan.confidence(index) * 100)} if plan.limited else {}
    return pd.DataFrame({**names, **sure, **measures, "front": front})


def number_format(plan: Plan, name: str) -> str:
    """How a table writes a measure: with the decimals that give most values three digits.

    Trailing zeros stay, so that 1.00 stands beside 1.06. Columns of counts, or with thousands, have
    separators in their place.
    """
    values = rounded(plan.values(name, plan.order if len(plan.order) else slice(None)))
    values = np.abs(values[np.isfinite(values) & (values != 0)])
    if not len(values) or values.max() >= 1000 or np.all(values == np.round(values)):
        return "localized"
    decimals = int(np.clip(2 - np.floor(np.log10(np.median(values))), 0, 3))
    return f"%.{decimals}f"


def refused_frame(plan: Plan, at_most: int = 500) -> pd.DataFrame:
    """Refused splits with the kinds of their problems and the sentences, simplest problem first."""
    rows = [int(row) for row in plan.refused_rows()[:at_most]]
    return pd.DataFrame(
        {
            "key": [plan.key(row) for row in rows],
            "split": [plan.label(row) for row in rows],
            "why": ["; ".join(reasons) for reasons in plan.sentences(rows)],
            "kind": [plan.title(plan.codes(row)) for row in rows],
        }
    )


def refusal_counts(plan: Plan) -> dict[str, int]:
    """How many splits each rule refuses, most first; a split that breaks two counts in both."""
    counts = Counter({code: int(broken.sum()) for code, broken in plan.rules().items()})
    return {plan.titles.get(code, code): n for code, n in counts.most_common() if n}


def memory_rows(plan: Plan, pins: Sequence[str], best: int = 4, refused: int = 3) -> list[int]:
    """Rows to compare by memory: pinned, best, and the ``refused`` that lack the least memory."""
    pinned = [row for key in pins if (row := plan.find(key)) is not None]
    ranked = [int(row) for row in plan.order[:best]]
    return list(dict.fromkeys([*pinned, *ranked, *_least_lacking(plan)[:refused]]))


def _least_lacking(plan: Plan) -> list[int]:
    """Rows that only memory refuses, the least lacking first; the nearest row where there is none.

    Rows that differ only in replicas lack the same: one of them counts.
    """
    rules = plan.rules()
    other_rules = [broken for code, broken in rules.items() if code != "memory"]
    rows = np.zeros(0, dtype=np.int64)
    if "memory" in rules:
        rows = np.flatnonzero(rules["memory"] & ~np.any(other_rules, axis=0))
    if not len(rows):
        nearest = plan.nearest_row()
        return [] if nearest is None else [nearest]
    # the column, not the sum of parts: parts of thousands of rows take a minute to estimate
    needed = np.nan_to_num(plan.raw("memory")[rows], nan=np.inf)
    by_need = rows[np.lexsort((plan.raw("gpus")[rows], needed))]
    degrees = np.stack([plan.degree(name)[by_need] for name in ("tp", "pp", "ep")], axis=1)
    out: dict[tuple[int, ...], int] = {}
    for cut, row in zip(degrees.tolist(), by_need.tolist(), strict=True):
        out.setdefault(tuple(cut), row)
    return list(out.values())
