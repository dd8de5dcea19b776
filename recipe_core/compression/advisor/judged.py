"""The base, and the base with a change: on its own split, and on the split that is best for it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from recipe_core.base.errors import InputError, RecipeError
from recipe_core.compression.advisor.change import Change
from recipe_core.compression.advisor.figures import Split, split_figures
from recipe_core.estimates.columns.corrections import Corrections
from recipe_core.estimates.columns.serving import WIDE, Cases, Setting
from recipe_core.models.catalog import catalog_model
from recipe_core.models.variants import model_variants
from recipe_core.plans.plan import Plan
from recipe_core.plans.plans import plan_cases, plan_stated, search_plan
from recipe_core.plans.problem import Problem, ServingProblem, resolve_problem
from recipe_core.plans.rank import nearest_row
from recipe_core.plans.serving_candidates import serving_setting
from recipe_core.request.candidate import CandidateRequest
from recipe_core.request.objective import Objective
from recipe_core.request.schema import PlanRequest


@dataclass(frozen=True)
class Base:
    """What formats are compared with: the model in its own format.

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
    narrowed = plan.request_of(row).model_copy(update={"candidate": None})
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
    """What a change does on the base's split, and on the best for it (None: no split runs)."""

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
