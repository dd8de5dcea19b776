"""Searches that a process has evaluated: limits, goals and confidence change none of their figures.

What a case takes and how fast it is follows from model, workload, options and machine. A request
that differs in anything else is judged again by what is known.
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
from recipe_core.plans.serving_kind import SERVING
from recipe_core.plans.serving_search import evaluate_search, judge_evaluated
from recipe_core.request.candidate import CandidateRequest

# Devices whose searches are kept: those of a few requests.
KEPT = 256


@dataclass(frozen=True, slots=True)
class _Evaluated:
    """Blocks of cases, and what their places and figures are of."""

    clusters: tuple[Cluster, ...]
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
    key = _figures_key(problem, candidate)
    with _lock:
        known = _searches.get(key)
    if known is None or known.corrections is not problem.corrections:
        blocks = evaluate_search(problem, candidate)
        known = _Evaluated(problem.clusters, blocks, problem.corrections)
        with _lock:
            _searches[key] = known
    problem = replace(problem, clusters=known.clusters)
    return Plan(SERVING, problem, judge_evaluated(problem, known.blocks))


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
    """Everything that figures of a search depend on, but for corrections."""
    request = problem.request
    stated = request.model_dump_json(exclude={"objective"}, exclude_none=True)
    prices = tuple((place.usd_per_device_hour, place.price_basis) for place in problem.clusters)
    own = "" if candidate is None else candidate.model_dump_json(exclude_none=True)
    accuracy_of, alone = request.objective.accuracy_of, problem.on_one_machine
    return problem.model.digest, stated, prices, own, accuracy_of, alone
