"""Training estimates against measured runs: errors by figure and source, and runs refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from recipe_core.base.errors import InputError, RecipeError, unknown
from recipe_core.base.units import GIB
from recipe_core.calibration.validation.validate import (
    ENDS,
    SHOWN_LEVELS,
    align_table,
    group_errors,
)
from recipe_core.estimates.columns.columns import stack_columns
from recipe_core.estimates.columns.scopes import without_corrections
from recipe_core.estimates.columns.training import TrainingCases, TrainingSetting
from recipe_core.estimates.measured.runs import SHOWN, TrainingRun
from recipe_core.estimates.rules.refusal import Refusal
from recipe_core.estimates.rules.training_rules import training_refusals
from recipe_core.estimates.training.memory import Memory, training_memory
from recipe_core.estimates.training.schedule import training_step_parts
from recipe_core.estimates.training.starts import memory_rule, training_band
from recipe_core.plans.plans import shared_key
from recipe_core.plans.problem import resolve_problem
from recipe_core.plans.training_candidates import stated_training_case
from recipe_core.request.schema import PlanRequest

TIME, MEMORY = "step_s", "peak_memory_gib"
TRAINING_BY = ("device", "model", "source", "engine")
COLUMNS = (
    "id",
    "source",
    "device",
    "model",
    "engine",
    "figure",
    "measured",
    "estimated",
    *ENDS,
)


@dataclass(frozen=True)
class RunGroup:
    """Runs that share a setting: their positions in the list, and their cases."""

    setting: TrainingSetting
    cases: TrainingCases
    rows: np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True)
class TrainingComparison:
    """Runs against their estimates.

    ``figures`` has a row for each measured figure, with ``measured``, ``estimated``, ``low`` and
    ``high`` (the band), the ends of the other intervals, ``ratio`` (estimated / measured) and
    ``error`` (|ratio - 1|): seconds of a step (also where tokens per second
    were measured), and GiB. Refused runs have them too.
    ``refused``: runs that an estimate calls impossible, with the reason. ``not_covered`` counts the
    reasons of runs that cannot be requested.
    """

    runs: int
    figures: pd.DataFrame
    not_covered: Counter[str]
    refused: tuple[tuple[TrainingRun, str], ...]


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
                raise InputError(f"{run.id} has no split.", field="table")
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


def compare_training(runs: Sequence[TrainingRun]) -> TrainingComparison:
    """Estimates all runs in one call and puts each estimate beside what was measured."""
    groups, wrong = group_training_runs(runs)
    rows: list[tuple[Any, ...]] = []
    refused: list[tuple[TrainingRun, str]] = []
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
    figures = pd.DataFrame(rows, columns=list(COLUMNS))
    ratio = figures.estimated / figures.measured
    return TrainingComparison(
        len(runs),
        figures.assign(ratio=ratio, error=(ratio - 1).abs()),
        wrong,
        tuple(refused),
    )


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
    identity = (run.id, run.source, run.device, run.model, run.engine)
    figures = (
        (TIME, TIME, run.measured_step_s, step_s),
        (MEMORY, "peak_memory_bytes", run.peak_memory_gib, peak_gib),
    )
    rows: list[tuple[Any, ...]] = []
    for figure, key, measured, estimated in figures:
        if measured is not None:
            factors = training_band(setting, key).factors
            inside = [estimated * end for level in SHOWN_LEVELS for end in factors[level]]
            rows.append((*identity, figure, measured, estimated, *inside))
    return rows


def training_sections(
    comparison: TrainingComparison, by: str | None = None
) -> dict[str, pd.DataFrame]:
    """Tables by name: ``figures``, ``sources``, and ``by_<column>`` where asked for.

    Raises:
        InputError: ``by`` is not one of ``TRAINING_BY``.
    """
    figures = comparison.figures
    out = {
        "figures": group_errors(figures, ["figure"]),
        "sources": group_errors(figures, ["figure", "source"]),
    }
    if by is not None:
        if by not in TRAINING_BY:
            message, hint = unknown("column", by, TRAINING_BY)
            raise InputError(message, field="by", hint=hint)
        out[f"by_{by}"] = group_errors(figures, ["figure", by])
    return out


def training_validation_view(
    comparison: TrainingComparison, by: str | None = None
) -> dict[str, Any]:
    """The comparison as JSON values; errors and shares are fractions."""
    return {
        "runs": comparison.runs,
        "estimated": int(comparison.figures.id.nunique()),
        "not_covered": [
            {"reason": reason, "runs": n} for reason, n in comparison.not_covered.most_common()
        ],
        "refused": [
            {"id": run.id, "what": run.title, "reason": reason}
            for run, reason in comparison.refused
        ],
        **{
            name: table.to_dict(orient="records")
            for name, table in training_sections(comparison, by).items()
        },
    }


def training_validation_text(comparison: TrainingComparison, by: str | None = None) -> str:
    figures = comparison.figures
    counts = [
        f"{figures[name].nunique()} {name}s" for name in ("source", "model", "device", "engine")
    ]
    lines = [f"{comparison.runs:,} runs, {figures.id.nunique():,} estimated: {', '.join(counts)}"]
    lines += [
        f"not covered: {n:,} × {reason}" for reason, n in comparison.not_covered.most_common(SHOWN)
    ]
    lines.append(f"refused though measured: {len(comparison.refused):,}")
    lines += [f"  {run.id}: {run.title}: {reason}" for run, reason in comparison.refused[:SHOWN]]
    parts = ["\n".join(lines)]
    titles = {"figures": "By figure", "sources": "By source"}
    for name, table in training_sections(comparison, by).items():
        parts.append(
            f"{titles.get(name, name.replace('_', ' ').capitalize())}\n{align_table(table)}"
        )
    parts.append(
        "Errors are |estimated / measured - 1| of seconds per step (also where tokens per second\n"
        "were measured) and of GiB. A cell is a source × device × model; in band is the share of\n"
        "measurements inside the estimated range."
    )
    return "\n\n".join(parts)
