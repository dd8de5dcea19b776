"""Phrases about a plan and its splits, which terminal, pages and reports share."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np

from recipe_core.base.units import GIB, chance_text, gib, significant, usd
from recipe_core.estimates.columns.scales import CALIBRATED
from recipe_core.hardware.prices import HOURS_PER_MONTH, price_month
from recipe_core.plans.limits import stated_limits
from recipe_core.plans.plan import Plan
from recipe_core.plans.plan_json import measure_text, queue_text, row_load_text, split_label
from recipe_core.plans.rank import legal_rows, nearest_row
from recipe_core.plans.splits import row_reasons, row_state
from recipe_core.request.metrics import column_metric
from recipe_core.request.objective import SURE
from recipe_core.request.presets import aims, request_aim
from recipe_core.request.schema import PlanRequest
from recipe_core.request.split_key import split_short_name
from recipe_core.views.plan_words import limits_text, plan_band_text, shown_limit, used_devices_text

if TYPE_CHECKING:
    from recipe_core.estimates.columns.corrections import Corrections
    from recipe_core.plans.plan import Plan


# How the basis of an accuracy begins that a measured checkpoint moved
# (``accuracy/checkpoints.py``).
_MEASURED = re.compile(r"measured here on [0-9-]+")

CALIBRATED_FIGURES = ("ttft_s", "tpot_s", "output_tokens_per_s", "step_s")


def calibrated_lines(corrections: Corrections | None) -> list[str]:
    """That own runs changed the figures, and where to see how; nothing where none did."""
    if corrections is None or not corrections.teach:
        return []
    return [
        f"calibrated by {corrections.title}; "
        "`recipe estimate` says what they did to each figure of a layout"
    ]


def calibrated_sentence(plan: Plan, row: int) -> str | None:
    """Say what own runs did to the figures of a split; None where they changed none."""
    corrections = plan.problem.corrections
    if corrections is None or not corrections.teach:
        return None
    changed = changed_figures(plan.estimate(row).to_json())
    if not changed:
        return None
    return f"Calibrated by {corrections.title}. {changed}."


def changed_figures(estimate: Mapping[str, Any]) -> str:
    """The figures of an estimate that own runs changed, with factors; empty where none."""
    basis = estimate.get("basis") or {}
    accuracy_basis = str((estimate.get("accuracy") or {}).get("basis", ""))
    accuracy = _MEASURED.search(accuracy_basis)
    texts = {name: str(basis.get(name, "")).partition(": ") for name in CALIBRATED_FIGURES}
    changed = [
        f"{column_metric(name).label}: {rest}"
        for name, (kind, _, rest) in texts.items()
        if kind == CALIBRATED
    ]
    if accuracy:
        changed.append(f"accuracy: {accuracy.group()}")
    return "; ".join(changed)


State = Literal["holds", "queues", "uncertain", "nothing"]
# Figures of a split that one line has room for.
FIGURES = 2
# Share of the usable memory from which a server's doubtful start is one of memory.
FULL = 0.9


@dataclass(frozen=True, slots=True)
class Verdict:
    """A plan's answer about one split, or that there is none.

    Attributes:
        state: whether the split holds the load, starts and queues, may not start, or nothing
            can run.
        counts: how many splits hold the load, how many start and queue, how many may not start.
        short_counts: the same in few words.
        subject: the split: its degrees, and devices used of devices there; where nothing can run
            the nearest split.
        line: figures of the split, and how surely it keeps the limits; where nothing can run why
            the nearest split does not.
        doubtful: whether the line warns: the split queues, may not start or may well miss a limit.
        best: whether the split is the best one, not another that was chosen.
        facts: sentences for who wants to know more: money, ranges, limits.
    """

    state: State
    counts: str
    short_counts: str
    subject: str
    line: str
    doubtful: bool
    best: bool
    facts: tuple[str, ...]


def plan_verdict(plan: Plan, selected: int | None = None) -> Verdict:
    """The answer of a plan about its best split, or the ``selected`` one."""
    row = plan.best_row if selected is None else selected
    if row is None:
        subject, reason = nearest(plan)
        return Verdict(
            "nothing", split_counts_text(plan), short_counts(plan), subject, reason, True, True, ()
        )
    queues, best = bool(plan.queues[row]), row == plan.best_row
    name = split_short_name(plan.candidate(row))
    figures = [figure_text(plan, measure, row) for measure in main_figures(plan, row)]
    queue = queue_text(plan, row).partition(",")[0]
    doubts = [text for text in (queue, starts_text(plan, row), limits_text(plan, row)) if text]
    parts = (name, used_devices_text(plan, row), searched_load_text(plan, row))
    return Verdict(
        cast("State", row_state(plan, row)) if plan.feasible[row] else "holds",
        split_counts_text(plan),
        short_counts(plan),
        " · ".join(part for part in parts if part),
        " · ".join([*figures, *doubts]),
        queues or bool(plan.uncertain[row]) or may_miss(plan, row),
        best,
        tuple(_verdict_facts(plan, row)),
    )


def split_counts_text(plan: Plan) -> str:
    """``12 of 32 legal splits hold the load within the limits · 4 start and queue``.

    And how many may not start.
    """
    holding = int(plan.holds.sum())
    queueing = int((plan.feasible & plan.queues).sum())
    doubtful = int((plan.feasible & plan.uncertain).sum())
    if len(plan) == 1:
        return _only_split_text(plan, holding, queueing, doubtful)
    of = int(legal_rows(plan).sum())
    runs = holding or queueing or doubtful
    start = f"{holding:,} of {of:,}" if runs else f"None of {of:,}"
    noun = "legal layout" if of == 1 else "legal layouts"
    singular = holding == 1 or not runs
    text = f"{start} {noun} {_verb(plan, singular=singular)}{_within_limits_text(plan)}"
    starts = "starts and queues" if queueing == 1 else "start and queue"
    text = f"{text} · {queueing:,} {starts}" if queueing else text
    return f"{text} · {doubtful:,} may not start" if doubtful else text


def short_counts(plan: Plan) -> str:
    """``12 of 32 splits hold the load · 4 queue``."""
    text = (
        split_counts_text(plan)
        .replace(" legal layouts", " layouts")
        .replace(" legal layout", " layout")
    )
    if stated_limits(plan) and not plan.request.load_searched:
        text = text.replace(_within_limits_text(plan), "")
    return text.replace(" start and queue", " queue").replace(" starts and queues", " queues")


def _verb(plan: Plan, *, singular: bool) -> str:
    """The verb of feasible splits: ``hold a load`` where each has its own."""
    if plan.kind == "training":
        return "can run"
    return f"{'holds' if singular else 'hold'} {'a' if plan.request.load_searched else 'the'} load"


def _only_split_text(plan: Plan, holding: int, queueing: int, doubtful: int) -> str:
    if holding:
        return f"The only layout {_verb(plan, singular=True)}{_within_limits_text(plan)}"
    if queueing:
        return "The only layout starts and queues"
    if doubtful:
        return "The only layout may not start"
    verb = "run" if plan.kind == "training" else _verb(plan, singular=False)
    return f"The only layout does not {verb}{_within_limits_text(plan)}"


def _within_limits_text(plan: Plan) -> str:
    number = len(stated_limits(plan))
    if not number:
        return ""
    text = " within the limit" if number == 1 else " within the limits"
    objective = plan.request.objective
    if objective.judges_by_estimate:
        return text
    return f"{text}, {chance_text(objective.required_confidence)} sure"


def searched_load_text(plan: Plan, row: int) -> str:
    """``96 in flight`` where loads are searched or several; empty where all splits have one."""
    several = plan.request.load_searched or bool(plan.request.options.loads)
    if plan.kind != "serving" or not several:
        return ""
    return row_load_text(plan, row)


def main_figures(plan: Plan, row: int, at_most: int = FIGURES) -> list[str]:
    """Measures that a line about a row names: the goals', the limited ones, then the usual."""
    ranking = [plan.spec.goals[goal][0] for goal in plan.request.objective.goals]
    columns = [plan.spec.shown_as.get(column, column) for column in ranking]
    goals = [name for name, measure in plan.measures.items() if measure.column in columns]
    limited = [name for name in plan.measures if shown_limit(plan, name) is not None]
    names = dict.fromkeys([*goals, *limited, *plan.shown.phrased])
    figures = [
        name for name in names if name not in ("gpus", "load") and np.isfinite(plan.raw(name)[row])
    ]
    return figures[:at_most]


def figure_text(plan: Plan, name: str, row: int) -> str:
    """A measure of a row with what it is of: ``34.8 ms per token``."""
    return plan.measures[name].phrase(float(plan.raw(name)[row]))


def starts_text(plan: Plan, row: int) -> str:
    """``77.5 of 78.1 GiB: starts with 41 %``, of training and of what may not start; else empty.

    Without the memory where that is not what a start hangs on.
    """
    if not plan.runs[row] or (plan.kind == "serving" and not plan.uncertain[row]):
        return ""
    chance = f"starts with {chance_text(float(plan.columns['start_probability'][row]))}"
    usable = float(plan.columns["usable_bytes"][row])
    needed = usable + float(plan.columns["shortfall_bytes"][row])
    if plan.kind == "serving" and needed < FULL * usable:
        return chance
    return f"{needed / GIB:.1f} of {gib(usable)}: {chance}"


def may_miss(plan: Plan, row: int) -> bool:
    """True for a row that runs and keeps the limits less surely than asked for.

    Less than ``SURE`` where estimates themselves are asked for.
    """
    objective = plan.request.objective
    confidence = SURE if objective.judges_by_estimate else objective.required_confidence
    return bool(stated_limits(plan)) and float(plan.chances[row]) < confidence


def nearest(plan: Plan) -> tuple[str, str]:
    """The split that misses by least, and its first reason; where there is none, that."""
    row = nearest_row(plan)
    if row is None:
        return "These devices allow no layout", ""
    first, *more = row_reasons(plan, row)
    rest = f" (and {len(more)} more)" if more else ""
    return f"Nearest is {split_label(plan, row)}", f"{first}{rest}"


def _verdict_facts(plan: Plan, row: int) -> Iterator[str]:
    money = money_text(plan, row)
    if money:
        yield money
    for name in main_figures(plan, row):
        text = figure_range_text(plan, name, row)
        if text:
            yield text


def hourly_text(usd_per_hour: float) -> str:
    """``$12.8 an hour, $9,344 a month of 730 hours``."""
    month = f"{usd(price_month(usd_per_hour))} a month of {HOURS_PER_MONTH:,.0f} hours"
    return f"{usd(usd_per_hour)} an hour, {month}"


def goals_text(request: PlanRequest) -> str:
    """The goal by its name on the pages; several goals with their weights."""
    aim = request_aim(request)
    if aim is not None:
        return aims(request)[aim].title
    goals = request.objective.goals.items()
    return ", ".join(f"{goal} × {significant(weight, 2)}" for goal, weight in goals)


def further_goals_text(request: PlanRequest) -> str:
    """Say how surely limits must hold, what counts among what keeps them, and the budget."""
    rate = request.objective.limits.usd_per_hour
    budget = "no budget" if rate is None else f"at most {usd(rate * HOURS_PER_MONTH)} a month"
    sure = f"{request.objective.required_confidence * 100:g} %"
    return f"Limits must hold with {sure}; optimised for {goals_text(request).lower()}; {budget}"


def split_formats_text(candidate: Mapping[str, Any]) -> str:
    """Number formats of a split: ``fp8 weights, bf16 cache``, or a precision of training."""
    if precision := candidate.get("precision"):
        return str(precision)
    cache = f", {candidate['kv_dtype']} cache" if "kv_dtype" in candidate else ""
    return f"{candidate.get('weight_dtype')} weights{cache}"


def money_text(plan: Plan, row: int) -> str:
    """``4 of 8 × H100 SXM: $12.8 an hour, $9,344 a month of 730 hours``; empty without a price."""
    hour = float(plan.raw("usd_hour")[row])
    if not np.isfinite(hour):
        return ""
    return f"{used_devices_text(plan, row)}: {hourly_text(hour)}"


def figure_range_text(plan: Plan, name: str, row: int) -> str:
    """``Time per output token: 34.8 ms, likely 24.7 to 68.5 ms; limit 40 ms``.

    Empty without a range and without a limit.
    """
    band, limit = plan_band_text(plan, name, row), shown_limit(plan, name)
    if band is None and limit is None:
        return ""
    measure = plan.measures[name]
    text = f"{measure.title}: {measure_text(plan, name, row)}"
    if band is not None:
        text += f", likely {band.replace(' – ', ' to ')}"
    if limit is not None:
        text += f"; limit {measure.show(limit / measure.factor)}"
    return text
