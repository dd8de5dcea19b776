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


def find_conflict(
    problem: FleetProblem, instance: Instance, solution: Solution, seconds: float = SECONDS
) -> Conflict:
    """Return a smallest set of demands and bounds that cannot all hold, in words.

    Args:
        problem: the fleet.
        instance: its program, which serves not all.
        solution: the most that it serves.
        seconds: after which the set may not be the smallest.
    """
    started, proven = time.monotonic(), True
    groups = _list_groups(instance)
    served = {(option.job, option.owner) for option in instance.options}
    nowhere = [f"demand.{m}" for m in range(len(instance.demands)) if (False, m) not in served]
    nowhere += [f"work.{j}" for j in range(len(instance.works)) if (True, j) not in served]
    if nowhere:  # nothing else has to do with it
        return Conflict(tuple(map(_field, nowhere)), _nowhere_text(problem, nowhere))
    if not is_impossible(instance):
        return Conflict((), "Time ended the search before it said whether all can be served.")
    unmet = [m for m in range(len(instance.demands)) if solution.unmet[m].max() > 0]
    lacking = [f"demand.{m}" for m in unmet]
    lacking += [f"work.{j}" for j in range(len(instance.works)) if solution.undone[j] > 0]
    # demands that are served come last, so that the set is about what is not
    order = [group for group in groups if group not in lacking]
    order.sort(key=lambda group: (not group.startswith("demand"), not group.startswith("work")))
    relaxed: frozenset[str] = frozenset()
    for group in (*order, *lacking):
        if time.monotonic() - started > seconds:
            proven = False
            break
        without = relaxed | {group}
        if is_impossible(instance, without):
            relaxed = without
    members = [group for group in groups if group not in relaxed]
    return Conflict(tuple(_field(group) for group in members), _text(problem, members, proven))


def _list_groups(instance: Instance) -> list[str]:
    groups = [f"demand.{m}" for m in range(len(instance.demands))]
    groups += [f"headroom.{m}" for m, d in enumerate(instance.demands) if d.failures]
    groups += [f"work.{j}" for j in range(len(instance.works))]
    groups += [f"pool.{p}" for p in range(len(instance.supplies))]
    groups += [f"power.{p}" for p, s in enumerate(instance.supplies) if s.most_watts is not None]
    return [*groups, "budget"] if instance.most_usd is not None else groups


_FIELDS = {
    "demand": "models.{k}",
    "headroom": "models.{k}.headroom",
    "work": "jobs.{k}",
    "pool": "pools.{k}.nodes",
    "power": "pools.{k}.power_kw",
}


def _field(group: str) -> str:
    kind, _, number = group.partition(".")
    return _FIELDS[kind].format(k=number) if number else "objective.usd_per_month"


def _where_text(where: DataRules) -> str:
    """The places where a model's data may go, as the end of a phrase."""
    places = [" on premises"] if where.on_premises else []
    places += [f" in {' or '.join(where.regions)}"] if where.regions else []
    places += [f" on {' or '.join(where.pools)}"] if where.pools else []
    return "".join(places)


def _nowhere_text(problem: FleetProblem, groups: list[str]) -> str:
    """Say of models and jobs that hold no load anywhere why they do not, by pool."""
    sentences = []
    for group in groups:
        kind, _, number = group.partition(".")
        parts = problem.request.models if kind == "demand" else problem.request.jobs
        name = parts[int(number)].name
        pools: dict[str, list[str]] = {}
        for pool, reason in problem.reasons[name].items():
            pools.setdefault(reason, []).append(pool)
        reasons = "; ".join(f"{', '.join(names)}: {why}" for why, names in pools.items())
        sentences.append(f"No pool can serve {name}. {reasons}.")
    return " ".join(sentences)


def _text(problem: FleetProblem, members: list[str], proven: bool) -> str:
    """The set as one sentence."""
    request = problem.request
    words = []
    for group in members:
        kind, _, number = group.partition(".")
        k = int(number or 0)
        if kind == "demand":
            model = request.models[k]
            unit = "requests a second" if getattr(model.workload, "mode", "") == "open" else "users"
            words.append(
                f"{model.name}'s {model.peak:g} {unit} within its limits{_where_text(model.where)}"
            )
        elif kind == "headroom":
            headroom = request.headroom_of(request.models[k])
            words.append(
                f"{request.models[k].name}'s headroom for {headroom.failures} lost "
                f"{headroom.domain}{'s' if headroom.failures > 1 else ''}"
            )
        elif kind == "work":
            words.append(f"the job {request.jobs[k].name}")
        elif kind == "pool":
            pool = problem.pools[k]
            words.append(f"the {pool.devices} devices of {pool.pool.name}")
        elif kind == "power":
            words.append(f"the {request.pools[k].power_kw:g} kW of {request.pools[k].name}")
        else:
            words.append(f"the budget of ${request.objective.usd_per_month:,.0f} a month")
    if len(words) == 1:
        return f"Nothing serves {words[0]}, even if all else is left out."
    listed = ", ".join(words[:-1]) + (" and " if len(words) > 1 else "") + words[-1]
    tail = "" if proven else " Time ended the search: fewer of these may conflict already."
    return f"These do not go together: {listed}. Each is needed for the conflict.{tail}"
