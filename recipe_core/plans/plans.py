"""From a request of either kind to its plan: the one place that knows which kinds there are."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from functools import cache
from typing import Any

from recipe_core.base.errors import RecipeError
from recipe_core.estimates.columns.corrections import Corrections
from recipe_core.hardware.cluster import Cluster, is_own
from recipe_core.plans.plan import Plan
from recipe_core.plans.problem import Problem, resolve
from recipe_core.request.schema import PlanRequest


@cache
def plan_type(kind: str) -> type[Plan]:
    """The class of plans of a kind of workload. Only that kind's physics is imported."""
    if kind == "training":
        from recipe_core.plans.training_plan import TrainingPlan

        return TrainingPlan
    from recipe_core.plans.serving_plan import ServingPlan

    return ServingPlan


def plan(
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
    problem = resolve(request, folders=folders, corrections=corrections)
    return _some(plan_type(request.workload.kind).search(problem))


def plan_candidate(
    request: PlanRequest, *, folders: bool = True, corrections: Corrections | None = None
) -> tuple[Plan, int]:
    """The plan narrowed to what ``request.candidate`` states, and its best row.

    The nearest when none is feasible.

    Raises:
        InputError: as ``plan``.
        RecipeError: when no split agrees with the candidate.
    """
    problem = resolve(request, folders=folders, corrections=corrections)
    kind = plan_type(request.workload.kind)
    stated = kind.stated(problem, problem.candidate)
    if stated is not None:
        return stated, 0
    narrowed = _some(kind.search(problem, problem.candidate))
    row = narrowed.nearest_row() if narrowed.best_row is None else narrowed.best_row
    assert row is not None  # noqa: S101 - a plan with rows has a best or a nearest one
    return narrowed, row


def _some(plan: Plan) -> Plan:
    if not len(plan):
        raise RecipeError(
            f"no split of {plan.problem.cluster.devices} devices agrees with the candidate.",
            field="candidate",
            hint="Leave tp, pp, cp, dp or ep out, or add devices.",
        )
    return plan


# Many at once


def estimate_batch(
    values: Iterable[Any], corrections: Corrections | None = None
) -> list[dict[str, Any]]:
    """One estimate a request (plain values), in order.

    A bad request answers its error in its place.

    Requests that share a setting (model, device, engine, formats …) and limits are columns of one
    estimate.
    """
    answers: dict[int, dict[str, Any]] = {}
    groups: defaultdict[str, list[tuple[int, Problem[Any], Any, Any]]] = defaultdict(list)
    for n, value in enumerate(values):
        try:
            if isinstance(value, RecipeError):  # a line that was no document
                raise value
            request = PlanRequest.parse(value)
            problem = resolve(request, corrections=corrections)
            pair = plan_type(request.workload.kind).one_case(problem, problem.candidate)
            if pair is None or _makes_checkpoint(request):
                narrowed, row = plan_candidate(request, corrections=corrections)
                answers[n] = narrowed.estimate(row).to_json()
            else:
                groups[shared_key(problem, pair[0])].append((n, problem, *pair))
        except RecipeError as error:
            answers[n] = error.to_json()
    for members in groups.values():
        _, problem, setting, _ = members[0]
        kind = plan_type(problem.request.workload.kind)
        judged = kind.of(problem, setting, kind.stack([cases for _, _, _, cases in members]))
        estimates = judged.estimates(range(len(members)))
        answers |= {
            n: estimate.to_json() for (n, _, _, _), estimate in zip(members, estimates, strict=True)
        }
    return [answers[n] for n in sorted(answers)]


def _makes_checkpoint(request: PlanRequest) -> bool:
    """Whether a row's estimate says what a checkpoint takes that it needs made."""
    return request.options.compression is not None


def shared_key(problem: Problem[Any], setting: Any) -> str:
    """What requests must share to be columns of one estimate.

    All of the setting but counts, and the limits.
    """
    limits = problem.request.objective.limits.model_dump(mode="json")
    model = [setting.model.name, setting.model.digest]
    place = _place(setting.cluster)
    if problem.request.is_training:
        lengths = {"sequence_length", "global_batch", "tokens"}
        workload = problem.workload.model_dump(mode="json", exclude=lengths)
        return json.dumps([*model, setting.engine, setting.precision, place, workload, limits])
    workload = {
        "spread": (problem.workload.input_spread, problem.workload.output_spread),
        "searched": problem.request.load_searched,
        "media": [(m.tower.modality, m.items, m.tokens) for m in setting.media],
    }
    memory = setting.engine.memory
    started = [memory.graphs is None, memory.encoder is not None and memory.encoder.sharded]
    engine = [setting.engine.name, setting.engine.as_of, setting.engine.chunked_prefill, *started]
    formats = [*engine, setting.mode, setting.weight_dtype, setting.kv_dtype, setting.judged_on]
    formats += [str(setting.made), *map(str, setting.compressed)]
    # either all columns of an estimate have two pools or none has
    pools = problem.candidate.prefill is not None
    return json.dumps([*model, *formats, place, workload, limits, pools])


def _place(cluster: Cluster) -> list[Any]:
    device = cluster.device
    name = device.digest if is_own(device) else device.name
    links = [cluster.fabric.name, cluster.network.name]
    price = (cluster.usd_per_device_hour, cluster.price_basis, cluster.price_note)
    return [name, *links, *price]
