"""The serving splits a plan evaluates.

Every engine, number format, split, draft, step limit and load.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from recipe_core.base import budget
from recipe_core.base.arrays import Bool
from recipe_core.engines.spec import Engine
from recipe_core.estimates.columns.serving import Cases, Setting, cases
from recipe_core.estimates.columns.splits import enumerate_splits
from recipe_core.estimates.rules.rules import serving_refusals, serving_search_rules, start_rules
from recipe_core.plans.kind import DEGREES
from recipe_core.plans.pool_pairs import pool_pairs
from recipe_core.plans.problem import ServingProblem, check_candidate
from recipe_core.plans.serving_columns import (
    draft_columns,
    interval_columns,
    read_columns,
    setting_columns,
)
from recipe_core.plans.serving_settings import (
    mode_load,
    requested_engine,
    served_context,
    serving_setting,
    serving_settings,
)
from recipe_core.plans.size import check_size, check_splits
from recipe_core.request.candidate import CandidateRequest


def _sharing_kv_heads(problem: ServingProblem, candidate: CandidateRequest) -> int | None:
    """KV heads whose copies may share a cache (cp); None where no split may."""
    if not problem.request.options.context_parallel and candidate.cp is None:
        return None
    mixers = [layer.attention for layer, _ in problem.model.kinds if layer.attention]
    return max((mixer.kv_heads for mixer in mixers), default=1)


def every_split(
    problem: ServingProblem, shared: Setting, candidate: CandidateRequest | None = None
) -> Cases:
    """All splits over the cluster for one setting that agree with what ``candidate`` states.

    Raises:
        LimitError: for more than the budget of the request allows, before they are made.
    """
    candidate = candidate or CandidateRequest()
    options, place, model = problem.request.options, shared.cluster, problem.model
    copies = candidate.replicas or 1
    pool = candidate.prefill.devices if candidate.prefill else 0
    devices = max(place.devices - pool, 0) // copies
    sharing = shared.engine.split.experts if model.is_moe else "none"
    kv_heads = _sharing_kv_heads(problem, candidate)
    check_splits(place, sharing, kv_heads, devices)
    splits = enumerate_splits(devices, shares_experts=sharing, kv_heads=kv_heads)
    keep = np.ones(len(splits["tp"]), dtype=np.bool_)
    if options.nodes == "all":
        keep &= splits["tp"] * splits["pp"] * splits["dp"] * copies + pool == place.devices
    if problem.on_one_machine:
        ranks = np.where(splits["ep"] > 1, splits["dp"], 1)
        keep &= splits["tp"] * splits["pp"] * ranks <= place.machine_devices
    for name in DEGREES:
        if (degree := getattr(candidate, name)) is not None:
            keep &= splits[name] == degree
    columns = {name: column[keep] for name, column in splits.items()}
    rest = setting_columns(problem, shared.engine, candidate, place)
    return cases(int(keep.sum()), **columns, **rest)


@dataclass(frozen=True, slots=True)
class _Planned:
    """Splits of a setting that are to be evaluated; ``legal`` ones under every variant."""

    setting: Setting
    splits: Cases
    legal: Bool
    variants: list[dict[str, Any]]


def every_serving_case(
    problem: ServingProblem, candidate: CandidateRequest | None = None
) -> list[tuple[Setting, Cases]]:
    """All splits of every setting; the legal ones also with each draft, step limit and load.

    Without a ``candidate`` also the pairs of pools where the options ask for them.

    Raises:
        LimitError: for more than the budget of the request allows, before they are made.
    """
    options = problem.request.options
    paired = options.disaggregated and candidate is None
    candidate = candidate or CandidateRequest()
    planned, total = [], 0
    for shared in serving_settings(problem):
        budget.spend()
        variants = _option_variants(problem, shared.engine, candidate)
        splits = every_split(problem, shared, candidate)
        several = paired or variants != [{}]
        # alone each split is judged once, when it is evaluated
        legal = _statically_legal(shared, splits) if several else np.ones(len(splits), np.bool_)
        total += len(splits) + int(legal.sum()) * (len(variants) - 1)
        check_size(total, options)
        planned.append(_Planned(shared, splits, legal, variants))
    out = [(entry.setting, _expand_variants(problem, candidate, entry)) for entry in planned]
    if paired:
        pairs = [(entry.setting, _pool_pair_cases(problem, entry)) for entry in planned]
        check_size(total + sum(len(columns) for _, columns in pairs), options)
        out += pairs
    return [(shared, columns) for shared, columns in out if len(columns)]


def _pool_pair_cases(problem: ServingProblem, planned: _Planned) -> Cases:
    """The pairs of a prefill and a decode pool that are worth estimating."""
    splits = planned.splits
    poolable = planned.legal & ((splits.dp == 1) | splits.shares_experts)
    return pool_pairs(problem, planned.setting, splits.take(np.flatnonzero(poolable)))


def _option_variants(
    problem: ServingProblem, spec: Engine, candidate: CandidateRequest
) -> list[dict[str, Any]]:
    """Columns of each draft × step limit × window × load of the options.

    One empty where there are none.
    """
    options, model = problem.request.options, problem.model

    def variants(field: str, values: Iterable[Any]) -> list[dict[str, Any]]:
        is_open = getattr(candidate, field) is None
        several = dict.fromkeys(values) if is_open else ()
        return [read_columns(candidate, {field: value}, model) for value in several] or [{}]

    drafts: list[dict[str, Any]] = [{}]
    if not candidate.speculative:
        drafts += [draft_columns(draft, model) for draft in options.speculative]
    loads: list[dict[str, Any]] = [{}]
    if options.loads:
        first = mode_load(problem.workload)
        loads = [{"load": load} for load in dict.fromkeys((first, *map(float, options.loads)))]
    axes = (
        drafts,
        variants("max_batched_tokens", options.max_batched_tokens),
        variants("batch_window_ms", options.batch_windows_ms if spec.batcher else ()),
        loads,
    )
    return [{**draft, **tokens, **window, **load} for draft, tokens, window, load in product(*axes)]


def _expand_variants(
    problem: ServingProblem,
    candidate: CandidateRequest,
    planned: _Planned,
) -> Cases:
    """The illegal splits once, the legal ones under every variant."""
    variants = planned.variants
    if variants == [{}]:
        return planned.splits
    rows, refused = np.flatnonzero(planned.legal), np.flatnonzero(~planned.legal)
    # a copy, so that its columns may be written to
    out = planned.splits.take(np.concatenate([refused, np.tile(rows, len(variants))]))
    spec, place = planned.setting.engine, planned.setting.cluster
    for k, columns in enumerate(variants):
        start = len(refused) + k * len(rows)
        if "load" in columns:
            intervals = interval_columns(problem, spec, candidate, place, columns["load"])
            columns = columns | intervals
        for name, value in columns.items():
            getattr(out, name)[start : start + len(rows)] = value
    return out


def _statically_legal(shared: Setting, splits: Cases) -> Bool:
    """Splits that no rule refuses, whatever the load."""
    legal = np.ones(len(splits), dtype=np.bool_)
    for rules in (serving_refusals, serving_search_rules, start_rules):
        for rule in rules(shared, splits):
            legal &= ~rule.broken
    return legal


def stated_serving_case(
    problem: ServingProblem, candidate: CandidateRequest, release: str | None = None
) -> tuple[Setting, Cases] | None:
    """The one case of a candidate whose split is stated in full (ep left out means 1), else None.

    ``release``: whose memory rules count, where the candidate states none.

    Raises:
        InputError: for a candidate that this version does not model.
    """
    check_candidate(problem, candidate)
    if candidate.tp is None or candidate.pp is None or candidate.dp is None:
        return None
    spec = requested_engine(candidate.engine, problem.cluster, problem.model.task)
    if (release := candidate.engine_version or release) is not None:
        spec = spec.at(release, served_context(problem.workload, problem.model))
    weights, cache = candidate.weight_dtype or "auto", candidate.kv_dtype or "auto"
    degrees = read_columns(candidate, dict.fromkeys(DEGREES, 1), problem.model)
    columns = setting_columns(problem, spec, candidate, problem.cluster)
    return serving_setting(problem, spec, weights, cache), cases(1, **degrees, **columns)
