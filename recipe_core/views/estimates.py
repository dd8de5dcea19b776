"""One estimate as figures and memory, for terminal, pages and reports, and in full as text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from recipe_core.base.units import (
    chance_text,
    count_text,
    days,
    gib,
    seconds_text,
    significant,
    token_rate_text,
    usd,
)
from recipe_core.estimates.serving.results import MEMORY, memory_parts
from recipe_core.estimates.training.memory import MEMORY_TITLES
from recipe_core.estimates.training.results import PHASE_TITLES, RUN_TITLES, STEP_TITLES
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
from recipe_core.views.verdict import split_formats_text


def reinforcement_lines(answer: Mapping[str, Any]) -> Iterator[str]:
    """Lines of an estimate that samples answers; none of another one."""
    loop = answer.get("reinforcement")
    if not loop:
        return
    updates = f"{loop['updates']:,} update{'s' * (loop['updates'] > 1)}"
    yield f"phases of a step ({loop['answers']:,} answers, {updates}):"
    for name, label in PHASE_TITLES.items():
        seconds = loop["phases_s"].get(name, 0.0)
        if seconds > 0:
            yield f"  {label:26} {seconds_text(seconds):>14}{_more(name, loop)}"
    yield (
        f"rollout: {loop['rollout_copies']:,} × {loop['rollout_engine']} with tp "
        f"{loop['rollout_tp']}, {loop['rollout_in_flight']:,.0f} answers in flight each, "
        f"{token_rate_text(loop['rollout_tokens_per_s'])} while full"
    )
    yield (
        f"memory per GPU: {gib(loop['training_bytes'])} while it trains, "
        f"{gib(loop['rollout_bytes'])} while it samples (memory share of the engine "
        f"{loop['rollout_memory_share']:.2f}){_offloaded_text(loop)}"
    )
    if loop["usd_per_step"] is not None:
        yield f"a step costs {usd(loop['usd_per_step'])}"


def _more(name: str, loop: Mapping[str, Any]) -> str:
    if name == "rollout" and loop["rollout_tail_s"] > 0:
        return f"   {seconds_text(loop['rollout_tail_s'])} of it for the longest answers alone"
    if name == "weight_sync":
        return f"   {gib(loop['weight_sync_bytes'])}"
    return ""


def _offloaded_text(loop: Mapping[str, Any]) -> str:
    if not loop["offloaded_bytes"]:
        return ""
    return f"; {gib(loop['offloaded_bytes'])} of states wait in the host's memory"


# Expected failures below which nobody cares how many.
LEAST_FAILURES = 0.001
_CAN_RUN = {
    True: "yes: it can run",
    None: "uncertain: estimates do not tell whether it starts",
    False: "no: it cannot run",
}


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
    lines = [f"{split_name(candidate)}, {candidate['engine']}, {split_formats_text(candidate)}"]
    if not answer["feasible"]:
        return "\n".join([*lines, "cannot run:", *(f"  {reason}" for reason in answer["reasons"])])
    kind = "training" if "training" in answer else "serving"
    lines += _align_figures(memory_facts(answer).items())
    for row in figure_rows(kind, answer):
        beside = ", ".join(filter(None, (range_of_row(row), row.basis)))
        lines.append(f"  {row.label:32} {row.value:>14}   {beside}")
    if kind == "training":
        lines += [*_step_part_lines(answer), *reinforcement_lines(answer)]
        lines += _whole_run_lines(answer["run"], answer["cost"])
    return "\n".join(
        [*lines, *_align_figures(rows), *(f"  note: {note}" for note in answer["notes"])]
    )


def _align_figures(rows: Iterable[tuple[str, str]]) -> list[str]:
    """Lines with the figures below each other; what follows a figure and its unit stays beside."""
    lines = []
    for label, text in rows:
        figure = " ".join(text.split(" ")[:2])
        lines.append(f"  {label:32} {figure:>14}{text[len(figure) :]}")
    return lines


def _step_part_lines(answer: Mapping[str, Any]) -> Iterator[str]:
    yield "parts of a step:"
    parts = sorted(answer["breakdown_s"]["step"].items(), key=lambda item: -item[1])
    for name, seconds in parts:
        share = seconds / answer["training"]["step_s"]
        if share > 0.001:
            label = STEP_TITLES.get(name, name)
            yield f"  {label:32} {seconds_text(seconds):>14} {share:6.1%}"


def _whole_run_lines(run: Mapping[str, Any], cost: Mapping[str, Any]) -> list[str]:
    lines, phases = [], run.get("phases") or []
    if run["wall_s"]:
        several = f" in {len(phases)} phases" if phases else ""
        price = f", {usd(cost['usd'])}" if cost["usd"] else ""
        lines.append(f"run: {run['steps']:,.0f} steps{several}, {days(run['wall_s'])}{price}")
    lines += [
        f"  {count_text(phase['tokens']):>8} tokens in steps of {phase['global_batch']:,} × "
        f"{phase['sequence_length']:,}: {phase['steps']:,.0f} steps of "
        f"{seconds_text(phase['step_s'])}, {days(phase['wall_s'])}"
        for phase in phases
    ]
    lines.append(
        f"goodput {run['goodput']:.1%}, MFU of the whole run {run['mfu']:.1%}; time goes to"
    )
    shares = sorted(run["time_shares"].items(), key=lambda item: -item[1])
    lines += [f"  {RUN_TITLES[name]:32} {part:>14.2%}" for name, part in shares if part > 0.00005]
    often = (run.get("failures") or 0.0) >= LEAST_FAILURES
    failed = f" ({significant(run['failures'])} expected in the run)" if often else ""
    lines.append(f"a failure every {days(run['mtbf_s'])}{failed}{_spares(run)}")
    size, interval = gib(run["checkpoint_bytes"]), seconds_text(run["checkpoint_interval_s"])
    stall = seconds_text(run["checkpoint_stall_s"])
    return [*lines, f"checkpoint of {size} every {interval}, which stops training for {stall}"]


def _spares(run: Mapping[str, Any]) -> str:
    if run.get("spares_suffice") is None:
        return ""
    return f"; a spare takes over with a probability of {chance_text(run['spares_suffice'])}"


def check_text(answer: dict[str, Any]) -> str:
    """A verdict with its reasons, a better split, and changes that make it run."""
    verdict = _CAN_RUN[answer["ok"]]
    if answer.get("confidence") is not None:
        sure = chance_text(answer["confidence"])
        verdict += f"; it keeps the limits with a probability of {sure}"
    lines = [verdict]
    if answer["ok"] is None:
        lines += [f"  why: {reason}" for reason in answer["reasons"]]
    lines.append(estimate_text(answer["candidate"], answer["estimate"]))
    if answer.get("unread"):
        lines.append(f"not checked: {' '.join(answer['unread'])}")
    better = answer["better"]
    if better is not None:
        lines.append(f"better: {split_name(better['candidate'])}: {_speed(better['estimate'])}")
    return "\n".join([*lines, *change_lines(answer["changes"], answer["candidate"])])


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
