"""Quantities of serving in a plan: columns of estimates, their rules, and simulated percentiles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from recipe_core.base.arrays import Float, Int
from recipe_core.base.units import HOUR_S
from recipe_core.estimates.bands import Uncertain
from recipe_core.estimates.columns.serving import Cases, Setting
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
from recipe_core.estimates.serving.estimates import Estimates, estimate_serving
from recipe_core.estimates.serving.results import MEMORY
from recipe_core.plans.evaluated import EvaluatedCases, Physics, columns_of
from recipe_core.plans.limits import time_bounds
from recipe_core.plans.problem import ServingProblem
from recipe_core.plans.serving_candidates import workload_spread

Block = EvaluatedCases[Setting, Cases, Estimates]


def _every_search_rule(setting: Setting, cases: Cases) -> list[Any]:
    rules = (serving_search_rules, start_rules, load_rules)
    return [refusal for rule in rules for refusal in rule(setting, cases)]


def _uncertain(setting: Setting, column: str) -> Uncertain | None:
    """What the error of a column follows: for accuracy that of published figures."""
    if column in JOB:
        return serving_uncertainty(setting, "usd_per_million_output_tokens")
    return (
        uncertain_accuracy(setting) if column == ACCURACY else serving_uncertainty(setting, column)
    )


PHYSICS: Physics[Setting, Cases, Estimates] = Physics(
    estimate=estimate_serving,
    rules=serving_refusals,
    search_rules=_every_search_rule,
    place_rules=place_rules,
    uncertain=_uncertain,
    correlations=lambda: serving_bands().correlation,
    left=lambda e, metric: None if e.corrected is None else e.corrected.width_shares.get(metric),
    case_columns={
        **columns_of("", "tp", "pp", "dp", "ep", "cp"),
        "gpus": lambda c: c.devices,
        **columns_of("", "load", "max_batched_tokens"),
    },
    quantities={
        **columns_of("memory", *MEMORY),
        **columns_of("memory", "total_bytes", "usable_bytes", "capacity_bytes", "shortfall_bytes"),
        "start_probability": lambda e: e.start_probability,
        "pool_bytes": lambda e: e.memory.pool_bytes,
        "kv_cache_tokens": lambda e: e.memory.pool_tokens,
        "max_concurrency": lambda e: e.memory.max_concurrency,
        "held_requests": lambda e: np.minimum(
            e.memory.max_concurrency, e.cases.max_num_seqs * e.cases.replicas
        ),
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
    return replace(block, simulation=alone.simulation.scattered(rows, len(block)))
