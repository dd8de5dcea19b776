"""Independent copies of a split: what a policy of scaling counts, and one of them alone.

A replica is one server: a data-parallel replica of a split. What cannot be divided is one replica
as a whole: data-parallel ranks that share experts, pools of prefill and decode with their copies, a
training job. Simulations, sizes, recipes and targets all count these.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from recipe_core.plans.plan import Plan
from recipe_core.plans.plans import plan_stated
from recipe_core.plans.splits import row_request
from recipe_core.request.schema import PlanRequest
from recipe_core.request.serving_workload import LOADS, ServingWorkload

# The limit that all replicas keep together.
THROUGHPUT = "objective.limits.output_tokens_per_s_at_least"


@dataclass(frozen=True, slots=True)
class Replicas:
    """The replicas of a row.

    count: how many of them there are. devices: of each. nodes: that each lies on.
    """

    count: int
    devices: int
    nodes: int


def replicas_of(plan: Plan, row: int) -> Replicas:
    devices, (block, i) = int(plan.columns["gpus"][row]), plan.at(row)
    together = plan.kind == "training" or bool(block.cases.disaggregated[i])
    count = 1 if together or int(plan.columns["ep"][row]) > 1 else int(plan.columns["dp"][row])
    devices //= count
    return Replicas(count, devices, -(-devices // plan.setting(row).cluster.per_node))


def one_replica(plan: Plan, row: int) -> tuple[Plan, int]:
    """The plan of one replica of a row under its share of the load, and its row there.

    The plan itself where the row is one replica.
    """
    if replicas_of(plan, row).count == 1:
        return plan, row
    request = replica_request(plan, row)
    problem = replace(
        plan.problem,
        request=request,
        workload=request.workload,
        clusters=(plan.setting(row).cluster,),
    )
    alone = plan_stated(problem, problem.candidate)
    assert alone is not None  # noqa: S101 - a plan's own candidate leaves nothing open
    return alone, 0


def replica_request(plan: Plan, row: int) -> PlanRequest:
    """The request of one replica of a row: its split, its share of the load.

    A load that is searched stays so: it is then that of one replica.
    """
    request = row_request(plan, row)
    count = replicas_of(plan, row).count
    if plan.request.load_searched:
        request = request.model_copy(update={"workload": plan.request.workload})
    if count == 1:
        return request
    assert request.candidate is not None  # noqa: S101 - a row's request has its split
    alone = request.candidate.model_copy(update={"dp": 1})
    return with_share(request.model_copy(update={"candidate": alone}), shared_load(request, count))


def with_share(request: PlanRequest, share: Mapping[str, Any]) -> PlanRequest:
    """The request with one replica's part of what they share, as ``shared_load`` has it."""
    workload, objective = request.workload, request.objective
    for field, part in share.items():
        name = field.rpartition(".")[2]
        if field == THROUGHPUT:
            limits = objective.limits.model_copy(update={name: part})
            objective = objective.model_copy(update={"limits": limits})
        else:
            workload = workload.model_copy(update={name: part})
    return request.model_copy(update={"workload": workload, "objective": objective})


def shared_load(request: PlanRequest, count: int) -> dict[str, Any]:
    """Return what of a request ``count`` replicas share alike, by dotted field: the part of each.

    Whole requests are rounded down, so that a replica keeps the limits that all of them keep.
    """
    workload, out = request.workload, dict[str, Any]()
    if count == 1:
        return out
    if isinstance(workload, ServingWorkload):
        name = LOADS[workload.mode]
        load = getattr(workload, name)
        if load is not None:
            part = load / count if workload.mode == "open" else max(load // count, 1)
            out[f"workload.{name}"] = part
    least_rate = request.objective.limits.output_tokens_per_s_at_least
    if least_rate is not None:
        out[THROUGHPUT] = least_rate / count
    return out
