"""From a request of either kind to its plan: the one place that knows which kinds there are."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from recipe_core.base.arrays import Int
from recipe_core.base.errors import RecipeError
from recipe_core.estimates.columns.columns import stack_columns
from recipe_core.estimates.columns.corrections import Corrections
from recipe_core.hardware.cluster import Cluster, is_own
from recipe_core.plans.confidence import limit_chances
from recipe_core.plans.kind import Kind
from recipe_core.plans.limits import LIMITS, bounded_codes, breaks_limit
from recipe_core.plans.plan import Plan
from recipe_core.plans.problem import Problem, resolve_problem
from recipe_core.plans.rank import nearest_row
from recipe_core.request.candidate import CandidateRequest
from recipe_core.request.edit import change
from recipe_core.request.objective import BY_ESTIMATE
from recipe_core.request.schema import PlanRequest


def problem_kind(problem: Problem[Any]) -> Kind:
    """The kind of a problem's workload. Only that kind's physics is imported."""
    if problem.request.workload.kind == "training":
        from recipe_core.plans.training_kind import TRAINING

        return TRAINING
    from recipe_core.plans.serving_kind import SERVING

    return SERVING


def search_plan(problem: Problem[Any], candidate: CandidateRequest | None = None) -> Plan:
    """The plan over every case of a problem that agrees with what ``candidate`` states.

    Without one, what all splits of a training plan share (framework, precision, offload) is the
    request's.
    """
    return Plan.of_search(problem_kind(problem), problem, candidate)


def plan_together(problems: Sequence[Problem[Any]]) -> tuple[Plan, Int]:
    """One plan over every case of several problems of one kind and objective.

    Returns:
        The plan, and the place of each row's problem.
    """
    kind = problem_kind(problems[0])
    blocks = [kind.search_cases(kind, problem, None)[1] for problem in problems]
    plan = Plan(kind, problems[0], [block for several in blocks for block in several])
    return plan, np.repeat(np.arange(len(problems)), [sum(map(len, several)) for several in blocks])


def plan_stated(problem: Problem[Any], candidate: CandidateRequest) -> Plan | None:
    """The plan of the one split that a candidate states in full; None where it does not."""
    return Plan.of_stated(problem_kind(problem), problem, candidate)


def find_stated_case(problem: Problem[Any], candidate: CandidateRequest) -> tuple[Any, Any] | None:
    """Setting and case of a candidate that states its split in full, else None."""
    kind = problem_kind(problem)
    return kind.find_case(kind, problem, candidate)


def plan_cases(problem: Problem[Any], setting: Any, cases: Any) -> Plan:
    kind = problem_kind(problem)
    return Plan(kind, problem, kind.judge_cases(kind, problem, setting, cases))


def count_keeping(plan: Plan, name: str, bound: float | None) -> int:
    """Return how many splits keep a bound on a metric (in its limit's unit) and all other limits.

    ``bound``: None is no bound. Where the load is searched it follows the limits, so that another
    bound than the plan's is planned anew.
    """
    field, objective = plan.measures[name].limit or "", plan.request.objective
    if plan.request.load_searched:
        if bound == getattr(objective.limits, field):
            return len(plan.order)
        return len(plan.replan(change(plan.request, {f"objective.limits.{field}": bound})).order)
    limits = objective.limits.model_copy(update={field: bound})
    keep = plan.runs.copy()
    for code in bounded_codes(limits):
        broken = [breaks_limit(LIMITS[code], block, limits) for block in plan.blocks]
        keep &= ~np.concatenate(broken)
    if not objective.judges_by_estimate and bounded_codes(limits):
        chances = [limit_chances(block, limits) for block in plan.blocks]
        with np.errstate(invalid="ignore"):
            keep &= np.concatenate(chances) >= objective.required_confidence
    return int(keep.sum())


def plan_splits(
    request: PlanRequest, *, folders: bool = True, corrections: Corrections | None = None
) -> Plan:
    """Every split of the request's hardware, judged and ranked.

    Of ``request.candidate`` only what all splits of a training plan share counts. ``folders``:
    whether a model may be named by a path on this machine. ``corrections``: what runs of one's own
    teach.

    Raises:
        InputError: for unknown names or what this version does not model.
        RecipeError: when there is no split at all.
    """
    problem = resolve_problem(request, folders=folders, corrections=corrections)
    return _require_rows(search_plan(problem))


def plan_candidate(
    request: PlanRequest, *, folders: bool = True, corrections: Corrections | None = None
) -> tuple[Plan, int]:
    """The plan narrowed to what ``request.candidate`` states, and its best row.

    The nearest when none is feasible.

    Raises:
        InputError: as ``plan_splits``.
        RecipeError: when no split agrees with the candidate.
    """
    problem = resolve_problem(request, folders=folders, corrections=corrections)
    alone = plan_stated(problem, problem.candidate)
    if alone is not None:
        return alone, 0
    narrowed = _require_rows(search_plan(problem, problem.candidate))
    row = nearest_row(narrowed) if narrowed.best_row is None else narrowed.best_row
    assert row is not None  # noqa: S101 - a plan with rows has a best or a nearest one
    return narrowed, row


def plan_estimated(
    request: PlanRequest, *, folders: bool = True, corrections: Corrections | None = None
) -> tuple[Plan, int]:
    """As ``plan_candidate``, judged as an estimate is (``judge_estimated``)."""
    return plan_candidate(judge_estimated(request), folders=folders, corrections=corrections)


def judge_estimated(request: PlanRequest) -> PlanRequest:
    """The request as an estimate takes it.

    An estimate under a stated load says what is expected: whether that keeps the limits is its own
    to say, unless a confidence is asked for.
    """
    objective = request.objective
    if objective.confidence is not None or request.load_searched:
        return request
    by_estimate = objective.model_copy(update={"confidence": BY_ESTIMATE})
    return request.model_copy(update={"objective": by_estimate})


def _require_rows(plan: Plan) -> Plan:
    if not len(plan):
        raise RecipeError(
            f"no layout of {plan.problem.cluster.devices} devices agrees with the candidate.",
            field="candidate",
            hint="Leave TP, PP, CP, DP or EP out, or add devices.",
        )
    return plan


# Many at once


def _estimate_json(plan: Plan, row: int) -> dict[str, Any]:
    answer: dict[str, Any] = plan.estimate(row).to_json()
    return answer


def estimate_batch(
    values: Iterable[Any],
    corrections: Corrections | None = None,
    checkpoint_json: Callable[[Plan, int], dict[str, Any]] = _estimate_json,
) -> list[dict[str, Any]]:
    """One estimate a request (plain values), in order.

    A bad request answers its error in its place. ``checkpoint_json`` writes those that may need a
    checkpoint made.

    Requests that share a setting (model, device, engine, formats …) and limits are columns of one
    estimate.
    """
    answers: dict[int, dict[str, Any]] = {}
    groups: defaultdict[str, list[tuple[int, Problem[Any], Any, Any]]] = defaultdict(list)
    for n, value in enumerate(values):
        try:
            if isinstance(value, RecipeError):  # a line that was no document
                raise value
            request = judge_estimated(PlanRequest.parse(value))
            problem = resolve_problem(request, corrections=corrections)
            pair = find_stated_case(problem, problem.candidate)
            if pair is None or request.options.compression is not None:
                narrowed, row = plan_candidate(request, corrections=corrections)
                answers[n] = checkpoint_json(narrowed, row)
            else:
                groups[shared_key(problem, pair[0])].append((n, problem, *pair))
        except RecipeError as error:
            answers[n] = error.to_json()
    for members in groups.values():
        _, problem, setting, _ = members[0]
        judged = plan_cases(problem, setting, stack_columns([cases for *_, cases in members]))
        estimates = judged.estimates(range(len(members)))
        answers |= {
            n: estimate.to_json() for (n, _, _, _), estimate in zip(members, estimates, strict=True)
        }
    return [answers[n] for n in sorted(answers)]


def shared_key(problem: Problem[Any], setting: Any) -> str:
    """Say what requests must share to be columns of one estimate.

    All of the setting but counts, and the limits.
    """
    limits = problem.request.objective.limits.model_dump(mode="json")
    model = [setting.model.name, setting.model.digest]
    place = _cluster_key(setting.cluster)
    if problem.request.is_training:
        lengths = {"sequence_length", "global_batch", "tokens"}
        workload = problem.workload.model_dump(mode="json", exclude=lengths)
        return json.dumps([*model, setting.engine, setting.precision, place, workload, limits])
    workload = {
        "spread": (problem.workload.input_spread, problem.workload.output_spread),
        "shapes": [hash(problem.workload.relative_lengths(side)) for side in ("input", "output")],
        "searched": problem.request.load_searched,
        "media": [(m.tower.modality, m.items, m.tokens) for m in setting.media],
    }
    memory = setting.engine.memory
    started = [memory.graphs is None, memory.encoder is not None and memory.encoder.sharded]
    engine = [setting.engine.name, setting.engine.as_of, setting.engine.chunked_prefill, *started]
    formats = [*engine, setting.mode, setting.weight_dtype, setting.kv_dtype, setting.judged_on]
    formats += [str(setting.making), *map(str, setting.compressed)]
    # either all columns of an estimate have two pools or none has
    pools = problem.candidate.prefill is not None
    return json.dumps([*model, *formats, place, workload, limits, pools])


def _cluster_key(cluster: Cluster) -> list[Any]:
    device = cluster.device
    name = device.digest if is_own(device) else device.name
    links = [cluster.fabric.name, cluster.network.name]
    price = (cluster.usd_per_device_hour, cluster.price_basis, cluster.price_note)
    return [name, *links, *price]
