"""The base, and the base with a change: on its own split, and on the split that is best for it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from recipe_core.base.errors import InputError, RecipeError
from recipe_core.compression.advisor.changed_model import Change
from recipe_core.compression.advisor.row import FIGURES, FormatRow, Split, State, split_figures
from recipe_core.estimates.columns.corrections import Corrections
from recipe_core.estimates.columns.serving import WIDE, Cases, Setting
from recipe_core.models.catalog import catalog_model
from recipe_core.models.variants import model_variants
from recipe_core.plans.plan import Plan
from recipe_core.plans.plans import plan_cases, plan_stated, search_plan
from recipe_core.plans.problem import Problem, ServingProblem, resolve_problem
from recipe_core.plans.rank import nearest_row
from recipe_core.plans.serving_kind import AS_GOOD
from recipe_core.plans.serving_settings import serving_setting
from recipe_core.plans.splits import row_request
from recipe_core.request.candidate import CandidateRequest
from recipe_core.request.metrics import goals_of, is_more_better
from recipe_core.request.objective import Objective
from recipe_core.request.schema import PlanRequest


@dataclass(frozen=True)
class Base:
    """The model in its own format, with which formats are compared.

    ``request``: narrowed to one cluster and one engine, formats left to the checkpoint. ``case``:
    the split that is kept, ``same_split`` what it does; ``best``: the best split. ``notes``: what
    was left out of the request that was asked.
    """

    request: PlanRequest
    problem: ServingProblem
    setting: Setting
    case: Cases
    same_split: Split
    best: Split
    states_split: bool
    notes: tuple[str, ...] = ()


def advice_base(
    request: PlanRequest, *, folders: bool = True, corrections: Corrections | None = None
) -> Base:
    """The base of a request.

    Raises:
        InputError: for training, and for what a plan refuses.
        RecipeError: when there is no split at all.
    """
    if request.is_training:
        raise InputError(
            "formats of served models are compared, and this request trains one.",
            field="workload.kind",
            hint="Ask for a serving workload.",
        )
    plain_request, notes = _in_own_format(request)
    problem = resolve_problem(plain_request, folders=folders, corrections=corrections)
    plan = search_plan(problem)
    row = _best_or_nearest_row(plan)
    narrowed = row_request(plan, row).model_copy(update={"candidate": None})
    options = narrowed.options.model_copy(update={"engines": (plan.setting(row).engine.name,)})
    if plain_request.load_searched:
        narrowed = narrowed.model_copy(update={"workload": plain_request.workload})
    narrowed = narrowed.model_copy(
        update={"options": options, "objective": plain_request.objective}
    )
    problem = replace(problem, request=narrowed, clusters=(plan.setting(row).cluster,))
    best = split_figures(plan, row)
    base_plan, kept_row = _stated_split_plan(request, problem) or (plan, row)
    block, place = base_plan.at(kept_row)
    same_split = split_figures(base_plan, kept_row)
    return Base(
        narrowed,
        problem,
        block.setting,
        block.cases.take([place]),
        same_split,
        best,
        base_plan is not plan,
        tuple(notes),
    )


def _best_or_nearest_row(plan: Plan) -> int:
    if not len(plan):
        raise RecipeError(
            "there is no split of these devices.", field="hardware", hint="Add devices."
        )
    row = plan.best_row if plan.best_row is not None else nearest_row(plan)
    assert row is not None  # noqa: S101 - a plan with rows has a best or a nearest one
    return row


def _stated_split_plan(request: PlanRequest, problem: ServingProblem) -> tuple[Plan, int] | None:
    """The split that the request states in full, in the base's format; None without one."""
    if request.candidate is None:
        return None
    candidate = request.candidate.model_copy(update={"weight_dtype": None, "kv_dtype": None})
    plan = plan_stated(problem, candidate)
    return None if plan is None else (plan, 0)


def _in_own_format(request: PlanRequest) -> tuple[PlanRequest, list[str]]:
    """The request for the unquantised checkpoint, by means, without a split of its own."""
    notes, model = [], request.model
    if isinstance(model, str):
        names = model_variants(model)
        base = next((name for name, dtype in names.items() if dtype in WIDE), None)
        if base is not None and catalog_model(model).weight_dtype not in WIDE:
            notes.append(f"The base is {base}, the unquantised checkpoint of {model}.")
            model = base
    objective = request.objective
    if objective.limits.percentile is not None:
        notes.append("Limits on percentiles are held against means here.")
    limits = objective.limits.model_copy(update={"percentile": None, "accuracy_recovery": None})
    options = request.options.model_copy(
        update={"weight_dtypes": ("auto",), "kv_dtypes": ("auto",), "compression": None}
    )
    update: dict[str, Any] = {
        "model": model,
        "candidate": _without_formats(request.candidate),
        "objective": objective.model_copy(
            update={"limits": limits, **_without_accuracy(objective)}
        ),
        "options": options,
    }
    return request.model_copy(update=update), notes


def _without_accuracy(objective: Objective) -> dict[str, Any]:
    """Goals that tell splits of one format apart; the cost where accuracy alone counts."""
    goals = {goal: weight for goal, weight in objective.goals.items() if goal != "accuracy"}
    if len(goals) == len(objective.goals):
        return {}
    return {"optimize": "cost", "weights": goals}


def _without_formats(candidate: CandidateRequest | None) -> CandidateRequest | None:
    return (
        None
        if candidate is None
        else candidate.model_copy(update={"weight_dtype": None, "kv_dtype": None})
    )


@dataclass(frozen=True, slots=True)
class Judged:
    """A change on the base's split, and on the best split for it (None: no split runs)."""

    same_split: Split
    best: Split | None


def judge_change(base: Base, change: Change, why: str = "") -> Judged:
    """A change, judged on the split of the base and on its best one.

    ``why``: the reason for which times are not known, so that memory alone is said.
    """
    problem = _changed_problem(base, change)
    changed_setting = serving_setting(
        problem, base.setting.engine, change.weight_dtype, change.kv_dtype, base.setting.cluster
    )
    same_split = split_figures(plan_cases(problem, changed_setting, base.case), 0, why)
    if why:
        return Judged(same_split, None)
    try:
        plan = search_plan(problem)
    except InputError:
        raise
    except RecipeError:
        return Judged(same_split, None)
    row = plan.best_row
    return Judged(same_split, None if row is None else split_figures(plan, row))


def _changed_problem(base: Base, change: Change) -> Problem[Any]:
    """The base's problem with the change in place of its formats."""
    options = base.request.options.model_copy(
        update={"weight_dtypes": (change.weight_dtype,), "kv_dtypes": (change.kv_dtype,)}
    )
    request = base.request.model_copy(update={"options": options})
    model = change.model.serving(base.problem.workload.modalities)
    return replace(base.problem, request=request, model=model, assumed=change.assumed)


# What stands for a figure where no price is known.
UNPRICED = {"usd_per_million_output_tokens": "output_tokens_per_s_per_gpu"}
# What a technique can be the best at, on the split of the base, with accuracy beside these.
BEST_AT = {
    "memory": "total_bytes",
    "concurrency": "requests_held",
    "ttft": "ttft_s",
    "tpot": "tpot_s",
    "throughput": "output_tokens_per_s",
    "cost": "usd_per_million_output_tokens",
    "energy": "joules_per_token",
}
# Where no least accuracy is asked for, the share at which the band of a technique must start for it
# to stand among the first: what may lose more is a bet, however cheap it is.
SURELY_KEPT = 0.9
PLACES: tuple[State, ...] = (
    "estimated",
    "memory only",
    "already",
    "no split",
    "void",
    "unknown",
    "refused",
)


def rank_formats(
    rows: Sequence[FormatRow], base: Base, objective: Objective
) -> tuple[FormatRow, ...]:
    """The rows, those that run within the limit on accuracy first, each best by the objective.

    A technique whose accuracy is unknown comes after those that keep a limit on it. Without a limit
    those come last that may keep less than `SURELY_KEPT`, unless accuracy is a goal.
    """
    runs = [row for row in rows if row.state == "estimated" and row.runs]
    runs.sort(key=lambda row: (_limit_class(row, objective), _log_score(row, base, objective)))
    numbered = [replace(row, rank=number) for number, row in enumerate(runs, 1)]
    ranked_names = {row.name for row in runs}
    rest = [row for row in rows if row.name not in ranked_names]
    rest.sort(key=lambda row: PLACES.index(row.state))
    return tuple(_mark_best([*numbered, *rest], objective))


def _limit_class(row: FormatRow, objective: Objective) -> int:
    """0 within the limit on accuracy, or what is surely kept, 1 where it is unknown, 2 beyond."""
    within = row.within
    if objective.limits.accuracy_recovery is None:
        if "accuracy" in objective.goals:
            return 0
        within = row.accuracy.low >= SURELY_KEPT if row.accuracy.known else None
    if within is None:
        return 1
    return 0 if within else 2


def _log_score(row: FormatRow, base: Base, objective: Objective) -> float:
    """Logarithm of the weighed goals of its best split; less is better."""
    score = 0.0
    for goal, weight in objective.goals.items():
        if goal == "accuracy":
            score += weight * math.log(_lost(row))
        elif row.best is not None:
            score += weight * _log_figure(row.best, goals_of("closed")[goal][0], base.best)
    return score


def _lost(row: FormatRow) -> float:
    return max(1 - row.accuracy.value, 0.0) + AS_GOOD if row.accuracy.known else 1 + AS_GOOD


def _log_figure(split: Split, name: str, base: Split) -> float:
    if name not in split.values:
        name = UNPRICED.get(name, name)
    value = split.values.get(name)
    if value is None or value <= 0:
        return math.inf
    sign = -1 if is_more_better(FIGURES[name]) else 1
    return sign * math.log(value / base.values.get(name, 1.0))


def _mark_best(rows: list[FormatRow], objective: Objective) -> list[FormatRow]:
    """The rows with what each is the best at among the first group, those within the limit."""
    worst_class = 0 if objective.limits.accuracy_recovery is not None else 1
    able = [
        row
        for row in rows
        if row.same_split is not None
        and row.state == "estimated"
        and _limit_class(row, objective) <= worst_class
    ]
    marks: dict[str, list[str]] = {}
    for goal, name in BEST_AT.items():
        measured = [
            row for row in able if row.same_split is not None and name in row.same_split.values
        ]
        if measured:
            winner = min(measured, key=lambda row: _signed_figure(row, name))
            marks.setdefault(winner.name, []).append(goal)
    sure = [row for row in able if row.accuracy.known]
    if sure:
        winner = max(sure, key=lambda row: (row.accuracy.value, row.accuracy.low))
        marks.setdefault(winner.name, []).append("accuracy")
    return [replace(row, best_at=tuple(marks.get(row.name, ()))) for row in rows]


def _signed_figure(row: FormatRow, name: str) -> float:
    assert row.same_split is not None  # noqa: S101 - the caller looked
    return row.same_split.values[name] * (-1 if is_more_better(FIGURES[name]) else 1)
