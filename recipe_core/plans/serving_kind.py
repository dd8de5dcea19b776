"""Serving as a kind of plan: splits of every engine and format under the request's load."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from recipe_core.base.arrays import Bool, Float, Int
from recipe_core.estimates.columns.serving import Setting
from recipe_core.estimates.prediction import FOLLOWING
from recipe_core.estimates.serving.accuracy import COLUMN as ACCURACY
from recipe_core.estimates.serving.bands import (
    METRICS,
    engine_errors,
    engine_gap_shares,
    serving_errors,
)
from recipe_core.estimates.serving.results import MEMORY, ServingEstimate, memory_parts
from recipe_core.estimates.serving.simulate import MOST, requests_each
from recipe_core.estimates.serving.starts import is_serving_uncertain
from recipe_core.plans.evaluation import repeat_blocks
from recipe_core.plans.kind import Block, Kind, Ranking, Shown
from recipe_core.plans.serving_columns import describe_serving_cases
from recipe_core.plans.serving_remedies import CURES
from recipe_core.plans.serving_search import (
    find_serving_case,
    judge_serving_cases,
    search_serving,
    simulate_cases,
)
from recipe_core.request.metrics import goals_of, metrics_of
from recipe_core.request.serving_workload import LOADS
from recipe_core.request.split_key import SPLIT_FIELDS

if TYPE_CHECKING:
    from recipe_core.plans.plan import Plan

# Requests of a replica that are simulated without being asked for, in the estimate of one
# candidate.
QUICK = 5000
TAILS = (50.0, 95.0, 99.0)
# Share of accuracy that is added to what is lost before goals are weighed: about the noise of a
# published score, so that losing the first two percent counts as much as twice the cost.
AS_GOOD = 0.02

# What makes a split beside its degrees.
_SPLIT = ("replicas", "prefill", *SPLIT_FIELDS)

LISTED: tuple[str, ...] = (
    *("gpus", "output", "per_gpu", "tpot", "ttft"),
    *("memory", "used", "concurrency", "usd"),
)
TABLED: tuple[str, ...] = ("gpus", "ttft", "tpot", "output", "per_gpu", "memory", "usd")


def shown_measures(table: Plan) -> Shown:
    """Measures of the workload's mode, and which of them stand where."""
    workload, listed, tabled = table.problem.workload, LISTED, TABLED
    if table.request.loads_differ:
        listed = ("load", *listed)
    if workload.mode == "offline":
        listed, tabled = (*listed, "wall", "usd_run"), (*tabled, "wall", "usd_run")
    if _tells_accuracy(table):
        listed, tabled = (*listed, ACCURACY), (*tabled, ACCURACY)
    several = len(table.problem.clusters) > 1
    return Shown(
        measures=metrics_of(workload.mode),
        # of several devices the chart that these are usually compared by
        axes=("interactivity", "per_gpu") if several else ("tpot", "per_gpu"),
        listed=listed,
        tabled=tabled,
        headline=("output", "interactivity", "tpot", "ttft", "usd", "usd_hour"),
        phrased=("output", "tpot", "usd"),
    )


def _tells_accuracy(table: Plan) -> bool:
    """Return whether rows are of several number formats, or the objective is about accuracy."""
    objective = table.request.objective
    formats = {(block.setting.weight_dtype, block.setting.kv_dtype) for block in table.blocks}
    is_goal = objective.limits.accuracy_recovery is not None or "accuracy" in objective.goals
    return is_goal or len(formats) > 1


# columns


def _add_columns(columns: dict[str, Any]) -> None:
    with np.errstate(divide="ignore", invalid="ignore"):
        columns["tokens_per_s_per_user"] = 1 / columns["tpot_s"]
        columns["memory_share"] = columns["total_bytes"] / columns["usable_bytes"]
    columns["accuracy_lost"] = accuracy_lost(columns[ACCURACY])


def accuracy_lost(recovery: Float) -> Float:
    """Rank rows by accuracy: the share that is lost, and ``AS_GOOD``.

    All is lost where it is unknown, so that what nobody has measured comes last.

    Args:
        recovery: expected share of the base's accuracy, one per row; NaN where unknown.
    """
    gone = np.where(np.isfinite(recovery), np.maximum(1 - recovery, 0.0), 1.0)
    return np.asarray(gone + AS_GOOD)


def _overloaded_rows(table: Plan) -> Bool:
    """Rows of a closed loop whose cache, or whose engine's limit, holds less than the load."""
    if table.problem.workload.mode != "closed" or not table.blocks:
        return np.zeros(len(table), dtype=np.bool_)
    return np.asarray(table.columns["held_requests"] < table.columns["load"])


def prefill_pools(table: Plan) -> Bool:
    return np.concatenate([block.cases.disaggregated for block in table.blocks])


def _names_of(setting: Setting) -> Mapping[str, str]:
    return {
        "engine": setting.engine.name,
        "weight_dtype": setting.weight_dtype,
        "kv_dtype": setting.kv_dtype,
    }


def _titles_of(setting: Setting) -> Mapping[str, str]:
    return {
        "engine": setting.engine.title,
        "weight_dtype": f"{setting.weight_dtype} weights",
        "kv_dtype": f"{setting.kv_dtype} cache",
    }


def _serving_split_columns(table: Plan) -> Mapping[str, Any]:
    return {
        "device": repeat_blocks(table, lambda block: block.setting.cluster.device.name),
        "engine": repeat_blocks(table, lambda block: block.setting.engine.name),
        "weight_dtype": repeat_blocks(table, lambda block: block.setting.weight_dtype),
        "kv_dtype": repeat_blocks(table, lambda block: block.setting.kv_dtype),
    }


# order


def _serving_precedence(table: Plan) -> tuple[Any, ...]:
    """Rows that hold their load, those that queue, then those that may not start.

    Of the last those first that more likely start than not.
    """
    unlikely = np.nan_to_num(table.columns["start_probability"]) < 0.5
    return (np.where(table.uncertain, 2 + unlikely, table.queues),)


def _serving_simplicity(table: Plan) -> tuple[Any, ...]:
    """Fewer devices, more output, no pipeline, smaller tp, unshared experts and caches."""
    c = table.columns
    output = -c["output_tokens_per_s"]
    return (c["max_batched_tokens"], c["cp"], c["ep"], c["tp"], c["pp"], output, c["gpus"])


def _serving_score_moves(table: Plan, rows: Int, *, sized: bool = False) -> Float:
    moves = np.zeros((len(rows), len(METRICS)))
    first = table.columns["ttft_s"][rows] / table.columns["request_latency_s"][rows]
    for goal, weight in table.request.objective.goals.items():
        column, sign = table.spec.goals[goal]
        if column == "request_latency_s":  # the first token, and the rest
            moves[:, METRICS.index("ttft_s")] += weight * first
            moves[:, METRICS.index("tpot_s")] += weight * (1 - first)
        elif column in METRICS:
            moves[:, METRICS.index(column)] += sign * weight
        elif column in FOLLOWING:
            moves[:, METRICS.index("output_tokens_per_s")] -= weight
    # what keeps up serves what arrives, fast or slow
    if table.blocks[0].setting.mode == "open" and not sized:
        keeps_up = table.columns["load_factor"][rows] < 1
        moves[keeps_up, METRICS.index("output_tokens_per_s")] = 0.0
    return moves


# one row


def _describe_cases(table: Plan, block: Block, cases: Int) -> list[dict[str, Any]]:
    out: list[dict[str, Any]] = describe_serving_cases(block.setting, block.cases, cases)
    for candidate in out:
        if draft := candidate.get("speculative"):
            draft |= _requested_draft(table, draft)
    return out


def _requested_draft(table: Plan, draft: Mapping[str, Any]) -> dict[str, Any]:
    """Method and checkpoint that the request names for a draft.

    No estimate depends on them: a layer is a layer.
    """
    requested = (
        table.problem.candidate.speculative,
        table.problem.workload.speculative,
        *table.request.options.speculative,
    )
    lookup = draft["method"] == "ngram"
    size = draft["tokens"], draft["acceptance"]
    for request in requested:
        if request is None or (request.tokens, request.acceptance) != size:
            continue
        if request.method is None or (request.method == "ngram") == lookup:
            return dict(request.model_dump(include={"method", "model"}, exclude_none=True))
    return {}


def _workload_of(table: Plan, row: int) -> Any:
    block, i = table.at(row)
    workload = table.problem.workload
    load = float(block.cases.load[i])
    field = LOADS[workload.mode]
    return workload.model_copy(update={field: load if workload.mode == "open" else int(load)})


def detail_serving_estimate(table: Plan, row: int) -> ServingEstimate:
    """The estimate with times by cause, and percentiles.

    Without percentiles where simulating them takes long and no limit names one.
    """
    block, i = table.at(row)
    limits = table.request.objective.limits
    percentiles = sorted({*TAILS, limits.percentile or TAILS[0]})
    affordable = MOST if limits.percentile else QUICK
    requests = requests_each(block.setting, block.cases.take([i]))[0]
    if block.feasible[i] and requests <= affordable:
        block = simulate_cases(table.problem, block, np.array([i]), percentiles)
    return cast(ServingEstimate, block.row(i, explained=True))


def explain_estimate(table: Plan, row: int) -> ServingEstimate:
    """The estimate of a row with its times by cause, without simulating percentiles."""
    block, i = table.at(row)
    return cast(ServingEstimate, block.row(i, explained=True))


def count_cache_tokens(table: Plan, row: int) -> int:
    """Tokens of cache that a replica needs for a row's load, each request at full length.

    And for the longest that the engine accepts, alone or in every slot that has room for it.
    """
    block, i = table.at(row)
    (estimates, k), tokens = block.detail(i), block.cases.block_tokens[i]
    memory = estimates.memory
    sequences = max(1.0, memory.kv_needed_bytes[k] / max(memory.sequence_bytes[k], 1.0))
    load, longest = (
        np.ceil(length[i] / tokens) * tokens
        for length in (block.cases.max_context, block.cases.accepted_tokens)
    )
    in_each_slot = block.setting.engine.memory.whole_contexts
    full = max(np.ceil(sequences) * (longest if in_each_slot else load), longest)
    return int(min(full, max(memory.kv_cache_tokens[k], tokens)))


def _is_same_serving_split(candidate: Mapping[str, Any], split: Mapping[str, Any]) -> bool:
    return all(candidate.get(name) == split.get(name) for name in _SPLIT)


def _serving_memory(table: Plan, rows: Sequence[int]) -> dict[str, Float]:
    """Bytes of each part on the fullest device, one per row; weights without the encoders."""
    index = list(rows)
    columns = {name: np.asarray(table.columns[name], dtype=float)[index] for name in MEMORY}
    return {**columns, **memory_parts(columns)}


def _serving_memory_held(table: Plan, rows: Sequence[int]) -> dict[str, Float]:
    """The same with the cache as the engine will hold it: at most its pool.

    Nothing beside the cache depends on the load, so it is also at most what the device has left.
    """
    parts, index = _serving_memory(table, rows), list(rows)
    needed = parts["kv_needed_bytes"]
    rest = sum(values for name, values in parts.items() if name != "kv_needed_bytes")
    capacity, pool, lacking = (
        np.asarray(table.columns[name], dtype=float)[index]
        for name in ("capacity_bytes", "pool_bytes", "shortfall_bytes")
    )
    cached = np.minimum(needed, np.maximum(np.minimum(pool, capacity - rest), 0.0))
    return parts | {"kv_needed_bytes": np.where(lacking > 0, needed, cached)}


SERVING = Kind(
    name="serving",
    parts=MEMORY,
    goals=goals_of("closed"),
    unpriced={"usd_per_million_output_tokens": "output_tokens_per_s_per_gpu"},
    frontier=("tpot_s", "output_tokens_per_s_per_gpu"),
    shown_as={"accuracy_lost": ACCURACY},
    settled=("hardware", "loads", "max_batched_tokens", "speculative"),
    ranking=Ranking(
        precedence=_serving_precedence,
        simplicity=_serving_simplicity,
        # stages wait for each other where requests come and go: estimates assume that they do not
        unmeasured=lambda table: table.columns["pp"] > 1,
        errors=serving_errors,
        moves=_serving_score_moves,
        software=lambda s: (s.cluster.device.name, s.engine.name, s.engine.version),
        engine_errors=engine_errors,
        gap_shares=engine_gap_shares,
    ),
    cures=CURES,
    search_cases=search_serving,
    find_case=find_serving_case,
    judge_cases=judge_serving_cases,
    shown=shown_measures,
    add_columns=_add_columns,
    is_uncertain=is_serving_uncertain,
    overloaded=_overloaded_rows,
    names_of=_names_of,
    titles_of=_titles_of,
    split_columns=_serving_split_columns,
    describe=_describe_cases,
    workload=_workload_of,
    is_same_split=_is_same_serving_split,
    memory=_serving_memory,
    held_memory=_serving_memory_held,
    detailed=detail_serving_estimate,
)
