"""Searches that a process has evaluated: limits, goals and confidence change few of their figures.

What a case takes and how fast it is follows from model, workload, options and machine. A request
that differs in anything else is judged again by what is figures.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from cachetools import LRUCache

from recipe_core.estimates.columns.corrections import Corrections
from recipe_core.hardware.cluster import Cluster
from recipe_core.plans.plan import Plan
from recipe_core.plans.plans import search_plan
from recipe_core.plans.problem import Problem
from recipe_core.plans.serving_columns import counts_waiting
from recipe_core.plans.serving_kind import SERVING
from recipe_core.plans.serving_search import (
    evaluate_pairs,
    judge_evaluated,
    load_pairs,
    search_pairs,
)
from recipe_core.plans.serving_settings import mode_load
from recipe_core.request.candidate import CandidateRequest
from recipe_core.request.serving_workload import LOADS

# Searches of devices that are kept: those of a few requests.
KEPT = 256


@dataclass(frozen=True, slots=True)
class _Evaluated:
    """Blocks of cases, and what their places and figures are of."""

    clusters: tuple[Cluster, ...]
    pairs: list[tuple[Any, Any]]
    blocks: list[Any]
    corrections: Corrections | None


_searches: LRUCache[tuple[Any, ...], _Evaluated] = LRUCache(maxsize=KEPT)
_lock = threading.Lock()


def search_again(problem: Problem[Any], candidate: CandidateRequest | None) -> Plan:
    """The plan that ``search_plan`` makes, from figures that are known where they are.

    Training and loads that are searched are planned anew, and so are pools of prefill and decode,
    which are paired by the limits.
    """
    request = problem.request
    if request.is_training or request.load_searched or request.options.disaggregated:
        return search_plan(problem, candidate)
    if request.objective.limits.percentile is not None:
        return search_plan(problem, candidate)
    alike, load = _figures_key(problem, candidate), mode_load(problem.workload)
    with _lock:
        figures, last = _searches.get((*alike, load)), _searches.get(alike)
    if figures is None or figures.corrections is not problem.corrections:
        figures = _evaluate(problem, candidate, last)
        with _lock:
            _searches[(*alike, load)] = _searches[alike] = figures
    problem = replace(problem, clusters=figures.clusters)
    return Plan(SERVING, problem, judge_evaluated(problem, figures.blocks))


def _evaluate(
    problem: Problem[Any], candidate: CandidateRequest | None, last: _Evaluated | None
) -> _Evaluated:
    """Evaluate a search; of the last one, of another load, the settings and cases are taken."""
    clusters = problem.clusters
    if last is None or last.corrections is not problem.corrections:
        pairs = search_pairs(problem, candidate)
    else:
        clusters, pairs = last.clusters, load_pairs(problem, candidate, last.pairs)
    blocks = evaluate_pairs(problem, pairs, searching=True)
    return _Evaluated(clusters, pairs, blocks, problem.corrections)


@contextmanager
def paused_collection() -> Iterator[None]:
    """Collect no garbage meanwhile: tables have no cycles, and looking for some takes a seventh."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def _figures_key(problem: Problem[Any], candidate: CandidateRequest | None) -> tuple[Any, ...]:
    """Everything that figures of a search depend on, but for corrections and the load."""
    request, objective = problem.request, problem.request.objective
    field = LOADS[problem.workload.mode]
    request_text = request.model_dump_json(
        exclude={"objective": True, "workload": {field}}, exclude_none=True
    )
    prices = tuple((place.usd_per_device_hour, place.price_basis) for place in problem.clusters)
    candidate_text = "" if candidate is None else candidate.model_dump_json(exclude_none=True)
    counted = objective.accuracy_of, counts_waiting(objective), problem.on_one_machine
    return problem.model.digest, request_text, prices, candidate_text, *counted
