"""Measured runs of serving and of training beside their estimates, a row for each figure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from recipe_core.base.errors import InputError, RecipeError
from recipe_core.base.intervals import Level
from recipe_core.base.units import GIB
from recipe_core.estimates.columns.columns import stack_columns
from recipe_core.estimates.columns.scopes import without_corrections
from recipe_core.estimates.columns.training import TrainingCases, TrainingSetting
from recipe_core.estimates.measured.runs import FIGURES, Run, TrainingRun
from recipe_core.estimates.rules.refusal import Refusal
from recipe_core.estimates.rules.training_rules import training_refusals
from recipe_core.estimates.training.memory import Memory, training_memory
from recipe_core.estimates.training.schedule import training_step_parts
from recipe_core.estimates.training.starts import memory_rule, training_band
from recipe_core.hardware.cluster import device_profile
from recipe_core.plans.plans import estimate_batch, shared_key
from recipe_core.plans.problem import resolve_problem
from recipe_core.plans.training_candidates import stated_training_case
from recipe_core.request.schema import PlanRequest

CELL = ("source", "device", "model")
# The quantity of an estimate that a figure measures, and the factor to the figure's unit.
QUANTITIES = {
    "ttft_ms": ("ttft_s", 1e3),
    "tpot_ms": ("tpot_s", 1e3),
    "request_latency_ms": ("request_latency_s", 1e3),
}
QUANTITIES |= dict.fromkeys(
    ("output_tokens_per_s", "total_tokens_per_s"), ("output_tokens_per_s", 1.0)
)
SHOWN_LEVELS: tuple[Level, ...] = ("80", "50", "95")
# Columns of the ends of intervals, the band's first; ``SHOWN_LEVELS`` are their levels.
ENDS = ("low", "high", "low_50", "high_50", "low_95", "high_95")


@dataclass(frozen=True)
class Comparison:
    """Runs of one kind against their estimates.

    ``figures`` has a row for each measured figure of the estimated runs: the columns of the runs,
    and ``vendor``, ``figure``, ``measured``, ``estimated``, ``low`` and ``high`` (the band),
    ``low_50``, ``high_50``, ``low_95`` and ``high_95`` (the other intervals), ``ratio`` (estimated
    / measured) and ``error`` (|ratio - 1|); of training seconds of a step (also where tokens per
    second were measured) and GiB. ``not_covered`` counts the reasons of runs without an estimate;
    ``refused`` are runs that an estimate calls impossible, with the first reason.
    """

    kind: str
    runs: int
    figures: pd.DataFrame
    not_covered: Counter[str]
    refused: tuple[tuple[Run | TrainingRun, str], ...]


def _frame_figures(rows: Iterable[tuple[Any, ...]], columns: Sequence[str]) -> pd.DataFrame:
    figures = pd.DataFrame(rows, columns=[*columns, "figure", "measured", "estimated", *ENDS])
    ratio = figures.estimated / figures.measured
    return figures.assign(ratio=ratio, error=(ratio - 1).abs())


def compare_with_estimates(runs: Sequence[Run]) -> Comparison:
    """Estimates all runs in one call and puts each estimate beside what was measured."""
    with without_corrections():
        answers = estimate_batch(run.request() for run in runs)
    not_covered = Counter(answer["error"]["message"] for answer in answers if "error" in answer)
    refused = tuple(
        (run, answer["reasons"][0])
        for run, answer in zip(runs, answers, strict=True)
        if answer.get("feasible") is False
    )
    rows = [
        row
        for run, answer in zip(runs, answers, strict=True)
        for row in _run_figure_rows(run, answer)
    ]
    figures = _frame_figures(rows, [*_RUN_FIELDS, "vendor"])
    return Comparison("serving", len(runs), figures, not_covered, refused)


_RUN_FIELDS = [name for name in Run.model_fields if name not in FIGURES]


def _run_figure_rows(run: Run, answer: dict[str, Any]) -> Iterable[tuple[Any, ...]]:
    served = answer.get("serving", {})
    for figure, (quantity, scale) in QUANTITIES.items():
        measured, estimated = getattr(run, figure), served.get(quantity) or 0.0
        if measured is None or not 0 < estimated < math.inf:
            continue
        if figure == "total_tokens_per_s":
            scale = (run.input_tokens + run.output_tokens) / run.output_tokens
        intervals = answer["intervals"][quantity]
        ends = [end * scale for level in SHOWN_LEVELS for end in intervals[level]]
        fields = [getattr(run, name) for name in _RUN_FIELDS]
        yield (
            *fields,
            device_profile(run.device).vendor,
            figure,
            measured,
            estimated * scale,
            *ends,
        )


# Training

_TRAINING_FIELDS = ("id", "source", "device", "model", "engine")


@dataclass(frozen=True)
class RunGroup:
    """Runs that share a setting: their positions in the list, and their cases."""

    setting: TrainingSetting
    cases: TrainingCases
    rows: np.ndarray[Any, np.dtype[np.int64]]


def group_training_runs(runs: Sequence[TrainingRun]) -> tuple[list[RunGroup], Counter[str]]:
    """Runs as few groups of cases, and the reasons of those that cannot be requested.

    Where a source does not state the recomputation, the case is that of the least that fits, or
    without any where none fits.

    Raises:
        InputError: a run has no split.
    """
    members: dict[str, list[tuple[int, TrainingSetting, TrainingCases]]] = {}
    wrong: Counter[str] = Counter()
    for n, run in enumerate(runs):
        try:
            with without_corrections():
                requests = map(run.request, run.recomputations)
                problems = [resolve_problem(PlanRequest.parse(request)) for request in requests]
        except RecipeError as error:
            wrong[error.message] += 1
            continue
        for problem in problems:
            pair = stated_training_case(problem, problem.candidate)
            if pair is None:
                raise InputError(f"{run.id} has no layout.", field="table")
            members.setdefault(shared_key(problem, pair[0]), []).append((n, *pair))
    return [_least_feasible_cases(_stack_run_group(m)) for m in members.values()], wrong


def _stack_run_group(members: list[tuple[int, TrainingSetting, TrainingCases]]) -> RunGroup:
    cases = stack_columns([c for _, _, c in members])
    return RunGroup(members[0][1], cases, np.array([n for n, _, _ in members]))


def _least_feasible_cases(group: RunGroup) -> RunGroup:
    """The group with one case a run: the first that no rule refuses, else the first."""
    broken = np.any([rule.broken for rule in _group_refusals(group)], axis=0)
    order = np.lexsort((np.arange(len(broken)), broken, group.rows))
    _, first = np.unique(group.rows[order], return_index=True)
    first_cases = order[first]
    return RunGroup(group.setting, group.cases.take(first_cases), group.rows[first_cases])


def _group_refusals(group: RunGroup) -> list[Refusal]:
    mem = training_memory(group.setting, group.cases)
    return [*training_refusals(group.setting, group.cases), memory_rule(group.setting, mem)]


def compare_training(runs: Sequence[TrainingRun]) -> Comparison:
    """Estimates all runs in one call and puts each estimate beside what was measured."""
    groups, wrong = group_training_runs(runs)
    rows: list[tuple[Any, ...]] = []
    refused: list[tuple[Run | TrainingRun, str]] = []
    for group in groups:
        mem, parts = (
            training_memory(group.setting, group.cases),
            training_step_parts(group.setting, group.cases),
        )
        seconds = np.sum(list(parts.values()), axis=0)
        broken = _group_refusals(group)
        for i, n in enumerate(map(int, group.rows)):
            run = runs[n]
            peak = memory_as_measured_gib(run, mem, i, group.setting)
            rows += _training_figure_rows(run, group.setting, float(seconds[i]), peak)
            reasons = [rule for rule in broken if rule.broken[i]]
            if reasons:
                refused.append((run, reasons[0].say(i)))
    figures = _frame_figures(rows, _TRAINING_FIELDS)
    return Comparison("training", len(runs), figures, wrong, tuple(refused))


def memory_as_measured_gib(
    run: TrainingRun, mem: Memory, i: int, setting: TrainingSetting
) -> float:
    """GiB of the rank that the run's source measured, in the way it measured."""
    if run.memory_of == "first":
        return float(mem.stages_of(i)[0]) / GIB
    usable_bytes = setting.cluster.device.usable_memory_bytes
    outside = usable_bytes - float(mem.capacity_bytes[i]) if run.memory_of == "driver" else 0.0
    return (float(mem.peak_bytes[i]) + outside) / GIB


def _training_figure_rows(
    run: TrainingRun, setting: TrainingSetting, step_s: float, peak_gib: float
) -> list[tuple[Any, ...]]:
    identity = [getattr(run, name) for name in _TRAINING_FIELDS]
    figures = (
        ("step_s", "step_s", run.measured_step_s, step_s),
        ("peak_memory_gib", "peak_memory_bytes", run.peak_memory_gib, peak_gib),
    )
    rows: list[tuple[Any, ...]] = []
    for figure, key, measured, estimated in figures:
        if measured is not None:
            factors = training_band(setting, key).factors
            inside = [estimated * end for level in SHOWN_LEVELS for end in factors[level]]
            rows.append((*identity, figure, measured, estimated, *inside))
    return rows
