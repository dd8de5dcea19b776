"""Measured sizes against the ranges that estimates propose.

Runs of one source, model, device, engine, formats and lengths that differ in the number of devices
under one load, or in the load of one split, are the rungs of a ladder. For limits between their
measured figures the smallest count (the largest load) that kept the limit is known. Estimates
propose a range: from the first rung that keeps it with a probability of 10 % to the first that
keeps it with 90 % and all rungs before which that might have been the one. It covers what was
measured in eight of ten cases if the intervals are right.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from recipe_core.base.intervals import probability_below
from recipe_core.base.units import share_text

# Probability at the far end of a proposed range; the near end has one less it.
SURE = 0.9
# What differs between the rungs of a ladder, and the column of it.
LADDERS = {"count": "devices", "load": "load"}
SHARED = (
    "source",
    "model",
    "device",
    "engine",
    "version",
    "mode",
    "scenario",
    "input_tokens",
    "output_tokens",
    "weight_dtype",
    "kv_dtype",
)
SPLIT = ("nodes", "per_node", "tp", "pp", "dp", "ep")
# Columns of the ends of a figure's intervals.
ENDS = ("low_50", "high_50", "low", "high", "low_95", "high_95")
# Figures of which a limit is the least.
MORE = ("output_tokens_per_s", "total_tokens_per_s")


def size_cases(figures: pd.DataFrame) -> pd.DataFrame:
    """Every case: a ladder, a limit on a figure, and where the measured size lies in the range.

    Args:
        figures: of a ``Comparison``: a row per measured figure with its intervals.

    Returns:
        ``ladder`` (count, load), ``figure``, ``source``, ``device``, ``model``, ``vendor``,
        ``rungs``, ``limit``, ``measured`` (place of the rung), ``first`` and ``last`` (of the
        range; ``rungs`` where it reaches beyond), ``inside``.
    """
    rows = figures.assign(
        devices=figures.tp * figures.pp * figures.dp,
        **{name: figures[name].fillna("") for name in ("scenario", "version", "exclude")},
    )
    rows = rows[rows.exclude == ""]
    cases = [case for ladder in LADDERS for case in _cases_of_ladders(rows, ladder)]
    return pd.DataFrame(cases)


def _cases_of_ladders(rows: pd.DataFrame, ladder: str) -> Iterator[dict[str, Any]]:
    column = LADDERS[ladder]
    shared = [*SHARED, "figure", *(("load",) if ladder == "count" else SPLIT)]
    for _, group in rows.groupby(shared, dropna=False):
        # of several splits or repeats of one rung the best that was measured, as one would choose
        better = group.figure.isin(MORE).all()
        best = group.sort_values("measured", ascending=not better).drop_duplicates(column)
        rungs = best.sort_values(column, ascending=ladder == "count")
        if len(rungs) > 1 and group.figure.iloc[0] not in (MORE if ladder == "load" else ()):
            yield from _ladder_cases(rungs, ladder)


def _ladder_cases(rungs: pd.DataFrame, ladder: str) -> Iterator[dict[str, Any]]:
    """A limit between each two measured figures that differ; rungs rise in what they can keep."""
    measured = rungs.measured.to_numpy(dtype=float)
    at_least = rungs.figure.iloc[0] in MORE
    names = ["figure", "source", "device", "model", "vendor", "engine"]
    for low, high in itertools.pairwise(np.unique(measured)):
        limit = float(np.sqrt(low * high))
        chance = np.array(
            [
                probability_below({"50": row[:2], "80": row[2:4], "95": row[4:]}, limit)
                for row in rungs[list(ENDS)].itertuples(index=False, name=None)
            ]
        )
        chance = 1 - chance if at_least else chance
        first, last = _first_rung(chance >= 1 - SURE), _first_rung(chance >= SURE)
        place = _first_rung(measured >= limit if at_least else measured <= limit)
        yield {
            "ladder": ladder,
            **rungs[names].iloc[0],
            "rungs": len(rungs),
            "limit": limit,
            "measured": place,
            "first": first,
            "last": last,
            "inside": first <= place <= last,
        }


def _first_rung(keeps_limit: Any) -> int:
    """The place of the first rung that is kept; beyond the last where none is."""
    return int(np.argmax(keeps_limit)) if keeps_limit.any() else len(keeps_limit)


def sizes_view(figures: pd.DataFrame) -> dict[str, Any]:
    """Shares of cases inside their range, in all and by ladder, figure and vendor."""
    cases = size_cases(figures)
    if not len(cases):
        return {"cases": 0, "inside": None, "groups": []}
    groups = [
        {**dict(zip(names, key, strict=True)), **_count_covered_cases(part)}
        for names in (["ladder"], ["ladder", "figure"], ["ladder", "vendor"])
        for key, part in cases.groupby(names)
    ]
    return {**_count_covered_cases(cases), "groups": groups}


def _count_covered_cases(cases: pd.DataFrame) -> dict[str, Any]:
    cells = cases.groupby(["source", "device", "model"]).inside.mean()
    width = (cases["last"].clip(upper=cases.rungs - 1) - cases["first"] + 1).clip(lower=0)
    return {
        "cases": len(cases),
        "cells": len(cells),
        "inside": float(cases.inside.mean()),
        "inside_by_cell": float(cells.mean()),
        "range_rungs": float(width.mean()),
        "rungs": float(cases.rungs.mean()),
    }


def sizes_text(figures: pd.DataFrame) -> str:
    view = sizes_view(figures)
    if not view["cases"]:
        return "No runs differ in their number of devices, or in their load, alone."

    def line(label: str, part: dict[str, Any]) -> str:
        return (
            f"{label}: {share_text(part['inside'])} of {part['cases']:,} cases inside "
            f"({share_text(part['inside_by_cell'])} of cells alike, {part['cells']} cells); a "
            f"range spans {part['range_rungs']:.1f} of {part['rungs']:.1f} rungs"
        )

    names = ("ladder", "figure", "vendor")
    lines = [
        line(", ".join(str(part[name]) for name in names if name in part), part)
        for part in view["groups"]
    ]
    return "\n".join([line("all", view), *lines])
