"""A plan as tables for a page: splits that fit, refused ones, rows to compare by memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from recipe_core.base.arrays import Bool, Int
from recipe_core.plans.limits import rule_title, stated_limits
from recipe_core.plans.plan import Plan
from recipe_core.plans.plan_json import split_labels
from recipe_core.plans.rank import nearest_row, refused_rows
from recipe_core.plans.splits import broken_rules, find_row, refusal_reasons, row_keys
from recipe_core.views.charts.front import group_rows
from recipe_core.views.plan_words import rule_titles
from recipe_core.views.plans import GROUPS, HOLDS, QUEUES, UNCERTAIN, front_of_devices, split_values

# Splits that a table lists.
SHOWN_ROWS = 300
STATE_TITLES = {HOLDS: "Holds the load", QUEUES: "Starts, queues", UNCERTAIN: "May not start"}
# Significant digits of exported figures: one more than estimates are told apart by.
EXPORTED_DIGITS = 4


@dataclass(frozen=True, slots=True)
class Filters:
    """Filters of a table of splits; an empty one leaves all in.

    ``by``: titles to keep, for names of ``GROUPS``. ``states``: of ``STATE_TITLES``.
    ``devices``: numbers of devices. ``front``: only what is on the front of two measures.
    """

    by: tuple[tuple[str, tuple[str, ...]], ...] = ()
    states: tuple[str, ...] = ()
    devices: tuple[int, ...] = ()
    front: tuple[str, str] | None = None


def differing(plan: Plan) -> dict[str, str]:
    return {name: title for name, title in GROUPS.items() if name in plan.differs}


def named_columns(plan: Plan) -> dict[str, str]:
    """Those of ``differing`` that are no measures: columns of text."""
    return {name: title for name, title in differing(plan).items() if name not in plan.measures}


def group_titles(plan: Plan, name: str) -> tuple[str, ...]:
    """The options of a filter by one of ``differing``: the groups of feasible splits."""
    groups = group_rows(plan, name, at_most=None)
    return tuple(groups.titles[code] for code in np.unique(groups.codes[plan.order]))


def device_counts(plan: Plan) -> list[int]:
    return [int(count) for count in np.unique(plan.raw("gpus")[plan.order])]


def states_of(plan: Plan) -> list[str]:
    return [name for name, rows in _in_state(plan, plan.order).items() if rows.any()]


def _in_state(plan: Plan, rows: Int) -> dict[str, Bool]:
    waiting, doubtful = plan.queues[rows], plan.uncertain[rows]
    return {HOLDS: ~waiting & ~doubtful, QUEUES: waiting, UNCERTAIN: doubtful}


def filtered(plan: Plan, filters: Filters) -> Int:
    """Feasible rows that pass, best first."""
    rows = plan.order
    keep = np.ones(len(rows), dtype=np.bool_)
    for name, picked in filters.by:
        if picked and name in plan.differs:
            groups = group_rows(plan, name, at_most=None)
            codes = [code for code, title in enumerate(groups.titles) if title in picked]
            keep &= np.isin(groups.codes[rows], codes)
    if filters.states:
        by_state = _in_state(plan, rows)
        keep &= np.any([by_state[name] for name in filters.states if name in by_state], axis=0)
    if filters.devices:
        keep &= np.isin(plan.raw("gpus")[rows], filters.devices)
    if filters.front:
        keep &= front_of_devices(plan, *filters.front)[rows]
    return np.asarray(rows[keep])


def splits_frame(
    plan: Plan, rows: Sequence[int] | Int, *, ranges: bool = False, digits: int | None = None
) -> pd.DataFrame:
    """``split_values`` as a frame, for what sorts and exports."""
    return pd.DataFrame(split_values(plan, rows, ranges=ranges, digits=digits))


def export_frame(plan: Plan, rows: Sequence[int] | Int, names: Sequence[str]) -> pd.DataFrame:
    """A table of some rows to take away: titles with units, figures with their likely ranges."""
    frame = splits_frame(plan, rows, ranges=True, digits=EXPORTED_DIGITS)
    titles = {"key": "Key", "label": "Layout", "state": "State", **named_columns(plan)}
    if stated_limits(plan):
        titles["sure"] = "Keeps the limits (%)"
    measured = [name for name in differing(plan) if name in plan.measures and name not in names]
    for name in (*measured, *names):
        measure = plan.measures[name]
        titles[name] = measure.axis
        if plan.measures[name].band is not None:
            titles[f"{name}_low"] = f"{measure.axis}, low"
            titles[f"{name}_high"] = f"{measure.axis}, high"
    return frame[list(titles)].rename(columns=titles)


def refused_frame(plan: Plan, at_most: int = 500) -> pd.DataFrame:
    """Refused splits with the kinds of their problems and the sentences, simplest problem first."""
    rows = [int(row) for row in refused_rows(plan)[:at_most]]
    return pd.DataFrame(
        {
            "key": row_keys(plan, rows),
            "split": split_labels(plan, rows),
            "why": ["; ".join(reasons) for reasons in refusal_reasons(plan, rows)],
            "kind": [rule_titles(broken_rules(plan, row)) for row in rows],
        }
    )


def refusal_counts(plan: Plan) -> dict[str, int]:
    """Splits that each rule refuses, most first; a split that breaks two counts in both."""
    counts = Counter({code: int(broken.sum()) for code, broken in plan.rules.items()})
    return {rule_title(code): n for code, n in counts.most_common() if n}


def memory_rows(plan: Plan, pins: Sequence[str], best: int = 4, refused: int = 3) -> list[int]:
    """Rows to compare by memory: pinned, best, and the ``refused`` that lack the least memory."""
    pinned = [row for key in pins if (row := find_row(plan, key)) is not None]
    ranked = [int(row) for row in plan.order[:best]]
    return list(dict.fromkeys([*pinned, *ranked, *_least_lacking(plan)[:refused]]))


def _least_lacking(plan: Plan) -> list[int]:
    """Rows that only memory refuses, the least lacking first; the nearest row where there is none.

    Rows that differ only in replicas lack the same: one of them counts.
    """
    rules = plan.rules
    other_rules = [broken for code, broken in rules.items() if code != "memory"]
    rows = np.zeros(0, dtype=np.int64)
    if "memory" in rules:
        rows = np.flatnonzero(rules["memory"] & ~np.any(other_rules, axis=0))
    if not len(rows):
        nearest = nearest_row(plan)
        return [] if nearest is None else [nearest]
    # the column, not the sum of parts: parts of thousands of rows take a minute to estimate
    needed = np.nan_to_num(plan.raw("memory")[rows], nan=np.inf)
    by_need = rows[np.lexsort((plan.raw("gpus")[rows], needed))]
    degrees = np.stack([plan.columns[name][by_need] for name in ("tp", "pp", "ep")], axis=1)
    out: dict[tuple[int, ...], int] = {}
    for cut, row in zip(degrees.tolist(), by_need.tolist(), strict=True):
        out.setdefault(tuple(cut), row)
    return list(out.values())
