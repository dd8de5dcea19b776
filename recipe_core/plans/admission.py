"""The number of requests an engine admits at once: as many as the limits on time hold for.

An engine's own limit is one of memory (256 or 1,024 requests): it lets in more than keep a limit on
time, and each then waits longer for every token. What it is told instead is the largest load at
which the layout keeps the limits; requests beyond wait in front of it. Where loads are searched,
the search has found it for every row; else it is found for the row that is built.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from recipe_core.plans.plan import Plan
from recipe_core.plans.plans import plan_stated
from recipe_core.plans.serving_columns import admit_requests
from recipe_core.plans.serving_search import find_kept_load
from recipe_core.plans.serving_settings import admits_by_limits
from recipe_core.plans.splits import row_request
from recipe_core.request.candidate import CandidateRequest

# How far above its mean the number of requests in flight of Poisson arrivals goes, in standard
# deviations.
PEAK = 3.0


def admit_row(plan: Plan, row: int) -> tuple[Plan, int]:
    """The plan of a row whose engine admits what its limits hold for, and its row there.

    The plan itself where nothing bounds a time, the request says otherwise, the load was searched
    (and the number with it), or no number keeps all that the row keeps.
    """
    request = plan.request
    if plan.kind == "training" or request.load_searched or not plan.feasible[row]:
        return plan, row
    if not admits_by_limits(request, request.candidate):
        return plan, row
    largest = find_kept_load(plan, row)
    if largest is None:
        return plan, row
    block, i = plan.at(row)
    estimates, place = block.detail(i)
    case = block.cases.take(np.array([i]))
    load = case.load[0]
    if plan.problem.workload.mode == "open":  # arrivals come in bursts
        resident = estimates.serving.resident[place]
        load = (resident + PEAK * np.sqrt(resident)) * case.replicas[0]
    admitted = admit_requests(
        replace(case, load=np.array([max(largest, load)])), np.ones(1, dtype=np.bool_)
    )
    number = int(admitted.max_num_seqs[0])
    return _with_limit(plan, row, number)


def _with_limit(plan: Plan, row: int, number: int) -> tuple[Plan, int]:
    """The plan of a row alone with so many requests admitted, where it keeps what the row keeps."""
    split = {**plan.candidate(row), "max_num_seqs": number}
    candidate = CandidateRequest.model_validate(split)
    request = row_request(plan, row).model_copy(update={"candidate": candidate})
    clusters = (plan.setting(row).cluster,)
    problem = replace(plan.problem, request=request, workload=request.workload, clusters=clusters)
    alone = plan_stated(problem, candidate)
    return (alone, 0) if alone is not None and alone.feasible[0] else (plan, row)
