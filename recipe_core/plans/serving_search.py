"""The search over serving splits: every case judged, loads found, percentiles simulated."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import numpy as np

from recipe_core.base import budget
from recipe_core.base.arrays import Bool, Float, Int
from recipe_core.base.units import HOUR_S
from recipe_core.estimates.bands import Uncertain
from recipe_core.estimates.columns.recall import Recall
from recipe_core.estimates.columns.serving import Cases, Setting
from recipe_core.estimates.rules.refusal import Refusal
from recipe_core.estimates.rules.rules import (
    load_rules,
    place_rules,
    serving_refusals,
    serving_search_rules,
    start_rules,
)
from recipe_core.estimates.serving.accuracy import COLUMN as ACCURACY
from recipe_core.estimates.serving.accuracy import accuracy_of, uncertain_accuracy
from recipe_core.estimates.serving.bands import serving_bands, serving_uncertainty
from recipe_core.estimates.serving.estimates import Estimates, estimate_serving, rate_text
from recipe_core.estimates.serving.results import MEMORY
from recipe_core.estimates.serving.simulate import MOST, requests_each
from recipe_core.plans.confidence import refuse_unsure
from recipe_core.plans.evaluation import EvaluatedCases, Physics, columns_of, evaluate_cases
from recipe_core.plans.kind import DEGREES, Kind
from recipe_core.plans.limits import (
    add_limit_rules,
    mean_excess,
    refuse_unsimulated,
    time_bounds,
    without_percentile,
)
from recipe_core.plans.load import STEPS, best_loads, bisect_loads, least_loads
from recipe_core.plans.plan import Plan
from recipe_core.plans.problem import ServingProblem
from recipe_core.plans.serving_candidates import every_serving_case, stated_serving_case
from recipe_core.plans.serving_columns import admit_any, admit_requests, with_intervals
from recipe_core.plans.serving_settings import admits_by_limits, mode_load, workload_spread
from recipe_core.plans.size import check_loads
from recipe_core.request.candidate import CandidateRequest
from recipe_core.request.metrics import timed_limits
from recipe_core.request.objective import Limits
from recipe_core.request.serving_workload import LOADS

Block = EvaluatedCases[Setting, Cases, Estimates]


def _every_search_rule(setting: Setting, cases: Cases) -> list[Any]:
    rules = (serving_search_rules, start_rules, load_rules)
    return [refusal for rule in rules for refusal in rule(setting, cases)]


def _uncertain(setting: Setting, column: str) -> Uncertain | None:
    """Return what the error of a column follows: for accuracy that of published figures."""
    if column in JOB:
        return serving_uncertainty(setting, "usd_per_million_output_tokens")
    return (
        uncertain_accuracy(setting) if column == ACCURACY else serving_uncertainty(setting, column)
    )


def _overload_rule(cases: Cases, figures: Mapping[str, Any]) -> Refusal:
    """Refuse in a search what does not keep up with the arrivals by the estimate."""
    return Refusal(
        "rate",
        np.asarray(figures["load_factor"] >= 1),
        lambda i: rate_text(
            cases.load[i], figures["output_tokens_per_s"][i], cases.output_tokens[i]
        ),
    )


PHYSICS: Physics[Setting, Cases, Estimates] = Physics(
    estimate=estimate_serving,
    rules=serving_refusals,
    search_rules=_every_search_rule,
    place_rules=place_rules,
    uncertain=_uncertain,
    correlations=lambda: serving_bands().correlation,
    late_rules=lambda cases, figures: [_overload_rule(cases, figures)],
    stretches=lambda e: e.stretches(),
    keeping_up=lambda e: e.keeping_up_scores(),
    case_columns={
        **columns_of("", *DEGREES),
        "gpus": lambda c: c.devices,
        **columns_of("", "load", "max_batched_tokens"),
    },
    quantities={
        **columns_of("memory", *MEMORY),
        **columns_of("memory", "total_bytes", "usable_bytes", "capacity_bytes", "shortfall_bytes"),
        "start_probability": lambda e: e.start_probability,
        "pool_bytes": lambda e: e.memory.kv_cache_bytes,
        **columns_of("memory", "kv_cache_tokens", "max_concurrency"),
        "held_requests": lambda e: np.minimum(
            e.memory.max_concurrency, e.cases.max_num_seqs * e.cases.replicas
        ),
        "load_factor": lambda e: e.serving.load_factor,
        "queue_s": lambda e: e.serving.prefill.get("engine_queue", np.zeros(len(e.cases))),
        **columns_of("serving", "ttft_s", "tpot_s", "request_latency_s", "output_tokens_per_s"),
        "output_tokens_per_s_per_gpu": lambda e: e.serving.output_tokens_per_s / e.cases.devices,
        "gpus_rented": lambda e: e.cost.devices_rented,
        **columns_of("cost", "usd_per_hour", "usd_per_million_output_tokens"),
        **columns_of("cost", "watts", "joules_per_token"),
        "accuracy": lambda e: np.full(len(e.cases), accuracy_of(e.setting).value),
        "accuracy_low": lambda e: np.full(len(e.cases), accuracy_of(e.setting).low),
        "accuracy_high": lambda e: np.full(len(e.cases), accuracy_of(e.setting).high),
    },
)

# Columns of a queue that is worked off: how long that takes, and what it costs.
JOB = ("wall_s", "usd")


def _wall_s(e: Estimates) -> Float:
    rate = e.serving.output_tokens_per_s / e.cases.output_tokens
    return np.asarray(e.cases.load / rate)


# The same where requests are queued at once, and end.
WORKED_OFF = replace(
    PHYSICS,
    quantities={
        **PHYSICS.quantities,
        "wall_s": _wall_s,
        "usd": lambda e: e.cost.usd_per_hour * _wall_s(e) / HOUR_S,
    },
)


def simulate_cases(
    problem: ServingProblem, block: Block, rows: Int, percentiles: Sequence[float]
) -> Block:
    """The block with percentiles of some feasible rows, and their goodput within the limits."""
    alone = estimate_serving(block.setting, block.cases.take(rows)).simulated(
        np.arange(len(rows)),
        workload_spread(problem.workload),
        percentiles,
        time_bounds(problem.request.objective.limits),
    )
    if alone.simulation is None:
        return block
    return replace(block, simulation=alone.simulation.scatter(rows, len(block)))


# Candidates of a plan that are simulated where its limits name a percentile: the first by their
# means.
SIMULATED = 64
# Requests that are simulated for a plan at most, over all candidates but the first few: some ten
# seconds.
REQUESTS = 300_000
# Candidates that are simulated at least: where fewer keep the limits by their means, those that
# miss them by least.
NEAREST = 8
# Candidates whose loads are searched by simulation where limits name a percentile: the first by
# their means.
LOADED = 12


def search_serving(
    spec: Kind, problem: ServingProblem, candidate: CandidateRequest | None
) -> tuple[ServingProblem, list[Block]]:
    """Every case of a problem that agrees with what ``candidate`` states, judged.

    With the problem, narrowed to the engine and the formats stated.
    """
    if candidate is not None:
        problem = _narrow_options(problem, candidate)
    pairs = every_serving_case(problem, candidate)
    if not problem.request.load_searched:
        return problem, _judge_pairs(spec, problem, pairs, at_most=SIMULATED)
    with _simulations(problem, LOADED):
        pairs, rows = _find_best_loads(
            spec, problem, candidate or CandidateRequest(), pairs, SIMULATED
        )
        return problem, _judge_pairs(spec, problem, pairs, at_most=SIMULATED, rows=rows)


def search_pairs(
    problem: ServingProblem, candidate: CandidateRequest | None
) -> list[tuple[Setting, Cases]]:
    """Every case that a search of a stated load looks at, by setting."""
    if candidate is not None:
        problem = _narrow_options(problem, candidate)
    return every_serving_case(problem, candidate)


def load_pairs(
    problem: ServingProblem,
    candidate: CandidateRequest | None,
    pairs: Sequence[tuple[Setting, Cases]],
) -> list[tuple[Setting, Cases]]:
    """Cases of another load's search, under the load of a problem that is otherwise the same."""
    candidate, load = candidate or CandidateRequest(), mode_load(problem.workload)
    return [
        (
            setting,
            with_intervals(
                problem, setting, candidate, replace(cases, load=np.full(len(cases), load))
            ),
        )
        for setting, cases in pairs
    ]


def evaluate_pairs(
    problem: ServingProblem, pairs: Sequence[tuple[Setting, Cases]], *, searching: bool
) -> list[Block]:
    """Cases of some settings, evaluated; ``searching``: whether the rules of a search count."""
    physics = WORKED_OFF if problem.workload.mode == "offline" else PHYSICS
    return [evaluate_cases(physics, *pair, searching=searching) for pair in pairs]


# Cases as they are evaluated, which limits, confidence and goals leave alone; and those of a search
# of loads, without their estimates.
_EVALUATED: Recall[Block] = Recall(16_384)
_SEARCHED: Recall[Block] = Recall(32_768)


def _evaluate_once(
    problem: ServingProblem, pair: tuple[Setting, Cases], searching: bool, searching_loads: bool
) -> Block:
    """As ``evaluate_pairs``, of one pair, whose block is kept."""

    def make() -> Block:
        [block] = evaluate_pairs(problem, [pair], searching=searching)
        return replace(block, estimates=None) if searching_loads else block

    recall = _SEARCHED if searching_loads else _EVALUATED
    return replace(recall.value(make, *pair, f"{searching}"), setting=pair[0])


def judge_evaluated(problem: ServingProblem, blocks: Sequence[Block]) -> list[Block]:
    """Evaluated cases within the limits of a problem, which are on means."""
    objective = problem.request.objective
    return [refuse_unsure(add_limit_rules(block, objective.limits), objective) for block in blocks]


def find_serving_case(
    spec: Kind, problem: ServingProblem, candidate: CandidateRequest
) -> tuple[Setting, Cases] | None:
    """Setting and case of a candidate that states its split in full, else None.

    Under its best load where that is searched.
    """
    pair = stated_serving_case(problem, candidate)
    if pair is None or not problem.request.load_searched:
        return pair
    with _simulations(problem, 1):
        [loaded], _ = _find_best_loads(spec, problem, candidate, [pair], None)
    return loaded


def judge_serving_cases(
    spec: Kind, problem: ServingProblem, setting: Setting, cases: Cases
) -> list[Block]:
    return _judge_pairs(spec, problem, [(setting, cases)], at_most=None)


def search_loads_again(table: Plan, rows: Int, confidence: float) -> Plan:
    """Some splits of a table whose loads are searched, under their best loads at a confidence.

    Args:
        table: with every split under its best load at the confidence asked for.
        rows: of it, ascending.
        confidence: with which the limits must hold instead.
    """
    objective = table.request.objective.model_copy(update={"confidence": confidence})
    request = table.request.model_copy(update={"objective": objective})
    spec, problem = table.spec, replace(table.problem, request=request)
    pairs = [
        (block.setting, admit_any(problem, block.setting, block.cases.take(inside)))
        for block, _, inside in table.split_rows(rows)
    ]
    pairs, simulated = _find_best_loads(spec, problem, CandidateRequest(), pairs, SIMULATED)
    return Plan(spec, problem, _judge_pairs(spec, problem, pairs, SIMULATED, simulated))


def _narrow_options(problem: ServingProblem, candidate: CandidateRequest) -> ServingProblem:
    options, fields = problem.request.options, {}
    for name, field in (
        ("engine", "engines"),
        ("weight_dtype", "weight_dtypes"),
        ("kv_dtype", "kv_dtypes"),
    ):
        if (value := getattr(candidate, name)) is not None:
            fields[field] = (value,)
    request = problem.request.model_copy(update={"options": options.model_copy(update=fields)})
    return replace(problem, request=request)


# Judging


def _judge_pairs(
    spec: Kind,
    problem: ServingProblem,
    pairs: Sequence[tuple[Setting, Cases]],
    at_most: int | None,
    rows: Int | None = None,
) -> list[Block]:
    """All cases judged, the request's limits among the rules.

    A search (``at_most`` is given) leaves out what is wasteful, and simulates so many candidates
    where limits name a percentile, or those of ``rows``. Where the load is searched, reasons say
    under which load a limit is broken.
    """
    blocks = _judge_within_limits(spec, problem, pairs, at_most, rows, alone=rows is None)
    return (
        [_name_broken_load(block) for block in blocks] if problem.request.load_searched else blocks
    )


def _name_broken_load(block: Block) -> Block:
    """The block, its limits broken under a load that their sentences name."""

    def said(rule: Refusal) -> Callable[[int], str]:
        return lambda i: f"at {_users_text(block.cases.load[i])}: {rule.say(i)}"

    limits = (replace(rule, say=said(rule)) for rule in block.limits)
    return replace(block, limits=tuple(limits))


def _users_text(load: float) -> str:
    return "one user" if load == 1 else f"{load:,.0f} users at once"


def _find_best_loads(
    spec: Kind,
    problem: ServingProblem,
    candidate: CandidateRequest,
    pairs: Sequence[tuple[Setting, Cases]],
    at_most: int | None,
) -> tuple[list[tuple[Setting, Cases]], Int | None]:
    """All cases under their best loads, and which are simulated where limits name a percentile.

    Loads are chosen by means; where limits name a percentile, those of the best few rows are then
    lowered until their percentiles keep it.
    """
    means = replace(problem, request=without_percentile(problem.request))
    by_limits = admits_by_limits(problem.request, candidate)
    total = sum(len(columns) for _, columns in pairs)

    def count(loads: int) -> None:
        nonlocal total
        total += loads
        check_loads(total)

    out: list[tuple[Setting, Cases]] = []
    for shared, columns in pairs:

        def at(cases: Cases, shared: Setting = shared) -> tuple[Setting, Cases]:
            return shared, with_intervals(problem, shared, candidate, cases)

        def judge(cases: Cases, at: Any = at) -> Plan:
            blocks = _judge_within_limits(spec, means, [at(cases)], at_most, searching_loads=True)
            return Plan(spec, means, blocks)

        load, feasible = best_loads(judge, columns, count)
        loaded = replace(columns, load=load)
        if by_limits:
            loaded = admit_requests(loaded, feasible)
        out.append(at(loaded))
    if problem.request.objective.limits.percentile is None:
        return out, None
    first = Plan(spec, means, _judge_within_limits(spec, means, out, at_most))
    rows = np.sort(first.order[:LOADED])
    return _keep_percentiles(spec, problem, candidate, out, rows), rows


def _keep_percentiles(
    spec: Kind,
    problem: ServingProblem,
    candidate: CandidateRequest,
    pairs: Sequence[tuple[Setting, Cases]],
    rows: Int,
) -> list[tuple[Setting, Cases]]:
    """All cases, under loads with which the percentiles of some rows keep their limits."""
    by_limits, out = admits_by_limits(problem.request, candidate), list(pairs)
    starts = np.cumsum([0, *(len(columns) for _, columns in out)])
    for k, (shared, columns) in enumerate(pairs):
        inside = rows[(rows >= starts[k]) & (rows < starts[k + 1])] - starts[k]
        if not len(inside):
            continue
        some = columns.take(inside)

        def keeps(places: Int, loads: Float, shared: Setting = shared, some: Cases = some) -> Bool:
            cases = replace(some.take(places), load=loads)
            pair = shared, with_intervals(problem, shared, candidate, cases)
            blocks = _judge_within_limits(spec, problem, [pair], None, alone=False)
            judged = Plan(spec, problem, blocks)
            return judged.feasible & ~judged.spec.overloaded(judged)

        bisection = bisect_loads(keeps, some.load, whole_requests=True)
        load = np.array(columns.load)
        load[inside] = np.fmax(bisection, least_loads(some))  # NaN where none keeps them
        keeping = np.zeros(len(load), dtype=np.bool_)
        keeping[inside] = ~np.isnan(bisection) & by_limits
        columns = admit_requests(replace(columns, load=load), keeping)
        out[k] = shared, with_intervals(problem, shared, candidate, columns)
    return out


def find_kept_load(table: Plan, row: int) -> float | None:
    """The most requests in flight with which a row keeps its limits on time, by means.

    Those of all its replicas, whatever load is stated; None where one request breaks the limits.
    """
    (block, i), objective = table.at(row), table.request.objective
    times = {name: getattr(objective.limits, name) for name in timed_limits()}
    goal: dict[str, Any] = {"optimize": "throughput", "orientation": None, "weights": {}}
    objective = objective.model_copy(update={"limits": Limits(**times), **goal})
    loads = dict.fromkeys(LOADS.values()) | {"mode": "closed"}
    workload = table.problem.workload.model_copy(update=loads)
    request = table.request.model_copy(update={"objective": objective, "workload": workload})
    problem = replace(table.problem, request=request, workload=workload)
    setting, case = replace(block.setting, mode="closed"), block.cases.take(np.array([i]))

    def judge(cases: Cases) -> Plan:
        pairs = [(setting, cases)]
        return Plan(table.spec, problem, _judge_within_limits(table.spec, problem, pairs, None))

    [load], [feasible] = best_loads(judge, case, lambda _: None)
    return float(load) if feasible else None


def _simulations(problem: ServingProblem, splits: int) -> AbstractContextManager[object]:
    """One task of all simulations in a search of loads; their number is known only at its end."""
    if problem.request.objective.limits.percentile is None:
        return nullcontext()
    return budget.track_task(splits * (STEPS + 2))


def _judge_within_limits(
    spec: Kind,
    problem: ServingProblem,
    pairs: Sequence[tuple[Setting, Cases]],
    at_most: int | None,
    rows: Int | None = None,
    *,
    alone: bool = True,
    searching_loads: bool = False,
) -> list[Block]:
    """All cases judged; ``alone``: whether their simulations are a task of their own."""
    objective, limits = problem.request.objective, problem.request.objective.limits
    searching = at_most is not None
    blocks = [_evaluate_once(problem, pair, searching, searching_loads) for pair in pairs]
    if limits.percentile is None:
        return judge_evaluated(problem, blocks)
    blocks = [add_limit_rules(block, limits, timed=False) for block in blocks]
    if rows is None:
        rows = _worth_simulating(Plan(spec, problem, blocks), at_most)
    out, start = [], 0
    with budget.track_task(len(rows)) if alone else nullcontext():
        for block in blocks:
            inside = rows[(rows >= start) & (rows < start + len(block))] - start
            start += len(block)
            if len(inside):
                block = simulate_cases(problem, block, inside, (limits.percentile,))
            block = add_limit_rules(refuse_unsimulated(block, limits), limits, timed=True)
            out.append(refuse_unsure(block, objective))
    return out


def _worth_simulating(table: Plan, at_most: int | None) -> Int:
    """Rows to simulate: all that can run, or the first whose means keep the limits.

    And a few that miss them by least.
    """
    if at_most is None:
        return table.order
    limits = table.request.objective.limits
    excess = np.concatenate([mean_excess(block, limits) for block in table.blocks])[table.order]
    keeping, missing = table.order[excess <= 1][:at_most], table.order[excess > 1]
    close = missing[np.argsort(excess[excess > 1], kind="stable")]
    rows = np.concatenate([keeping, close[: max(NEAREST - len(keeping), 0)]])
    requests = [
        np.minimum(requests_each(block.setting, block.cases), MOST) for block in table.blocks
    ]
    total = np.cumsum(np.concatenate(requests)[rows])
    return np.asarray(rows[(total <= REQUESTS) | (np.arange(len(rows)) < NEAREST)])
