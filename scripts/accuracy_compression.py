"""Print the errors of docs/method/compression.md: figures predicted without those near to them.

    python scripts/accuracy_compression.py [TABLE]

Every shipped figure is predicted by a fit without the figures of its model and technique, of its
model, of its relatives (its line, or of the largest line its series), of all its line and of its
source. Errors are points: hundredths of what is retained. Bands are judged as they are shipped and,
in the column "counted on others", as they come out of seven eighths of the models, for the models
of the last eighth. TABLE, a CSV with the columns model, technique, method, benchmark and retained
(and source), is judged by the fit as it is shipped.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

import numpy as np
import pandas as pd
from fit.compression import (
    LeftOut,
    Losses,
    Prepared,
    left_out_by_known,
    losses_in_bands_of_others,
    predict_left_out,
    relative_lines,
)

from recipe_core.accuracy.accuracy import answer_lines
from recipe_core.accuracy.effects import Known, fitted_model, retained_ends
from recipe_core.accuracy.names import named_benchmark
from recipe_core.accuracy.published import Figure, published_figures
from recipe_core.accuracy.question import Question
from recipe_core.accuracy.technique import technique
from recipe_core.base.arrays import Bool, Float

GROUPS = ("8 bits and more", "4 bits", "below 4 bits", "KV cache", "sparsity, pruning, low rank")
FEWEST = 5


def group_of(name: str) -> str:
    """Say how far a technique goes, in five groups."""
    of = technique(name)
    if of.kind == "kv cache":
        return GROUPS[3]
    if of.kind in {"sparsity", "pruning", "low rank", "distillation"}:
        return GROUPS[4]
    bits = min(of.weight_bits, of.act_bits)
    if bits >= 6:
        return GROUPS[0]
    return GROUPS[1] if bits >= 4 else GROUPS[2]


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
    """Say what is measured."""
    return kind if kind in {"perplexity", "divergence"} else "tasks"


def shown(frame: pd.DataFrame) -> list[str]:
    """Rows of a table: errors, and how often bands hold, by group."""
    at_least_4 = frame.group.isin(GROUPS[:2])
    tasks = frame.text.eq("tasks")
    parts = {"tasks, 4 bits and more": tasks & at_least_4, "tasks": tasks}
    parts |= {text: frame.text.eq(text) for text in ("perplexity", "divergence")}
    parts |= {f"tasks, {group}": tasks & frame.group.eq(group) for group in GROUPS}
    parts |= {f"texts, {group}": ~tasks & frame.group.eq(group) for group in GROUPS}
    parts |= {kind: frame.kind.eq(kind) for kind in sorted(set(frame.kind[tasks]))}
    parts["all"] = tasks | ~tasks
    return [line(name, frame[rows]) for name, rows in parts.items() if rows.sum() >= FEWEST]


def line(name: str, rows: pd.DataFrame) -> str:
    """Figures, cells, errors, and bands where they are known: coverage, width, by others."""
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
    if "others" in rows:
        cells += [
            f"{100 * rows.others.mean():.0f}",
            f"{100 * rows.others.groupby(rows.cell).mean().mean():.0f}",
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
    "counted on others",
    "by cells",
)
HEADER = f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}"


def medians(frame: pd.DataFrame, keys: list[list[str]]) -> Float:
    """A baseline: the median of the other models' figures that share the first of the keys."""
    out = np.full(len(frame), np.nan)
    for model, model_rows in frame.groupby("model"):
        other_rows = frame[frame.model.ne(model)]
        for names in keys:
            median = other_rows.groupby(names).retained.median().rename("median").reset_index()
            values = model_rows[names].merge(median, on=names, how="left")["median"].to_numpy()
            rows = model_rows.index.to_numpy()
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


@dataclass(frozen=True, slots=True)
class Counting:
    """The losses that bands are counted on: left out, of a kind of knowledge, and folds."""

    losses: Losses
    among: Bool
    keys: list[str]


def counting(prepared: Prepared, predicted: dict[Known, LeftOut]) -> dict[Known, Counting]:
    """For each kind of knowledge."""
    models = [row.model for row in prepared.rows]
    return {
        kind: Counting(
            Losses.of(prepared, left_out),
            np.array([knowledge is kind for knowledge in left_out.scopes]),
            relative_lines(prepared) if kind is Known.NOTHING else models,
        )
        for kind, left_out in predicted.items()
    }


def predicted_by(
    prepared: Prepared, frame: pd.DataFrame, left_out: LeftOut, counts: dict[Known, Counting]
) -> pd.DataFrame:
    """Figures with what was predicted without some of them, and whether bands hold."""
    losses = Losses.of(prepared, left_out)
    questions, scopes = prepared.user_questions, left_out.scopes
    both = zip(questions, scopes, losses.expected, losses.scatter, strict=True)
    low, high = np.array([retained_ends(*kind) for kind in both]).T
    kinds = np.array(left_out.scopes)
    held_elsewhere = np.zeros(len(kinds), np.bool_)
    for kind, count in counts.items():
        of_kind = kinds == kind
        held_elsewhere[of_kind] = losses_in_bands_of_others(
            count.losses, losses, count.keys, count.among
        )[of_kind]
    predicted = np.exp(-losses.expected)
    return frame.assign(predicted=predicted, low=low, high=high, others=held_elsewhere, known=kinds)


def judged(path: str) -> None:
    """Print the errors of the shipped fit on a table of figures."""
    rows = pd.read_csv(path, keep_default_na=False)
    rows = rows[rows.retained.ne("")]
    names = ["model", "technique", "method", "benchmark"]
    replies = answer_lines(rows[names].to_dict(orient="records"))
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
    numbers = fitted_model()
    noise, spreads = numbers.scatter, numbers.spreads.by_term
    prepared = Prepared.of(published_figures(), noise)
    frame = frame_of(published_figures(), list(prepared.user_questions))
    by_known = left_out_by_known(prepared, spreads, noise)
    counts = counting(prepared, by_known)
    fits_by_name = {
        "the figures of the model by the technique": by_known[Known.MODEL],
        "the figures of the model": by_known[Known.SERIES],
        "the figures of its line (of the largest line: of its series)": by_known[Known.NOTHING],
    } | {
        f"the figures of all its {key}": predict_left_out(
            prepared, spreads, noise, list(frame[key])
        )
        for key in ("line", "source")
    }
    for name, fit_left_out in fits_by_name.items():
        print(f"\nwithout {name}\n\n{HEADER}")
        print(*shown(predicted_by(prepared, frame, fit_left_out, counts)), sep="\n", flush=True)
    for name, keys in BASELINES.items():
        print(f"\n{name}, of other models\n\n{HEADER}")
        print(*shown(frame.assign(predicted=medians(frame, keys))), sep="\n", flush=True)


if __name__ == "__main__":
    main()
