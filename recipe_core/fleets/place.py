"""A fleet, placed: its program posed, solved, read, and its probability raised where asked."""

from __future__ import annotations

from dataclasses import replace

from recipe_core.base import budget
from recipe_core.base.units import chance_text
from recipe_core.fleets.answer import FleetAnswer
from recipe_core.fleets.columns import ANYWHERE, Sources
from recipe_core.fleets.conflict import find_conflict
from recipe_core.fleets.moves import Moves, plan_moves
from recipe_core.fleets.placing import FleetProblem, pose_fleet
from recipe_core.fleets.program import solve_fleet
from recipe_core.fleets.reading import read_solution
from recipe_core.fleets.request import FleetRequest
from recipe_core.fleets.solver import Watch

# Relative distance to the bound with which a search ends, and seconds after which it does.
GAP, SECONDS = 0.001, 60.0
# Confidences of each model that are tried until all of them together hold as surely as asked.
LADDER = (0.9, 0.95, 0.975, 0.99, 0.995)


def place_fleet(
    request: FleetRequest,
    *,
    month: float = 0.0,
    gap: float = GAP,
    seconds: float = SECONDS,
    watch: Watch | None = None,
    explain: bool = True,
    sources: Sources = ANYWHERE,
) -> FleetAnswer:
    """Return who runs where, on what part of which device, what is rented and what it costs.

    Args:
        request: the fleet.
        month: months of growth ahead of today for which it is placed.
        gap: relative distance of the objective to its bound with which the search ends.
        seconds: after which the best so far is the answer.
        watch: is told of each better fleet: its objective, the bound, and seconds.
        explain: whether a fleet that cannot be served in full says why.
        sources: of models and of corrections by one's own runs.

    Raises:
        InputError: naming the field that is wrong.
        Cancelled: where the caller has left.
    """

    def place(confidence: float | None) -> FleetAnswer:
        with budget.track_task(len(request.models) + len(request.jobs)):
            problem = pose_fleet(request, month=month, confidence=confidence, sources=sources)
        return solve_problem(problem, gap, seconds, watch, explain)

    answer, target = place(None), request.objective.confidence
    if target is None or not answer.complete:
        return answer
    for confidence in LADDER:
        if answer.probability >= target or not (raised := place(confidence)).complete:
            break
        answer = raised
    if answer.probability >= target:
        return answer
    note = (
        f"All limits hold together with {chance_text(answer.probability)}; {chance_text(target)} "
        "is asked for, which no layouts reach. Headroom holds limits while nodes are down."
    )
    return replace(answer, notes=(*answer.notes, note))


def solve_problem(
    problem: FleetProblem, gap: float, seconds: float, watch: Watch | None, explain: bool
) -> FleetAnswer:
    """Return the answer of a posed fleet; ``explain``: whether with why not all is served."""
    solution = solve_fleet(problem.instance, gap=gap, seconds=seconds, watch=watch)
    unserved = solution.unmet.any() or solution.undone.any()
    conflict = find_conflict(problem, solution) if unserved and explain else None
    return read_solution(problem, solution, conflict)


def move_fleet(answer: FleetAnswer, sources: Sources = ANYWHERE) -> Moves | None:
    """Return the steps from what the fleet says runs today to its answer; None where it says none.

    Raises:
        InputError: for a layout of today that holds no load within the limits of its model.
    """
    today = answer.request.today
    return plan_moves(today, answer, sources) if today else None
