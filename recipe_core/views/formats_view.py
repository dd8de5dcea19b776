"""Advice on formats for a page: rows, pairs and verdicts as frames and sentences.

Takes the plain values of ``Advice.to_json``, which a worker sends.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from recipe_core.accuracy.families import families
from recipe_core.accuracy.runners import runners
from recipe_core.accuracy.technique import techniques
from recipe_core.base.units import duration, gib, rate, significant, usd

if TYPE_CHECKING:
    import pandas as pd

Row = Mapping[str, Any]

LETTERS: dict[str, str] = {
    "native": "N",
    "weight-only kernel": "W",
    "emulated": "E",
    "memory only": "M",
    "refused": "×",
    "unknown": "?",
}
"""What stands in a cell of the matrix, best first."""
MEANINGS: dict[str, str] = {
    "native": "products run in the format, or the cache is read in it",
    "weight-only kernel": "stored small, multiplied in 16 bit",
    "emulated": "saves memory, costs time",
    "memory only": "stored small at most, no kernel",
    "refused": "does not start",
    "unknown": "no source says",
}
FIGURES: dict[str, tuple[str, str]] = {
    "weights_bytes": ("Weights", "Bytes of weights on the fullest device"),
    "cache_tokens": ("Tokens held", "Tokens that the KV cache holds"),
    "requests_held": ("Requests held", "Requests of this length that fit at once"),
    "ttft_s": ("First token", "Mean time to first token"),
    "tpot_s": ("Per token", "Mean time per output token"),
    "output_tokens_per_s": ("Throughput", "Output tokens per second of the deployment"),
    "usd_per_million_output_tokens": ("Cost", "Dollars of a million output tokens"),
    "joules_per_token": ("Energy", "Joules per output token"),
}
"""Figures of the table, with head and help."""
AXES: dict[str, str] = {
    "usd_per_million_output_tokens": "Cost of a token",
    "tpot_s": "Time per token",
    "ttft_s": "Time to first token",
    "joules_per_token": "Energy of a token",
    "weights_bytes": "Memory of weights",
}
"""What accuracy is drawn against."""
SPLITS: dict[str, str] = {"same_split": "Same split", "best_split": "Best split for it"}
FILES = "gguf_"
USUAL_FILES = ("gguf_q8_0", "gguf_q6_k", "gguf_q5_k_m", "gguf_q4_k_m", "gguf_q3_k_m", "gguf_q2_k")
"""Types of files that stand for the others of as many bits."""
GOALS: dict[str, str] = {
    "memory": "memory",
    "concurrency": "requests held",
    "ttft": "first token",
    "tpot": "time per token",
    "throughput": "throughput",
    "cost": "cost",
    "energy": "energy",
    "accuracy": "accuracy",
}


def shown_rows(
    answer: Row, *, every_file: bool = False, without_figures: bool = False
) -> list[Row]:
    """Rows of the table: those with figures, and of many types of files the usual ones."""
    return [
        row
        for row in answer["formats"]
        if (without_figures or row["same_split"])
        and (every_file or not row["technique"].startswith(FILES) or is_usual(row))
    ]


def is_usual(row: Row) -> bool:
    """Whether a type of file is one of the usual ones, or the best at something."""
    return row["technique"] in USUAL_FILES or bool(row["best_at"]) or row["rank"] == 1


def figure(row: Row, name: str, split: str = "same_split") -> Row | None:
    """Value and ratio of a figure; None where it is not known."""
    if not row[split]:
        return None
    known: Row | None = row[split]["figures"].get(name)
    return known


def ratio(row: Row, name: str, split: str = "same_split") -> float | None:
    """A figure over the base's on the same (or the best) split; None where it is not known."""
    known = figure(row, name, split)
    return None if known is None else known["ratio"]


def kept_text(row: Row, *, band: bool = True) -> str:
    """``98.6 % (93.5 – 100.5)``, or that it is unknown."""
    kept = row["accuracy"]["retained"]
    if kept is None:
        return "unknown"
    value, low, high = (f"{kept[end] * 100:.1f}" for end in ("value", "low", "high"))
    return f"{value} % ({low} – {high})" if band else f"{value} %"


def figure_text(name: str, value: float) -> str:
    """A figure with its unit."""
    if name.endswith("_bytes"):
        return gib(value)
    if name.endswith("tokens_per_s"):
        return rate(value)
    if name.endswith("_s"):
        return duration(value)
    if name.startswith("usd"):
        return usd(value)
    return significant(value) + (" J" if name.startswith("joules") else "")


def change_text(ratio: float | None) -> str:
    """``−44 %`` of 0.56; ``4 ×`` of what is more than twice as much."""
    if ratio is None:
        return "–"
    if ratio >= 2:
        return f"{significant(ratio, 2)} ×"
    points = round((ratio - 1) * 100)
    if points == 0:
        return "same"
    return f"{'+' if points > 0 else '−'}{abs(points)} %"


def formats_frame(rows: Sequence[Row], *, values: bool, split: str) -> pd.DataFrame:
    """Techniques as a table: figures as ratios to the base, or as values."""
    import pandas as pd

    columns: dict[str, list[Any]] = {
        "rank": [row["rank"] for row in rows],
        "technique": [row["title"] for row in rows],
        "verdict": [row["verdict"] for row in rows],
        "accuracy": [kept_text(row) for row in rows],
    }
    for name in FIGURES:
        columns[name] = [_cell(row, name, values=values, split=split) for row in rows]
    columns["split"] = [row["best_split"]["split"] if row["best_split"] else "–" for row in rows]
    columns["best_at"] = [", ".join(GOALS[goal] for goal in row["best_at"]) for row in rows]
    columns["checkpoint"] = [", ".join(row["checkpoints"]) for row in rows]
    columns["why"] = [row["why"] or "" for row in rows]
    frame = pd.DataFrame(columns)
    frame["rank"] = frame["rank"].astype("Int64")
    return frame


def _cell(row: Row, name: str, *, values: bool, split: str) -> str:
    known = figure(row, name, split)
    if known is None:
        return "–"
    return figure_text(name, known["value"]) if values else change_text(known["ratio"])


def pairs_frame(answer: Row) -> pd.DataFrame:
    """Which techniques go together, with what each alone gives multiplied and both estimated."""
    import pandas as pd

    pairs = answer["combinations"]
    titles = techniques()
    return pd.DataFrame(
        {
            "pair": [
                " + ".join(titles[name].title for name in pair["techniques"]) for pair in pairs
            ],
            "effect": [pair["effect"] for pair in pairs],
            "cost": [
                _together(pair, "estimated", "usd_per_million_output_tokens") for pair in pairs
            ],
            "product": [
                _together(pair, "product", "usd_per_million_output_tokens") for pair in pairs
            ],
            "held": [_together(pair, "estimated", "cache_tokens") for pair in pairs],
            "accuracy": [kept_text({"accuracy": {"retained": pair["retained"]}}) for pair in pairs],
            "sentence": [pair["sentence"] for pair in pairs],
        }
    )


def _together(pair: Row, which: str, name: str) -> str:
    return change_text((pair[which] or {}).get(name))


def column_title(name: str) -> str:
    """What an engine or a family of hardware is called above a column."""
    if name in runners():
        return runners()[name].label
    return families()[name].label if name in families() else name


def narrowed(cells: Row, columns: int) -> Row:
    """The matrix with its first columns, those of which most is known, and what they tell of."""
    first = {name: dict(list(row.items())[:columns]) for name, row in cells.items()}
    return {
        name: row
        for name, row in first.items()
        if any(cell["verdict"] != "unknown" for cell in row.values())
    }


def matrix_frame(cells: Row) -> pd.DataFrame:
    """The matrix as a table of words."""
    import pandas as pd

    titles = techniques()
    return pd.DataFrame(
        {
            column_title(column): [row[column]["verdict"] for row in cells.values()]
            for column in next(iter(cells.values()), {})
        },
        index=[titles[name].title for name in cells],
    )


def verdict(answer: Row) -> str:
    """The best technique by the objective in a sentence, or that none runs."""
    best = best_row(answer)
    if best is None:
        return "No format runs within the limits."
    limit = answer["accuracy_limit"]
    if limit is not None and not best["accuracy"]["within_limit"]:
        return (
            f"No format that runs here is expected to keep {limit * 100:g} % of the accuracy. "
            f"Nearest by the objective: {best['title']}."
        )
    return f"{best['title']}: accuracy kept {kept_text(best)}."


def best_row(answer: Row) -> Row | None:
    """The row that is ranked first."""
    return next((row for row in answer["formats"] if row["rank"] == 1), None)


def usable_row(answer: Row) -> Row | None:
    """The best ranked row that can be put into the request."""
    ranked = [row for row in answer["formats"] if row["rank"] is not None]
    return next((row for row in ranked if row["set"] is not None), None)


def row_named(answer: Row, name: str) -> Row | None:
    """The row of a technique."""
    return next((row for row in answer["formats"] if row["technique"] == name), None)
