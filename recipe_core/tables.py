"""Plans as tables for a page: splits that fit, refused ones, and the rows whose memory is worth drawing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pandas as pd

from recipe_core.advice import broken_codes, nearest, rule_rows
from recipe_core.labels import REFUSALS, split_label
from recipe_core.plan import PlanTable
from recipe_core.query import row_of, split_key
from recipe_core.units import GIB, rounded


def splits_frame(table: PlanTable, rows: Sequence[int]) -> pd.DataFrame:
    """Rows of a plan in units for people, rounded to three significant digits; ``key`` names the split."""
    index = np.asarray(rows, dtype=int)
    c = {name: values[index] for name, values in table.columns.items()}
    return pd.DataFrame(
        {
            "key": [split_key(table.candidate(row)) for row in rows],
            "split": [split_label(table, row) for row in rows],
            "gpus": c["gpus"],
            "tokens": rounded(c["output_tokens_per_s"]),
            "per_gpu": rounded(c["output_tokens_per_s_per_gpu"]),
            "tpot": rounded(c["tpot_s"] * 1e3),
            "ttft": rounded(c["ttft_s"] * 1e3),
            "memory": rounded(c["total_bytes"] / GIB),
            "used": np.round(100 * c["total_bytes"] / c["usable_bytes"]),
            "concurrency": c["max_concurrency"],
            "usd": rounded(c["usd_per_million_output_tokens"]),
            "front": np.where(table.front[index], "◆", ""),
        }
    )


def refused_frame(table: PlanTable, at_most: int = 500) -> pd.DataFrame:
    """Refused splits with the kinds of their problems and the sentences, simplest problem first."""
    refused = np.flatnonzero(~table.columns["feasible"])
    problems = np.sum(list(rule_rows(table).values()), axis=0)
    rows = [int(row) for row in refused[np.argsort(problems[refused], kind="stable")][:at_most]]
    return pd.DataFrame(
        {
            "split": [split_label(table, row) for row in rows],
            "why": ["; ".join(table.reasons(row)) for row in rows],
            "kind": ["; ".join(REFUSALS.get(code, code) for code in sorted(broken_codes(table, row))) for row in rows],
        }
    )


def refusal_counts(table: PlanTable) -> dict[str, int]:
    """How many splits each kind of problem refuses, most first; a split with two problems counts in both."""
    counts = Counter({code: int(broken.sum()) for code, broken in rule_rows(table).items()})
    return {REFUSALS.get(code, code): n for code, n in counts.most_common() if n}


def memory_rows(table: PlanTable, pins: Sequence[str], best: int = 4, refused: int = 3) -> list[int]:
    """Rows worth comparing by memory: pinned, best, and those refused for memory alone (or the nearest) that lack the least."""
    pinned = [row for key in pins if (row := row_of(table, key)) is not None]
    rules = rule_rows(table)
    others = np.sum([broken for code, broken in rules.items() if code != "memory"], axis=0)
    short = [int(row) for row in np.flatnonzero(rules["memory"] & (others == 0))] if "memory" in rules else []
    short = short or [row for row in (nearest(table),) if row is not None]
    short.sort(key=lambda row: (float(table.columns["shortfall_bytes"][row]), int(table.columns["gpus"][row])))
    cuts = {tuple(int(table.columns[name][row]) for name in ("tp", "pp", "ep")): row for row in reversed(short)}  # replicas look the same
    return list(dict.fromkeys([*pinned, *(int(row) for row in table.ranked[:best]), *list(reversed(cuts.values()))[:refused]]))
