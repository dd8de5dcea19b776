"""The base, and the base with a change: on its own split, and on the split that is best for it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from recipe_core.base.errors import InputError, RecipeError
from recipe_core.base.intervals import NORMAL
from recipe_core.compression.advisor.changed_model import Change
from recipe_core.compression.advisor.result import (
    FIGURES,
    FigureAnswer,
    FormatAnswer,
    SplitAnswer,
    State,
)
from recipe_core.estimates.columns.corrections import Corrections
from recipe_core.estimates.columns.serving import WIDE, Cases, Setting
from recipe_core.estimates.serving.bands import UNFITTED_SPREAD, serving_uncertainty, speed_grade
from recipe_core.models.catalog import catalog_model
from recipe_core.models.variants import model_variants
from recipe_core.plans.plan import Plan
from recipe_core.plans.plan_json import split_label
from recipe_core.plans.plans import plan_cases, plan_stated, search_plan
from recipe_core.plans.problem import Problem, ServingProblem, resolve_problem
from recipe_core.plans.rank import nearest_row
from recipe_core.plans.serving_kind import AS_GOOD
from recipe_core.plans.serving_settings import serving_setting
from recipe_core.plans.splits import row_reasons, row_request, row_state
from recipe_core.request.metrics import goals_of, is_more_better
from recipe_core.request.objective import Objective
from recipe_core.request.schema import PlanRequest

# Figures that are known of whatever is stored small; the others take a kernel for it too.
MEMORY = (
    *("weights_bytes", "cache_bytes", "total_bytes", "cache_tokens", "requests_held"),
    *("gpus", "load"),
)


def split_figures(
    plan: Plan,
    row: int,
    base: SplitAnswer | None = None,
    why: str = "",
    *,
    assumed: bool = False,
) -> SplitAnswer:
    """Return what a row of a plan does, with its ratios to the base's (None: it is the base).

    ``why``: the reason for which times are not known, so that memory alone is said. A split that
    cannot run has no times either. ``assumed``: the format is none that plans have.
    """
    feasible = bool(plan.feasible[row])
    names = FIGURES if feasible and not why else MEMORY
    if not why and not feasible:
        why = "the layout cannot run"
    figures: dict[str, FigureAnswer | None] = dict.fromkeys(FIGURES)
    for name in names:
        value = float(plan.columns[FIGURES[name]][row])
        before = value if base is None else base.value(name)
        ratio = value / before if before and before > 0 else None
        if math.isfinite(value):
            low, high = _figure_band(plan.setting(row), FIGURES[name], value, assumed)
            figures[name] = FigureAnswer(
                value=value, ratio=1.0 if base is None else ratio, low=low, high=high
            )
    return SplitAnswer(
        split=split_label(plan, row, device=False),
        candidate=plan.candidate(row),
        state=row_state(plan, row),
        reasons=[] if feasible else row_reasons(plan, row),
        figures=figures,
        why_null=why or None,
    )


def _figure_band(
    setting: Setting, column: str, value: float, assumed: bool
) -> tuple[float | None, float | None]:
    """The ends of a figure's 80 % band, without own runs; None where the figure is exact."""
    uncertain = serving_uncertainty(setting, column)
    if uncertain is None:
        return None, None
    low, high = uncertain.factors["80"]
    if assumed and speed_grade(setting) == "fitted":  # not widened yet
        spread = NORMAL.inv_cdf(0.9) * UNFITTED_SPREAD
        low = math.exp(-math.hypot(math.log(low), spread))
        high = math.exp(math.hypot(math.log(high), spread))
    return value * low, value * high


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
    same_split: SplitAnswer
    best: SplitAnswer
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
            "there is no layout of these devices.", field="hardware", hint="Add devices."
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
        "candidate": request.candidate
        and request.candidate.model_copy(update={"weight_dtype": None, "kv_dtype": None}),
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


@dataclass(frozen=True)
class Judged:
    """A change on the split of the base and on its best one (None: no split runs).

    ``setting``: the change on the hardware of the base.
    """

    setting: Setting
    same_split: SplitAnswer
    best_split: SplitAnswer | None


def judge_change(base: Base, change: Change, why: str = "") -> Judged:
    """A change, judged on the split of the base and on its best one.

    ``why``: the reason for which times are not known, so that memory alone is said.
    """
    problem = _changed_problem(base, change)
    changed_setting = serving_setting(
        problem, base.setting.engine, change.weight_dtype, change.kv_dtype, base.setting.cluster
    )
    plan = plan_cases(problem, changed_setting, base.case)
    same_split = split_figures(plan, 0, base.same_split, why, assumed=change.assumed)
    judged = Judged(changed_setting, same_split, None)
    if why:
        return judged
    try:
        plan = search_plan(problem)
    except InputError:
        raise
    except RecipeError:
        return judged
    row = plan.best_row
    if row is None:
        return judged
    best = split_figures(plan, row, base.best, assumed=change.assumed)
    return replace(judged, best_split=best)


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
# Where no least accuracy is asked for, the share that a technique must be expected to keep to stand
# among the first.
FLOOR = 0.98
# Kinds of which another model is the result: they come after formats, however cheap they are.
SMALLER_MODELS = ("pruning", "distillation", "low rank")
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
    rows: Sequence[FormatAnswer], base: Base, objective: Objective
) -> list[FormatAnswer]:
    """The rows, those that run within the limit on accuracy first, each best by the objective.

    A technique whose accuracy is unknown comes after those that keep the least share, those that
    keep less come last, and smaller models after all formats unless accuracy is a goal.
    """
    runs = [
        row for row in rows if row.state == "estimated" and row.best_split and row.best_split.runs
    ]
    runs.sort(
        key=lambda row: (
            accuracy_floor(objective) is not None and row.kind in SMALLER_MODELS,
            _limit_class(row, objective),
            _log_score(row, base, objective),
        )
    )
    recommended = next((row.technique for row in runs if _is_sure(row, objective)), None)
    places = {row.technique: number for number, row in enumerate(runs, 1)}
    rest = [row for row in rows if row.technique not in places]
    rest.sort(key=lambda row: PLACES.index(row.state))
    marks = _best_goals([*runs, *rest], objective)
    return [
        row.model_copy(
            update={
                "rank": places.get(row.technique),
                "best_at": marks.get(row.technique, []),
                "recommended": row.technique == recommended,
            }
        )
        for row in (*runs, *rest)
    ]


def accuracy_floor(objective: Objective) -> float | None:
    """The least share of accuracy by which techniques are ranked; None: accuracy is a goal."""
    if objective.limits.accuracy_recovery is not None:
        return objective.limits.accuracy_recovery
    return None if "accuracy" in objective.goals else FLOOR


def _is_sure(row: FormatAnswer, objective: Objective) -> bool:
    """True where a row may be recommended: its speed is measured and it ends in a bundle."""
    return (
        row.speed == "fitted"
        and row.set is not None
        and row.kind not in SMALLER_MODELS
        and _limit_class(row, objective) == 0
    )


def _limit_class(row: FormatAnswer, objective: Objective) -> int:
    """0 within the least share of accuracy, 1 where it is unknown, 2 beyond."""
    floor, retained = accuracy_floor(objective), row.accuracy.retained
    if floor is None:
        return 0
    if retained is None:
        return 1
    return 0 if retained.value >= floor else 2


def _log_score(row: FormatAnswer, base: Base, objective: Objective) -> float:
    """Logarithm of the weighed goals of its best split; less is better."""
    score, retained = 0.0, row.accuracy.retained
    for goal, weight in objective.goals.items():
        if goal == "accuracy":
            lost = 1.0 if retained is None else max(1 - retained.value, 0.0)
            score += weight * math.log(lost + AS_GOOD)
        elif row.best_split is not None:
            score += weight * _log_figure(row.best_split, goals_of("closed")[goal][0], base.best)
    return score


def _log_figure(split: SplitAnswer, name: str, base: SplitAnswer) -> float:
    # figures that goals are about have the names of their columns
    if split.figures.get(name) is None:
        name = UNPRICED.get(name, name)
    value = split.value(name) if name in FIGURES else None
    if value is None or value <= 0:
        return math.inf
    return _sign(name) * math.log(value / (base.value(name) or 1.0))


def _sign(name: str) -> int:
    return -1 if is_more_better(FIGURES[name]) else 1


def _best_goals(rows: Sequence[FormatAnswer], objective: Objective) -> dict[str, list[str]]:
    """By technique what it is the best at among those within the limit, of a measured speed."""
    able = [
        (row.technique, row.same_split, row.accuracy.retained)
        for row in rows
        if row.state == "estimated"
        and row.speed == "fitted"
        and row.kind not in SMALLER_MODELS
        and _limit_class(row, objective) == 0
    ]
    marks: dict[str, list[str]] = {}
    for goal, name in BEST_AT.items():
        values = {
            technique: value * _sign(name)
            for technique, split, _ in able
            if split is not None and (value := split.value(name)) is not None
        }
        if values:
            marks.setdefault(min(values, key=lambda key: values[key]), []).append(goal)
    accuracies = {name: (share.value, share.low) for name, split, share in able if split and share}
    if accuracies:
        marks.setdefault(max(accuracies, key=lambda key: accuracies[key]), []).append("accuracy")
    return marks
