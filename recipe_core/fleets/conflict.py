"""The reason that not all is served: a smallest set of demands and bounds that conflict.

A deletion filter (Chinneck, Dravnieks 1991, "Locating minimal infeasible constraint sets in linear
programs", ORSA Journal on Computing 3): what can be left out while the rest still conflicts is left
out; each member of what stays is needed for the conflict.
"""

from __future__ import annotations

import time

from recipe_core.fleets.answer import Conflict
from recipe_core.fleets.instance import Instance, Solution
from recipe_core.fleets.placing import FleetProblem
from recipe_core.fleets.program import is_impossible
from recipe_core.fleets.request import DataRules

# Seconds after which the set is as small as it got.
SECONDS = 30.0
# A group of rows of the program: its kind, and the number of what it is of.
Group = tuple[str, int]
_RANKS = {"demand": 0, "work": 1}


def find_conflict(problem: FleetProblem, solution: Solution, seconds: float = SECONDS) -> Conflict:
    """Return a smallest set of demands and bounds that cannot all hold, in words.

    Args:
        problem: the fleet, not all of which can be served.
        solution: the most that is.
        seconds: after which the set may not be the smallest.
    """
    instance = problem.instance
    served = {("work" if option.job else "demand", option.owner) for option in instance.options}
    groups = _list_groups(instance)
    nowhere = [group for group in groups if group[0] in ("demand", "work") if group not in served]
    if nowhere:  # nothing else has to do with it
        members = [_name_group(problem, *group) for group in nowhere]
        sentences = [_say_nowhere(problem, *group) for group in nowhere]
        return Conflict(tuple(field for field, _ in members), " ".join(sentences))
    if not is_impossible(instance):
        return Conflict((), "Time ended the search before it said whether all can be served.")
    lacking = {("demand", m) for m in range(len(instance.demands)) if solution.unmet[m].any()}
    lacking |= {("work", j) for j in range(len(instance.works)) if solution.undone[j] > 0}
    ends_at, relaxed = time.monotonic() + seconds, frozenset[str]()
    smallest = "Each is needed for the conflict."
    # what is served is left out first, and other demands, so that the set is about what is not
    for group in sorted(groups, key=lambda group: (group in lacking, _RANKS.get(group[0], 2))):
        if time.monotonic() > ends_at:
            smallest = "Time ended the search: fewer of these may conflict already."
            break
        without = relaxed | {_name(group)}
        relaxed = without if is_impossible(instance, without) else relaxed
    members = [_name_group(problem, *group) for group in groups if _name(group) not in relaxed]
    fields, words = zip(*members, strict=True)
    if len(words) == 1:
        return Conflict(fields, f"Nothing serves {words[0]}, even if all else is left out.")
    listed = f"{', '.join(words[:-1])} and {words[-1]}"
    return Conflict(fields, f"These do not go together: {listed}. {smallest}")


def _list_groups(instance: Instance) -> list[Group]:
    """Groups of rows that may conflict, as the program names them."""
    parts = {
        "demand": [True for _ in instance.demands],
        "headroom": [demand.failures > 0 for demand in instance.demands],
        "work": [True for _ in instance.works],
        "pool": [True for _ in instance.supplies],
        "power": [supply.most_watts is not None for supply in instance.supplies],
        "budget": [instance.most_usd is not None],
    }
    return [(kind, k) for kind, bound in parts.items() for k, binds in enumerate(bound) if binds]


def _name(group: Group) -> str:
    return "budget" if group[0] == "budget" else f"{group[0]}.{group[1]}"


def _name_group(problem: FleetProblem, kind: str, k: int) -> tuple[str, str]:
    """The field of a group in the fleet's document, and words for it."""
    request = problem.request
    if kind == "demand":
        model = request.models[k]
        unit = "requests a second" if model.mode == "open" else "users"
        where = _say_where(model.where)
        return f"models.{k}", f"{model.name}'s {model.peak:g} {unit} within its limits{where}"
    if kind == "headroom":
        model, headroom = request.models[k], request.headroom_of(request.models[k])
        lost = f"{headroom.failures} lost {headroom.domain}{'s' if headroom.failures > 1 else ''}"
        return f"models.{k}.headroom", f"{model.name}'s headroom for {lost}"
    if kind == "work":
        return f"jobs.{k}", f"the job {request.jobs[k].name}"
    if kind == "budget":
        words = f"the budget of ${request.objective.usd_per_month:,.0f} a month"
        return "objective.usd_per_month", words
    pool = request.pools[k]
    if kind == "power":
        return f"pools.{k}.power_kw", f"the {pool.power_kw:g} kW of {pool.name}"
    return f"pools.{k}.nodes", f"the {problem.pools[k].devices} devices of {pool.name}"


def _say_where(where: DataRules) -> str:
    """The places where a model's data may go, as the end of a phrase."""
    places = [" on premises"] if where.on_premises else []
    places += [f" in {' or '.join(where.regions)}"] if where.regions else []
    places += [f" on {' or '.join(where.pools)}"] if where.pools else []
    return "".join(places)


def _say_nowhere(problem: FleetProblem, kind: str, k: int) -> str:
    """Say of a model or job that holds no load anywhere why it does not, by pool."""
    name = (problem.request.models if kind == "demand" else problem.request.jobs)[k].name
    pools: dict[str, list[str]] = {}
    for pool, reason in problem.reasons[name].items():
        pools.setdefault(reason, []).append(pool)
    reasons = "; ".join(f"{', '.join(names)}: {why}" for why, names in pools.items())
    return f"No pool can serve {name}. {reasons}."
