"""One estimate as figures and memory, for terminal, pages and reports, and in full as text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from recipe_core.base.units import gib, token_rate_text
from recipe_core.estimates.serving.results import MEMORY, memory_parts
from recipe_core.estimates.training.memory import MEMORY_TITLES
from recipe_core.estimates.training.results import PHASE_TITLES, RUN_TITLES, STEP_TITLES
from recipe_core.plans.rank import NO_DIFFERENCE
from recipe_core.recipe.figures import (
    TextRow,
    is_pooled_estimate,
    metric_row,
    text_rows,
    token_cost_metric,
)
from recipe_core.request.metrics import Metric, column_metric, metrics_of, time_to_finish
from recipe_core.request.split_key import split_name
from recipe_core.views.columns import Column
from recipe_core.views.plans import change_lines
from recipe_core.views.size_view import engine_title
from recipe_core.views.texts import Phrases
from recipe_core.views.verdict import split_formats_text

# --- figures -------------------------------------------------------------------------------------


# A metric, its value where it is known, and the name of its basis.
Figure = tuple[Metric, float | None, str]


def figure_rows(kind: str, estimate: Mapping[str, Any]) -> list[TextRow]:
    """Figures of an estimate with ranges and basis, then money, power and accuracy."""
    figures = _serving_figures(estimate) if kind == "serving" else _training_figures(estimate)
    parts = {"usd_per_hour": estimate["cost"], "watts": estimate["energy"]}
    hourly = [(column_metric(name), part.get(name), "") for name, part in parts.items()]
    rows = [
        metric_row(estimate, metric, value, basis)
        for metric, value, basis in (*figures, *hourly)
        if value is not None
    ]
    accuracy = estimate.get("accuracy") if kind == "serving" else None
    return [*text_rows(kind, estimate), *rows, *_retained_accuracy_row(accuracy)]


def _serving_figures(estimate: Mapping[str, Any]) -> Iterator[Figure]:
    cost, tokens = estimate["cost"], token_cost_metric(estimate)
    if not is_pooled_estimate(estimate):
        output = column_metric("output_tokens_per_s_per_gpu")
        yield output, estimate["serving"][output.column], ""
    if cost["usd_per_hour"] is not None:
        yield tokens, cost[tokens.column], "usd_per_hour"


def _retained_accuracy_row(accuracy: Mapping[str, Any] | None) -> Iterator[TextRow]:
    """The accuracy that narrower formats retain; nothing where none is narrower."""
    if not accuracy or not accuracy["techniques"]:
        return
    metric, names = column_metric("accuracy"), " and ".join(accuracy["techniques"])
    if accuracy["value"] is None:
        yield TextRow(metric.title, "unknown", "", "", f"{names}: {accuracy['basis']}")
    else:
        value, low, high = (metric.show(accuracy[end]) for end in ("value", "low", "high"))
        yield TextRow(metric.title, value, low, high, names)


def _training_figures(estimate: Mapping[str, Any]) -> Iterator[Figure]:
    run, measures = estimate.get("run") or {}, metrics_of("training")
    # recipes of earlier versions have no HFU, and those without recomputation none of their own
    for name in ("mfu", "hfu"):
        yield measures[name], estimate["training"].get(name), ""
    yield measures["goodput"], run.get("goodput") or None, ""
    if wall_s := run.get("wall_s"):
        yield time_to_finish(wall_s), wall_s, ""
    yield measures["usd_run"], estimate["cost"].get("usd"), "usd_per_hour"


def range_of_row(row: TextRow) -> str:
    """The range that measured runs are expected in; empty where unknown."""
    return f"{row.low} – {row.high}" if row.low else ""


# Columns of ``figure_rows``.
FIGURES: list[Column[TextRow]] = [
    Column("Figure", "label", align="left"),
    Column("Estimate", "value"),
    Column("Likely range", range_of_row),
    Column("Basis", "basis", align="left"),
]


def memory_facts(estimate: Mapping[str, Any]) -> dict[str, str]:
    """Parts of the fullest device's memory, their total, and what the cache holds."""
    memory = estimate["memory"]
    if "training" in estimate:
        parts = {label: memory[f"{name}_bytes"] for name, label in MEMORY_TITLES.items()}
    else:
        # recipes of earlier versions have no encoders
        named_parts = memory_parts({"encoder_bytes": 0, **memory})
        parts = {MEMORY[name]: value for name, value in named_parts.items()}
    facts = {label: gib(value) for label, value in parts.items() if value}
    facts["Total"] = _used_memory_text(memory)
    if memory.get("kv_cache_tokens"):
        tokens, requests = memory["kv_cache_tokens"], memory["max_concurrency"]
        facts["Cache capacity"] = f"{tokens:,} tokens, {requests:,} requests"
    if prefill := memory.get("prefill"):
        facts["Prefill pool"] = _used_memory_text(prefill)
    return facts


def _used_memory_text(memory: Mapping[str, Any]) -> str:
    return f"{gib(memory['total_bytes'])} of {gib(memory['usable_bytes'])} usable"


# --- in full -------------------------------------------------------------------------------------


def estimate_text(
    candidate: Mapping[str, Any], answer: Mapping[str, Any], rows: Iterable[tuple[str, str]] = ()
) -> str:
    """The estimate of one split for serving or training, with bands.

    ``rows``: stand below it, such as the price of a device-hour.
    """
    runs = f"{split_name(candidate)}, {engine_title(candidate['engine'])}"
    head = f"{runs}, {split_formats_text(candidate)}"
    if not answer["feasible"]:
        return _PHRASES.text("estimate", head, answer, {}, (), ())
    figures = figure_rows("training" if "training" in answer else "serving", answer)
    return _PHRASES.text("estimate", head, answer, memory_facts(answer), figures, rows)


_PHRASES = Phrases(
    "estimates",
    engine=engine_title,
    range=range_of_row,
    step_part=lambda name: STEP_TITLES.get(name, name),
    run_part=RUN_TITLES.__getitem__,
    phase_titles=lambda _: PHASE_TITLES.items(),
)


def check_text(answer: dict[str, Any]) -> str:
    """A verdict with its reasons, a better split, and changes that make it run."""
    estimate, better = estimate_text(answer["candidate"], answer["estimate"]), answer["better"]
    changes = "\n".join(change_lines(answer["changes"], answer["candidate"]))
    speed = "" if better is None else _speed(better["estimate"])
    speed += f", {NO_DIFFERENCE}" if better and better["tie"] else ""
    return _PHRASES.text("check", answer, estimate, changes, speed)


def _speed(answer: Mapping[str, Any]) -> str:
    if training := answer.get("training"):
        speed = token_rate_text(training["tokens_per_s"])
        return f"{speed}, {column_metric('step_s').phrase(training['step_s'])}"
    return serving_speed(answer)


def serving_speed(answer: Mapping[str, Any]) -> str:
    """Throughput and time per output token, or per request, of an estimate, in one phrase."""
    serving = answer["serving"]
    if is_pooled_estimate(answer):
        tokens = f"{token_rate_text(serving['input_tokens_per_s'])} of input"
        latency = column_metric("request_latency_s").phrase(serving["request_latency_s"])
        return f"{tokens}, {latency}"
    speed = token_rate_text(serving["output_tokens_per_s"])
    return f"{speed}, {column_metric('tpot_s').phrase(serving['tpot_s'])}"
