"""Advice on formats as sentences and columns, for terminal and page.

Answers are those of ``Advice.to_json``, as workers send them to pages.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from recipe_core.accuracy.technique import techniques
from recipe_core.base.units import significant
from recipe_core.compression.advisor.comparison import BEST_AT, FLOOR, SMALLER_MODELS
from recipe_core.compression.advisor.result import FIGURES
from recipe_core.request.metrics import Metric, column_metric
from recipe_core.views.columns import Column, terminal
from recipe_core.views.size_view import engine_title, short
from recipe_core.views.texts import Phrases

Json = Mapping[str, Any]

# Figures of the table.
SHOWN = (
    *("weights_bytes", "cache_tokens", "requests_held", "ttft_s", "tpot_s"),
    *("output_tokens_per_s", "usd_per_million_output_tokens", "joules_per_token"),
)
# Figures that accuracy is drawn against.
AXES = ("usd_per_million_output_tokens", "tpot_s", "ttft_s", "joules_per_token", "weights_bytes")
ACCURACY = column_metric("accuracy").title
SPLITS: dict[str, str] = {"same_split": "Same layout", "best_split": "Best layout for it"}
FILES = "gguf_"
# Types of files that stand for the others of as many bits.
USUAL_FILES = ("gguf_q8_0", "gguf_q6_k", "gguf_q5_k_m", "gguf_q4_k_m", "gguf_q3_k_m", "gguf_q2_k")
# Formats that people ask for, which stand among the first so many rows.
ASKED_FOR, FIRST_ROWS = ("fp8_w8a8", "int4_weight_only"), 6
# Characters of a reason in a terminal.
MAX_REASON = 110


def format_advice_text(answer: Json) -> str:
    """The verdict, techniques side by side, pairs, and the reasons of those without figures."""
    rows, pairs = shown_techniques(answer, every_file=True), answer["combinations"]
    # without the last column: names of checkpoints would fold every row
    table = terminal(rows, technique_columns()[:-1])
    by_reason: dict[tuple[str, str], list[str]] = defaultdict(list)
    for row in answer["formats"]:
        if row["same_split"] is None:
            by_reason[row["state"], reason_text(row)[:MAX_REASON]].append(row["technique"])
    sentences = (formats_verdict(answer), base_sentence(answer), ranking_note(answer))
    pairs_table = terminal(pairs, PAIRS) if pairs else ""
    return _PHRASES.text("whole", *sentences, table, pairs_table, by_reason)


# --- sentences -----------------------------------------------------------------------------------


def formats_verdict(answer: Json) -> str:
    """The best technique by the objective, or that none runs."""
    best = best_technique(answer)
    cost = "usd_per_million_output_tokens"
    change = figure_ratio(best, cost, "best_split") if best else None
    rival = _unmeasured_rival(answer, best, cost) if best and change is not None else None
    more = figure_ratio(rival, cost, "best_split") if rival else None
    return _PHRASES.sentence("verdict", best, answer["accuracy_limit"], change, rival, more)


def _unmeasured_rival(answer: Json, best: Json, cost: str) -> Json | None:
    """A format that a bundle has, ranked before the recommended one, whose speed is a guess."""
    change = figure_ratio(best, cost, "best_split") or 1.0
    for row in usable_formats(answer):
        ratio = figure_ratio(row, cost, "best_split")
        if row["speed"] == "prior" and ratio is not None and ratio < change:
            return row if row["rank"] < best["rank"] and best["recommended"] else None
    return None


def base_sentence(answer: Json) -> str:
    """The deployment that everything is compared with."""
    return _PHRASES.sentence("base", answer, answer["base"]).rstrip(".") + "."


def ranking_note(answer: Json) -> str:
    """The ranking of techniques without a least accuracy; empty where one is asked for."""
    if answer["accuracy_limit"] is not None or "accuracy" in answer["objective"]:
        return ""
    return (
        "No least accuracy is asked for: what keeps less "
        f"than {FLOOR * 100:g} % comes after what keeps more."
    )


# --- figures -------------------------------------------------------------------------------------


def figure_metric(name: str) -> Metric:
    """The metric of a figure; of another name that of this column."""
    return column_metric(FIGURES.get(name, name))


def technique_figure(row: Json, name: str, split: str = "same_split") -> Json | None:
    """Value and ratio of a figure; None where it is not known."""
    figures: Mapping[str, Json | None] = row[split]["figures"] if row[split] else {}
    return figures.get(name)


def figure_ratio(row: Json, name: str, split: str = "same_split") -> float | None:
    """A figure over the base's on the same (or the best) split; None where it is not known."""
    figure = technique_figure(row, name, split)
    return None if figure is None else figure["ratio"]


def kept_accuracy(row: Json, *, band: bool = True) -> str:
    """``98.6 % (93.5 – 100.5)``, or that it is unknown."""
    return _retained_text(row["accuracy"]["retained"], band=band)


def _retained_text(retained: Json | None, *, band: bool = True) -> str:
    if retained is None:
        return "unknown"
    value, low, high = (f"{retained[end] * 100:.1f}" for end in ("value", "low", "high"))
    return f"{value} % ({low} – {high})" if band else f"{value} %"


def ratio_text(ratio: float | None) -> str:
    """``−44 %`` of 0.56; ``4 ×`` from twice as much on."""
    if ratio is None:
        return "–"
    if ratio >= 2:
        return f"{significant(ratio, 2)} ×"
    points = round((ratio - 1) * 100)
    if points == 0:
        return "same"
    return f"{'+' if points > 0 else '−'}{abs(points)} %"


def is_smaller_model(row: Json) -> bool:
    """True for a technique of which another model is the result."""
    return row["kind"] in SMALLER_MODELS


def technique_title(row: Json) -> str:
    """The technique's title; of a smaller model that is served in its place the model's name."""
    name = (row["set"] or {}).get("model") if is_smaller_model(row) else None
    return f"{name.rpartition('/')[2]}, a smaller model of the family" if name else row["title"]


_PHRASES = Phrases(
    "formats",
    kept=kept_accuracy,
    ratio=ratio_text,
    called=technique_title,
    device=short,
    engine=engine_title,
)


# --- tables --------------------------------------------------------------------------------------


def best_technique(answer: Json) -> Json | None:
    """The recommended row, else the first that a bundle has, else the first that runs."""
    ranked = [row for row in answer["formats"] if row["rank"] is not None]
    usable = [row for row in ranked if row["set"] is not None and not is_smaller_model(row)]
    recommended = [row for row in ranked if row["recommended"]]
    return next(iter((*recommended, *usable, *ranked)), None)


def smaller_models(answer: Json) -> list[Json]:
    """Rows of other models: siblings, and the model with layers, width or experts removed."""
    return [row for row in answer["formats"] if row["same_split"] and is_smaller_model(row)]


def usable_formats(answer: Json) -> list[Json]:
    """Rows of formats that end in a bundle, the recommended one first.

    Those that people ask for are among the first ``FIRST_ROWS``.
    """
    rows = [
        row
        for row in shown_techniques(answer)
        if row["set"] is not None and not is_smaller_model(row)
    ]
    rows.sort(key=lambda row: not row["recommended"])
    asked_for = [row for row in rows[FIRST_ROWS:] if row["technique"] in ASKED_FOR]
    ordered = [row for row in rows if row not in asked_for]
    place = FIRST_ROWS - len(asked_for)
    return [*ordered[:place], *asked_for, *ordered[place:]]


def shown_techniques(
    answer: Json, *, every_file: bool = False, without_figures: bool = False
) -> list[Json]:
    """Rows with figures, and of many types of files the usual ones."""
    return [
        row
        for row in answer["formats"]
        if (without_figures or row["same_split"]) and (every_file or _is_usual(row))
    ]


def checkpoint_text(row: Json) -> str:
    """The checkpoint's origin: it exists, the engine makes it on load, or a bundle does."""
    if row["checkpoint"] is None:
        return "no bundle has it"
    if row["making"] is None:
        return "checkpoint exists" if row["checkpoint"] == "exists" else "on load"
    return _PHRASES.sentence("making", row["making"])


def checkpoint_sentence(row: Json) -> str:
    """Say what using the row takes: the time with its range, the tool and the cost."""
    return _PHRASES.sentence("takes", row)


def speed_text(row: Json) -> str:
    """Say what the speed rests on: the format's own measurements here, or those of others."""
    return {"fitted": "measured here", "prior": "not measured here", None: ""}[row["speed"]]


def weights_text(row: Json, answer: Json) -> str:
    """The change of the weights on a GPU and in all; empty without figures of a best layout.

    A format that takes fewer devices can hold more on each of them.
    """
    best = row["best_split"]
    if best is None:
        return ""
    return _PHRASES.sentence("weights", row, best, answer["base"]["best_split"])


# Names of classes, functions and fields in the source code of an engine.
_CODE = re.compile(
    r"[a-z0-9](?:Backend|Config|Enum|Error|Format|Kernel|Loader|Method)\b|\bCompressedTensors\w"
    r"|\w_\w+: |\b_[A-Z]"
)


_QUOTE = re.compile(r" ?\(“[^”]*”\)")


def reason_text(row: Json) -> str:
    """Say why a technique does not run, in words: without what is a line of source code."""
    why, support = row["why"] or "", row["support"]
    if not _CODE.search(why):
        return why
    if support["words"] and support["words"].casefold() in why.casefold():
        return support["note"] or "The engine's source code has nothing for it on this device."
    return _QUOTE.sub(lambda quote: "" if _CODE.search(quote[0]) else quote[0], why)


def support_text(row: Json) -> str:
    """Return what the engine says of a technique, or a note on its source code; and since when."""
    support = row["support"]
    is_code = _CODE.search(support["words"]) is not None
    words = support["note"] if is_code else support["words"] and f"“{support['words']}”"
    release = f"from version {support['min_version']}" if support["min_version"] else ""
    return " ".join(filter(None, (words, release)))


def _is_usual(row: Json) -> bool:
    name = row["technique"]
    stands_out = bool(row["best_at"]) or row["rank"] == 1
    return not name.startswith(FILES) or name in USUAL_FILES or stands_out


def technique_columns(
    *, values: bool = False, split: str = "same_split", reasons: bool = False
) -> list[Column[Json]]:
    """Columns of the techniques.

    Args:
        values: figures themselves, in place of their ratios to the base.
        split: ``same_split`` or ``best_split``, of ``SPLITS``.
        reasons: with a column of why a technique does not run.
    """
    columns: list[Column[Json]] = [
        Column("#", _rank_text, help="By the objective; ★ is recommended"),
        Column("Technique", technique_title, align="left"),
        Column("Runs", "verdict", align="left"),
        Column("Takes", checkpoint_text, align="left"),
        Column("Speed", speed_text, align="left"),
        Column(ACCURACY, kept_accuracy),
        *(_figure_column(name, values=values, split=split) for name in SHOWN),
        Column("Best layout for it", "best_split.split", align="left"),
        Column("Best at", lambda row: ", ".join(map(_goal_title, row["best_at"])), align="left"),
        Column("Checkpoint", lambda row: ", ".join(row["checkpoints"]), help="That already is it"),
    ]
    if reasons:
        columns.append(Column("Why not", reason_text, align="left"))
    return columns


def _rank_text(row: Json) -> str:
    """The place by the objective; a star for the recommended row, which may stand before others."""
    if row["recommended"]:
        return "★"
    return "" if row["rank"] is None else str(row["rank"])


def _goal_title(goal: str) -> str:
    return figure_metric(BEST_AT.get(goal, goal)).head


def _figure_column(name: str, *, values: bool, split: str) -> Column[Json]:
    metric, source = figure_metric(name), f"{split}.figures.{name}"
    if values:
        return Column(metric.head, f"{source}.value", metric.show, help=metric.title)
    return Column(metric.head, f"{source}.ratio", ratio_text, help=metric.title)


# Pairs of techniques.
PAIRS: tuple[Column[Json], ...] = (
    Column(
        "Techniques",
        lambda pair: " + ".join(techniques()[name].title for name in pair["techniques"]),
        align="left",
    ),
    Column("Effect", "effect", align="left"),
    Column(
        figure_metric("usd_per_million_output_tokens").head,
        "estimated.usd_per_million_output_tokens",
        ratio_text,
        help="Both estimated at once",
    ),
    Column(
        "By product",
        "product.usd_per_million_output_tokens",
        ratio_text,
        help="What each alone would give, multiplied",
    ),
    Column(figure_metric("cache_tokens").head, "estimated.cache_tokens", ratio_text),
    Column(ACCURACY, lambda pair: _retained_text(pair["retained"])),
    Column("Why", "sentence", align="left"),
)


# --- accuracy of checkpoints ---------------------------------------------------------------------


def retained_text(questions: Sequence[Any], answers: Sequence[Json]) -> str:
    """A row a question: the share that is retained, and the nearest published figure."""
    fields = [values if isinstance(values, Mapping) else {} for values in questions]
    return terminal(list(zip(fields, answers, strict=True)), RETAINED)


def _nearest_text(answer: Json) -> str:
    if "error" in answer:
        return f"error: {answer['error']['message']}"
    if answer["retained"] is None:
        return str(answer["basis"])
    if not answer["nearest"]:
        return ""
    nearest = answer["nearest"][0]
    model = nearest["model"].rpartition("/")[2]
    technique = " ".join(filter(None, (nearest["technique"], nearest["method"])))
    return f"{100 * nearest['retained']:.1f} % {model} {technique} {nearest['benchmark']}"


def _question_column(name: str) -> Column[tuple[Json, Json]]:
    return Column(name.capitalize(), lambda pair: str(pair[0].get(name) or ""), align="left")


# Questions about retained accuracy with their answers.
RETAINED: tuple[Column[tuple[Json, Json]], ...] = (
    *map(_question_column, ("model", "technique", "method", "benchmark")),
    Column("Retained", lambda pair: _retained_text(pair[1].get("retained"))),
    Column("Nearest published", lambda pair: _nearest_text(pair[1]), align="left"),
)
