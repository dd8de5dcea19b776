"""Print the errors of docs/compression-accuracy.md: figures predicted without those near to them.

    python scripts/accuracy_compression.py [TABLE]

Every shipped figure is predicted by a fit without the figures of its model, of its family (all
models of a line) and of its source. Errors are points: hundredths of what is retained. TABLE, a
CSV with the columns model, technique, method, benchmark and retained (and source), is judged by
the fit as it is shipped.
"""

from __future__ import annotations

import sys

import numpy as np
import pandas as pd

from recipe_core.base.arrays import Float
from recipe_core.compression.band import ends_of
from recipe_core.compression.benchmark_name import named_benchmark
from recipe_core.compression.effects import centre_of, fitted
from recipe_core.compression.left_out import Prepared, left_out
from recipe_core.compression.lines import answers
from recipe_core.compression.published import Figure, figures
from recipe_core.compression.question import Question
from recipe_core.compression.technique import technique

GROUPS = ("8 bits and more", "4 bits", "below 4 bits", "KV cache", "sparsity, pruning, low rank")
FEWEST = 5


def group_of(name: str) -> str:
    """How far a technique goes, in five groups."""
    of = technique(name)
    if of.kind == "kv cache":
        return GROUPS[3]
    if of.kind in {"sparsity", "pruning", "low rank", "distillation"}:
        return GROUPS[4]
    bits = min(of.weight_bits, of.act_bits)
    return GROUPS[0] if bits >= 6 else GROUPS[1] if bits >= 4 else GROUPS[2]


def frame_of(rows: tuple[Figure, ...], questions: list[Question]) -> pd.DataFrame:
    """Figures with the groups that errors are shown by."""
    return pd.DataFrame(
        {
            "cell": [f"{row.source}|{row.model}" for row in rows],
            "model": [row.model for row in rows],
            "line": [question.model.line for question in questions],
            "source": [row.source for row in rows],
            "technique": [row.technique for row in rows],
            "method": [row.method for row in rows],
            "kind": [question.benchmark.kind for question in questions],
            "text": [text_of(question.benchmark.kind) for question in questions],
            "group": [group_of(row.technique) for row in rows],
            "retained": [row.retained for row in rows],
        }
    )


def text_of(kind: str) -> str:
    """What is measured."""
    return kind if kind in {"perplexity", "divergence"} else "tasks"


def shown(frame: pd.DataFrame) -> list[str]:
    """Rows of a table: errors, and how often bands hold, by group."""
    at_least_4 = frame.group.isin(GROUPS[:2])
    tasks = frame.text.eq("tasks")
    parts = {"tasks, 4 bits and more": tasks & at_least_4, "tasks": tasks}
    parts |= {text: frame.text.eq(text) for text in ("perplexity", "divergence")}
    parts |= {f"tasks, {group}": tasks & frame.group.eq(group) for group in GROUPS}
    parts |= {f"texts, {group}": ~tasks & frame.group.eq(group) for group in GROUPS}
    parts["all"] = tasks | ~tasks
    return [line(name, frame[rows]) for name, rows in parts.items() if rows.sum() >= FEWEST]


def line(name: str, rows: pd.DataFrame) -> str:
    """Figures, cells, median, mean of cells' medians and means, 90 %, coverage, width."""
    error = (rows.predicted - rows.retained).abs() * 100
    by_cell = error.groupby(rows.cell)
    cells = [
        name,
        f"{len(rows)}",
        f"{by_cell.ngroups}",
        f"{error.median():.2f}",
        f"{by_cell.median().median():.2f}",
        f"{by_cell.mean().mean():.2f}",
        f"{error.quantile(0.9):.1f}",
    ]
    if "low" in rows:
        inside = rows.retained.between(rows.low, rows.high)
        cells += [
            f"{100 * inside.mean():.0f}",
            f"{100 * inside.groupby(rows.cell).mean().mean():.0f}",
            f"{100 * (rows.high - rows.low).median():.1f}",
        ]
    return f"| {' | '.join(cells)} |"


COLUMNS = (
    "",
    "figures",
    "cells",
    "median",
    "of cells' medians",
    "mean of cells' means",
    "90 %",
    "bands hold",
    "by cells",
    "width",
)
HEADER = f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}"


def medians(frame: pd.DataFrame, keys: list[list[str]]) -> Float:
    """A baseline: the median of the other models' figures that share the first of the keys."""
    out = np.full(len(frame), np.nan)
    for model, mine in frame.groupby("model"):
        others = frame[frame.model.ne(model)]
        for names in keys:
            median = others.groupby(names).retained.median().rename("median").reset_index()
            values = mine[names].merge(median, on=names, how="left")["median"].to_numpy()
            rows = mine.index.to_numpy()
            out[rows] = np.where(np.isnan(out[rows]), values, out[rows])
    return np.where(np.isnan(out), frame.retained.median(), out)


BASELINES = {
    "median by technique": [["technique"]],
    "median by technique and tasks or texts": [["technique", "text"], ["technique"]],
    "median by technique and kind": [["technique", "kind"], ["technique", "text"], ["technique"]],
    "median by technique, method and kind": [
        ["technique", "method", "kind"],
        ["technique", "method", "text"],
        ["technique", "text"],
        ["technique"],
    ],
}


def without(prepared: Prepared, frame: pd.DataFrame, key: str) -> pd.DataFrame:
    """Figures predicted without those that share a key."""
    numbers = fitted()
    predicted = left_out(
        prepared, numbers.spreads.by_term, numbers.scatter.noise(), list(frame[key])
    )
    loss = predicted.expected * [centre_of(question) for question in prepared.asked]
    both = zip(prepared.asked, loss, predicted.variance, strict=True)
    low, high = np.array([ends_of(*one) for one in both]).T
    return frame.assign(predicted=np.exp(-loss), low=low, high=high)


def judged(path: str) -> None:
    """Print the errors of the shipped fit on a table of figures."""
    rows = pd.read_csv(path, keep_default_na=False)
    rows = rows[rows.retained.ne("")]
    names = ["model", "technique", "method", "benchmark"]
    replies = answers(rows[names].to_dict(orient="records"))
    ends = [reply.get("retained") or {} for reply in replies]
    kinds = [named_benchmark(name) for name in rows.benchmark]
    frame = rows.assign(
        retained=rows.retained.astype(float),
        kind=[kind.kind if kind else "" for kind in kinds],
        group=rows.technique.map(group_of),
        cell=(rows.source if "source" in rows else "") + "|" + rows.model,
        predicted=[end.get("value", np.nan) for end in ends],
        low=[end.get("low", np.nan) for end in ends],
        high=[end.get("high", np.nan) for end in ends],
    )
    frame["text"] = frame.kind.map(text_of)
    print(HEADER, *shown(frame), sep="\n")


def main() -> None:
    if len(sys.argv) > 1:
        judged(sys.argv[1])
        return
    prepared = Prepared.of(figures(), fitted().scatter.noise())
    frame = frame_of(figures(), list(prepared.asked))
    for key in ("model", "line", "source"):
        print(f"\nwithout the figures of the {key}\n\n{HEADER}")
        print(*shown(without(prepared, frame, key)), sep="\n", flush=True)
    for name, keys in BASELINES.items():
        print(f"\n{name}, of other models\n\n{HEADER}")
        print(*shown(frame.assign(predicted=medians(frame, keys))), sep="\n")


if __name__ == "__main__":
    main()
