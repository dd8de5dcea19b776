"""From a request to its answer over time: every policy searched, simulated and held to bounds.

Where the request states ``options.scaling``, exactly that is simulated; where it does not, the
parameters of every policy are searched (module ``search``) over the hardest day, but for a fixed
number, which is found (module ``bounds``). The best few are then simulated over the whole time, and
the cheapest that reaches the wanted share is the policy's answer. Its hardest day is repeated under
other chances (starts, failures, reclaims) and with quick and slow starts, which gives the share its
range. The best policy's worst hour is looked at request by request (module ``simulated``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from recipe_core.base import budget
from recipe_core.base.errors import NoAnswer
from recipe_core.base.units import share_text
from recipe_core.estimates.columns.corrections import Corrections
from recipe_core.request.scaling import POLICIES, Policy, Scaling, policies_named
from recipe_core.request.schema import PlanRequest
from recipe_core.scaling.bounds import always_peak, clairvoyant
from recipe_core.scaling.fleet import StartTime
from recipe_core.scaling.parameter_spaces import space_of
from recipe_core.scaling.policies.rows import policy_row
from recipe_core.scaling.result import (
    Bounds,
    Checked,
    OverTimeAnswer,
    PolicyAnswer,
    Saving,
    ServiceAnswer,
    StartAnswer,
    StartPhase,
)
from recipe_core.scaling.scenario import Deployment, prepare_deployment
from recipe_core.scaling.search import ROUNDS, search_policies
from recipe_core.scaling.simulated import Simulation, check_worst_hour
from recipe_core.scaling.summary import Replays, compare_cost, load_answer, policy_answer
from recipe_core.scaling.traces.trace import Rates, Trace

# Of the repetitions of a day; all else is of the first.
SEEDS = (0, 1, 2)
# Days of the load over which parameters are searched: that with the busiest interval.
SEARCHED_DAYS = 1.0
# Days that are simulated again under other chances.
RANGE_DAYS = 1.0
# Difference between the shares by requests and by flows that is worth a note.
FAR = 0.05
# Simulations of the best policies: the whole time, and a day by seeds.
REPLAYS = 1 + len(SEEDS)


def simulate_over_time(
    request: PlanRequest,
    *,
    trace: Trace | Rates | None = None,
    policies: Sequence[str] | None = None,
    days: float | None = None,
    folders: bool = True,
    corrections: Corrections | None = None,
) -> OverTimeAnswer:
    """Return what each policy of scaling reaches over the time of a load, and what it costs.

    Progress goes to the watcher of ``base/progress``; the calculation ends where the budget of
    ``base/budget`` ends it.

    Args:
        request: of serving, with limits on time.
        trace: the load in place of ``workload.over_time``.
        policies: names of policies to compare. Left out: exactly ``options.scaling`` where the
            request states it, else all. The stated one keeps its parameters, others are searched.
        days: time that is looked at; that of the load unless given.
        folders: whether the model may be named by a path on this machine.
        corrections: what runs of one's own teach.

    Raises:
        InputError: for a request without a load over time or a limit on time, unknown names.
        NoAnswer: where no split can run within the limits, and for a schedule of a flat load.
    """
    names = policies_named(policies)
    deployment = prepare_deployment(
        request, trace=trace, days=days, folders=folders, corrections=corrections
    )
    scaling = request.options.scaling
    searched = _policies_to_search(scaling, names)
    rounds = len(ROUNDS) if searched else 0
    with budget.track_task(2 + rounds + REPLAYS + 1):
        simulation = Simulation.of(deployment)
        budget.count_step()
        always, bounds = _simulate_bounds(simulation, deployment)
        budget.count_step()
        finalists = _search_finalists(simulation, searched, always, deployment.attainment)
        if scaling is not None and (names is None or scaling.policy in names):
            finalists[scaling.policy] = [scaling]
        if not finalists:
            raise NoAnswer(
                "schedule: every hour needs the same, so there is nothing to schedule.",
                field="policies",
                hint="Compare the policy fixed, or leave policies out.",
            )
        replays = _replay_finalists(simulation, finalists, deployment.attainment)
        answer = _build_over_time_answer(deployment, simulation, replays, bounds)
        budget.count_step()
    return answer


def _policies_to_search(scaling: Scaling | None, names: Sequence[Policy] | None) -> list[Policy]:
    if names is None:
        return [] if scaling is not None else list(POLICIES)
    return [name for name in names if scaling is None or name != scaling.policy]


def _search_finalists(
    simulation: Simulation, policies: Sequence[Policy], always: Scaling, attainment: float
) -> dict[Policy, list[Scaling]]:
    """The best few parameters of each policy; policies that are nothing of their own are left out.

    As a schedule is where every hour needs the same. The fewest replicas that are always enough are
    known.
    """
    if not policies:
        return {}
    spaces = [space_of(policy, simulation.need) for policy in policies if policy != always.policy]
    best = search_policies(spaces, simulation.part(SEARCHED_DAYS).outcomes, attainment)
    fixed = {always.policy: [always]} if always.policy in policies else {}
    return fixed | {
        policy: [trial.scaling for trial in tried] for policy, tried in best.items() if tried
    }


def _replay_finalists(
    simulation: Simulation, finalists: Mapping[Policy, Sequence[Scaling]], attainment: float
) -> dict[Policy, tuple[Scaling, Replays]]:
    """The best of each policy's finalists over the whole time, with its range."""
    all_scalings = [scaling for scalings in finalists.values() for scaling in scalings]
    best: dict[Policy, tuple[Scaling, Replays]] = {}
    for scaling, outcome in zip(all_scalings, simulation.outcomes(all_scalings), strict=True):
        replay, best_pair = Replays(outcome), best.get(scaling.policy)
        if best_pair is None or replay.order(attainment) < best_pair[1].order(attainment):
            best[scaling.policy] = (scaling, replay)
    budget.count_step()
    return _with_ranges(simulation, best)


def _with_ranges(
    simulation: Simulation, best: Mapping[Policy, tuple[Scaling, Replays]]
) -> dict[Policy, tuple[Scaling, Replays]]:
    """The best ones with what chances make of their hardest day."""
    day = simulation.part(RANGE_DAYS)
    scalings = [scaling for scaling, _ in best.values()]
    usual, count = day.fleet.start, len(scalings)
    starts = [usual, *(StartTime(time_s, time_s, time_s) for time_s in (usual.low_s, usual.high_s))]
    first, *more_seeds = SEEDS
    # Quick and slow starts meet the arrivals of the first seed, so that they are columns of it.
    outcomes = day.outcomes(
        scalings * len(starts), seed=first, starts=[start for start in starts for _ in scalings]
    )
    runs = [outcomes[at : at + count] for at in range(0, len(outcomes), count)]
    budget.count_step()
    for seed in more_seeds:
        runs.append(day.outcomes(scalings, seed=seed))
        budget.count_step()
    columns = zip(*runs, strict=True)
    return {
        policy: (scaling, replace(replays, day=column[0], reruns=column[1:]))
        for (policy, (scaling, replays)), column in zip(best.items(), columns, strict=True)
    }


def _simulate_bounds(simulation: Simulation, deployment: Deployment) -> tuple[Scaling, Bounds]:
    """Return the fixed number that is always enough, and both bounds."""
    fleet, load, attainment = simulation.fleet, simulation.load, deployment.attainment
    always, peak = always_peak(fleet, load, simulation.outcomes, attainment)
    clairvoyant_outcome = clairvoyant(fleet, load, attainment, interval_s=simulation.interval_s)
    return always, Bounds(
        always_peak=policy_answer("always_peak", always, Replays(peak), fleet, attainment),
        clairvoyant=policy_answer(
            "clairvoyant", None, Replays(clairvoyant_outcome), fleet, attainment
        ),
    )


def _build_over_time_answer(
    deployment: Deployment,
    simulation: Simulation,
    replays: Mapping[Policy, tuple[Scaling, Replays]],
    bounds: Bounds,
) -> OverTimeAnswer:
    fleet, attainment = simulation.fleet, deployment.attainment
    objective = deployment.request.objective
    confidence = 0.0 if objective.judges_by_estimate else objective.required_confidence
    ordered = sorted(replays.values(), key=lambda pair: pair[1].order(attainment, confidence))
    best = _pick_scaling_policy(ordered, attainment)
    policies = []
    for scaling, replay in ordered:
        closer = None
        if scaling.policy == best or len(ordered) == 1:
            closer = check_worst_hour(simulation, scaling, replay.outcome)
        policies.append(policy_answer(scaling.policy, scaling, replay, fleet, attainment, closer))
    bounds = Bounds(
        always_peak=_compare_bounds(bounds.always_peak, bounds),
        clairvoyant=_compare_bounds(bounds.clairvoyant, bounds),
    )
    return OverTimeAnswer(
        candidate=deployment.candidate,
        per_replica=deployment.per_replica,
        engine=str(deployment.candidate["engine"]),
        devices_per_replica=fleet.devices,
        usd_per_replica_hour=fleet.usd_per_hour,
        price_basis=deployment.price_basis,
        service=ServiceAnswer(
            requests_per_s=simulation.need.capacity_per_s, slots=fleet.service.rules.slots
        ),
        start=_build_start_answer(deployment),
        load=load_answer(simulation.load),
        limits=dict(fleet.limits_s),
        attainment_wanted=attainment,
        confidence_wanted=confidence,
        best=best,
        policies=tuple(_compare_bounds(policy, bounds) for policy in policies),
        bounds=bounds,
        kv_tiers=_kv_tiers_json(deployment),
        notes=tuple(_over_time_notes(deployment, policies, best)),
    )


def _pick_scaling_policy(
    ordered: Sequence[tuple[Scaling, Replays]], attainment: float
) -> Policy | None:
    """The cheapest policy that reaches the wanted share and that a bundle can hold."""
    for scaling, replay in ordered:
        if replay.attainment >= attainment and policy_row(scaling.policy).targets:
            return scaling.policy
    return None


def _compare_bounds(policy: PolicyAnswer, bounds: Bounds) -> PolicyAnswer:
    ratios = compare_cost(policy, bounds.always_peak, bounds.clairvoyant)
    return policy.model_copy(update={"against": ratios})


def _kv_tiers_json(deployment: Deployment) -> tuple[dict[str, Any], ...] | None:
    """Return what each tier below the devices' cache adds; None where the request has none."""
    tiers = deployment.plan.estimate(deployment.row).kv_tiers
    return tuple(tier.to_json() for tier in tiers) if isinstance(tiers, list) else None


def _build_start_answer(deployment: Deployment) -> StartAnswer:
    start = deployment.start
    return StartAnswer(
        seconds=start.seconds,
        low_s=start.low_s,
        high_s=start.high_s,
        phases=tuple(
            StartPhase(
                name=phase.name,
                seconds=phase.seconds,
                low_s=phase.low_s,
                high_s=phase.high_s,
                basis=phase.basis,
            )
            for phase in start.phases
        ),
        savings=tuple(
            Saving(change=saving.change, text=saving.text, seconds=saving.seconds_saved)
            for saving in start.savings
        ),
    )


def _over_time_notes(
    deployment: Deployment, policies: Sequence[PolicyAnswer], best: Policy | None
) -> list[str]:
    notes = list(deployment.notes)
    best_policy = next((policy for policy in policies if policy.name == best), None)
    for policy in policies:
        if policy.checked is not None:
            notes += _worst_hour_notes(policy.name, policy.checked)
    if best_policy is not None and best_policy.scaling is not None:
        notes += _gateway_metric_notes(best_policy.scaling)
        cheaper = [
            policy
            for policy in policies
            if policy.meets and policy.scaling and not policy_row(policy.scaling.policy).targets
        ]
        notes += [
            f"{policy.name} would cost {share_text(policy.gpu_hours / best_policy.gpu_hours)} of "
            f"{best_policy.name}; no autoscaler runs it as it is, so that it is not chosen."
            for policy in cheaper
            if policy.gpu_hours < best_policy.gpu_hours
        ]
    return notes


def _worst_hour_notes(name: str, check: Checked) -> list[str]:
    if abs(check.attainment - check.flow) <= FAR:
        return []
    return [
        f"In the worst hour of {name}, {share_text(check.attainment, 1)} of requests keep the "
        f"limits request by request and {share_text(check.flow, 1)} by flows: take its share over "
        "the whole time with as much doubt."
    ]


def _gateway_metric_notes(scaling: Scaling) -> list[str]:
    """Say what a bundle needs to be told besides the request."""
    rates = any(trigger.metric == "request-rate" for trigger in scaling.triggers)
    if scaling.policy not in ("hpa", "keda") or not (rates or scaling.min_replicas == 0):
        return []
    why = "counts requests" if rates else "ends the last replica"
    return [
        f"The policy {why}: its bundle needs the gateway's counter of requests "
        "(parameters.gateway_metric)."
    ]
