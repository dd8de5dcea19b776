"""A board as tables for a page: splits that fit, refused ones, and the rows whose memory is worth drawing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pandas as pd

from recipe_core.base.units import rounded
from recipe_core.search.plan import Plan

SHOWN_ROWS = 300
"""Splits that a table lists."""


def splits_frame(board: Plan, rows: Sequence[int]) -> pd.DataFrame:
    """Rows of a plan with every measure in its unit, rounded to three significant digits; ``key`` names the split."""
    index = np.asarray(rows, dtype=int)
    measures = {name: rounded(board.values(name, index)) for name in board.measures}
    named = {"key": [board.key(row) for row in rows], "split": [board.label(row) for row in rows]}
    return pd.DataFrame(
        named | measures | {"front": np.where(board.front(*board.axes)[index], "◆", "")}
    )


def refused_frame(board: Plan, at_most: int = 500) -> pd.DataFrame:
    """Refused splits with the kinds of their problems and the sentences, simplest problem first."""
    rows = [int(row) for row in board.refused_rows()[:at_most]]
    return pd.DataFrame(
        {
            "key": [board.key(row) for row in rows],
            "split": [board.label(row) for row in rows],
            "why": ["; ".join(said) for said in board.sentences(rows)],
            "kind": [board.title(board.codes(row)) for row in rows],
        }
    )


def refusal_counts(board: Plan) -> dict[str, int]:
    """How many splits each kind of problem refuses, most first; a split with two problems counts in both."""
    counts = Counter({code: int(broken.sum()) for code, broken in board.rules().items()})
    return {board.titles.get(code, code): n for code, n in counts.most_common() if n}


def memory_rows(board: Plan, pins: Sequence[str], best: int = 4, refused: int = 3) -> list[int]:
    """Rows worth comparing by memory: pinned, best, and those refused for memory alone (or the nearest) that lack the least."""
    pinned = [row for key in pins if (row := board.find(key)) is not None]
    rules = board.rules()
    others = np.sum([broken for code, broken in rules.items() if code != "memory"], axis=0)
    short = (
        np.flatnonzero(rules["memory"] & (others == 0))
        if "memory" in rules
        else np.zeros(0, dtype=np.int64)
    )
    if not len(short):
        short = np.array([row for row in (board.nearest_row(),) if row is not None], dtype=np.int64)
    needed = np.sum(list(board.memory(list(short)).values()), axis=0) if len(short) else np.zeros(0)
    worst_first = short[np.lexsort((board.raw("gpus")[short], np.nan_to_num(needed, nan=np.inf)))][
        ::-1
    ]
    cuts_of = np.stack([board.degree(name)[worst_first] for name in ("tp", "pp", "ep")], axis=1)
    cuts = {
        tuple(cut): int(row) for cut, row in zip(cuts_of.tolist(), worst_first, strict=True)
    }  # replicas look the same
    lacking = list(reversed(cuts.values()))[:refused]
    return list(dict.fromkeys([*pinned, *(int(row) for row in board.order[:best]), *lacking]))
