"""A plan as tables for a page: splits that fit, refused ones, rows to compare by memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from recipe_core.base.arrays import Bool, Float, Int
from recipe_core.base.labels import split_name
from recipe_core.base.units import chance_text, range_text, rounded, significant
from recipe_core.plans.measures import whole
from recipe_core.plans.plan import Plan
from recipe_core.views.charts.groups import TITLES, grouped

SHOWN_ROWS = 300
"""Splits that a table lists."""
HOLDS, QUEUES, UNCERTAIN = "holds", "queues", "uncertain"
STATE_TITLES = {HOLDS: "Holds the load", QUEUES: "Starts, queues", UNCERTAIN: "May not start"}
EXPORTED_DIGITS = 4
"""Significant digits of exported figures: one more than estimates are told apart by."""


@dataclass(frozen=True, slots=True)
class Filters:
    """Which splits a table lists; what is empty leaves all in.

    ``by``: titles to keep, for names of ``charts.groups.TITLES``. ``states``: of ``STATE_TITLES``.
    ``devices``: numbers of devices. ``front``: only what is on the front of two measures.
    """

    by: tuple[tuple[str, tuple[str, ...]], ...] = ()
    states: tuple[str, ...] = ()
    devices: tuple[int, ...] = ()
    front: tuple[str, str] | None = None


def differing(plan: Plan) -> dict[str, str]:
    """What the plan's splits differ in beside their degrees: names of columns with titles."""
    return {name: title for name, title in TITLES.items() if name in plan.differs}


def named_columns(plan: Plan) -> dict[str, str]:
    """Those of ``differing`` that are no measures: columns of text."""
    return {name: title for name, title in differing(plan).items() if name not in plan.measures}


def group_titles(plan: Plan, name: str) -> tuple[str, ...]:
    """What a filter by one of ``differing`` offers: what feasible splits have."""
    titles, codes = grouped(plan, name, at_most=None).told(plan.order)
    return tuple(titles[code] for code in np.unique(codes))


def device_counts(plan: Plan) -> list[int]:
    """Numbers of devices that feasible splits use."""
    return [int(count) for count in np.unique(plan.raw("gpus")[plan.order])]


def states_of(plan: Plan) -> list[str]:
    """States that feasible splits are in."""
    return [name for name, some in _in_state(plan, plan.order).items() if some.any()]


def _in_state(plan: Plan, rows: Int) -> dict[str, Bool]:
    """Which of some feasible rows are in each state."""
    waiting, doubtful = plan.queues[rows], plan.uncertain[rows]
    return {HOLDS: ~waiting & ~doubtful, QUEUES: waiting, UNCERTAIN: doubtful}


def filtered(plan: Plan, filters: Filters) -> Int:
    """Feasible rows that pass, best first."""
    rows = plan.order
    keep = np.ones(len(rows), dtype=np.bool_)
    for name, kept in filters.by:
        if kept and name in plan.differs:
            titles, codes = grouped(plan, name, at_most=None).told(rows)
            keep &= np.isin(codes, [titles.index(title) for title in kept if title in titles])
    if filters.states:
        by_state = _in_state(plan, rows)
        keep &= np.any([by_state[name] for name in filters.states if name in by_state], axis=0)
    if filters.devices:
        keep &= np.isin(plan.raw("gpus")[rows], filters.devices)
    if filters.front:
        keep &= front_of_each(plan, *filters.front)[rows]
    return np.asarray(rows[keep])


def front_of_each(plan: Plan, x: str, y: str) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Rows on the front of two measures; where there are several devices, on that of their own."""
    groups = grouped(plan, "device", at_most=None)
    fronts = [plan.front(x, y, among=groups.among(n)) for n in range(len(groups.titles))]
    return np.asarray(np.any(fronts, axis=0))


def splits_frame(
    plan: Plan, rows: Sequence[int] | Int, *, ranges: bool = False, digits: int | None = None
) -> pd.DataFrame:
    """Rows of a plan: key, name, what they differ in, and every measure in its unit.

    To ``digits`` significant digits, all by default. ``label`` says a split in full, ``split`` its
    degrees alone. ``state``: whether it holds its load. With limits also ``sure``: the probability
    that they hold, in percent. ``ranges``: with the ends of the 80 % band of every measure that has
    one, as columns of their own (``tpot_low``, ``tpot_high``) and as text (``tpot_likely``).
    """
    index = np.asarray(rows, dtype=int)
    numbers = index.tolist()
    columns: dict[str, object] = {
        "key": [plan.key(row) for row in numbers],
        "label": plan.labels(index),
        "split": [split_name(candidate) for candidate in plan.candidates(index)],
        "state": [state_text(plan, row) for row in numbers],
    }
    for name in named_columns(plan):
        titles, codes = grouped(plan, name, at_most=None).told(index)
        columns[name] = [titles[code] for code in codes]
    if plan.limited:
        columns["sure"] = np.round(plan.confidence(index) * 100)
    for name in plan.measures:
        columns[name] = _to_digits(plan.values(name, index), digits)
        if ranges and plan.has_band(name):
            columns |= _ranges(plan, name, index, digits)
    front = front_of_each(plan, *plan.axes)
    return pd.DataFrame({**columns, "front": np.where(front[index], "◆", "")})


def _to_digits(values: Float, digits: int | None) -> Float:
    return values if digits is None else np.asarray(rounded(values, digits))


def _ranges(plan: Plan, name: str, rows: Int, digits: int | None) -> dict[str, object]:
    factor = plan.measures[name].factor
    low, high = (end * factor for end in plan.band_ends(name, rows))
    return {
        f"{name}_low": _to_digits(low, digits),
        f"{name}_high": _to_digits(high, digits),
        f"{name}_likely": [
            range_text(ends, significant) if np.isfinite(ends).all() else ""
            for ends in zip(low.tolist(), high.tolist(), strict=True)
        ],
    }


def state_text(plan: Plan, row: int) -> str:
    """``holds``, or how much of its load a queueing row holds: ``queues: 9 of 64``.

    Of one that may not start with which probability it does: ``uncertain: starts with 37 %``.
    """
    if plan.uncertain[row]:
        chance = chance_text(float(plan.columns["start_probability"][row]))
        return f"{UNCERTAIN}: starts with {chance.replace('%', ' %')}"
    held = plan.held_text(row)
    return f"{QUEUES}: {held}" if plan.queues[row] else HOLDS


def digits_of(plan: Plan) -> dict[str, Callable[[float], str]]:
    """How cells of figures are written: three significant digits, trailing zeros included."""
    texts: dict[str, Callable[[float], str]] = {
        name: _counted if measure.show is whole else significant
        for name, measure in plan.measures.items()
    }
    return texts | {"sure": _counted}


def _counted(value: float) -> str:
    """A count; a dash where it is unknown."""
    return whole(value) if np.isfinite(value) else "–"


def export_frame(plan: Plan, rows: Sequence[int] | Int, names: Sequence[str]) -> pd.DataFrame:
    """A table of some rows to take away: titles with units, figures with their likely ranges."""
    frame = splits_frame(plan, rows, ranges=True, digits=EXPORTED_DIGITS)
    titles = {"key": "Key", "label": "Split", "state": "State", **named_columns(plan)}
    if plan.limited:
        titles["sure"] = "Keeps the limits (%)"
    measured = [name for name in differing(plan) if name in plan.measures and name not in names]
    for name in (*measured, *names):
        measure = plan.measures[name]
        titles[name] = measure.axis
        if plan.has_band(name):
            titles[f"{name}_low"] = f"{measure.axis}, low"
            titles[f"{name}_high"] = f"{measure.axis}, high"
    return frame[list(titles)].rename(columns=titles)


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
