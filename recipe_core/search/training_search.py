"""Which training split is best: enumerate, estimate, judge, rank."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from recipe_core.base.errors import RecipeError
from recipe_core.physics.training.estimates import TrainingEstimates, training_estimate
from recipe_core.request.schema import CandidateRequest, PlanRequest, TrainingWorkload
from recipe_core.search.training_candidates import every_case
from recipe_core.search.training_plan import Remedy, TrainingTable
from recipe_core.search.training_problem import (
    MAX_DEVICES,
    Asked,
    budget,
    one_case,
    resolve_training,
    setting_key,
    training_setting,
)
from recipe_core.space.training import TrainingCases, TrainingSetting, stack_cases

MORE_NODES = (2, 4, 8, 16)
"""How many times as many nodes are tried when nothing can run."""

__all__ = [
    "chosen_training",
    "estimate_training_many",
    "is_training",
    "judge",
    "one_case",
    "resolve_training",
    "training_plan",
    "training_setting",
]


def is_training(request: PlanRequest) -> bool:
    """Whether a request is about training."""
    return isinstance(request.workload, TrainingWorkload)


def training_plan(
    request: PlanRequest, *, folders: bool = True, limits: CandidateRequest | None = None
) -> TrainingTable:
    """Every training split of the request's cluster, judged and ranked; ``limits`` keeps those that agree with what it states.

    When none can run, the table has remedies: the same search with optimizer states on the host, and with more nodes.

    Raises:
        InputError: for unknown names, and when no split agrees.
    """
    table = _searched(
        request if limits is not None else request.model_copy(update={"candidate": None}),
        folders,
        limits,
    )
    return (
        table
        if len(table.ranked)
        else replace(table, remedies=tuple(_remedies(request, folders, limits)))
    )


def _searched(
    request: PlanRequest, folders: bool, limits: CandidateRequest | None
) -> TrainingTable:
    asked = resolve_training(request, folders=folders)
    setting = training_setting(asked)
    cases = every_case(asked, setting, limits)
    if not len(cases):
        raise RecipeError(
            f"no split of {asked.cluster.devices} devices agrees with the candidate.",
            field="candidate",
            hint="Leave tp, pp, cp, ep or dp out.",
        )
    return TrainingTable(asked, judge(asked, setting, cases))


def _remedies(
    request: PlanRequest, folders: bool, limits: CandidateRequest | None
) -> Iterator[Remedy]:
    """Changes of the request under which something can run: offload, then the fewest nodes (doubling) on which it does."""
    stated = limits or CandidateRequest()
    if stated.offload is None:
        table = _searched(request, folders, stated.model_copy(update={"offload": "optimizer"}))
        if len(table.ranked):
            yield Remedy(
                "candidate.offload", "optimizer", table.estimates.candidate(int(table.ranked[0]))
            )
    free = stated.model_copy(update={"dp": None})
    for factor in MORE_NODES:
        hardware = request.hardware.model_copy(update={"nodes": request.hardware.nodes * factor})
        if hardware.devices > MAX_DEVICES:
            return
        table = _searched(request.model_copy(update={"hardware": hardware}), folders, free)
        if len(table.ranked):
            yield Remedy(
                "hardware.nodes", hardware.nodes, table.estimates.candidate(int(table.ranked[0]))
            )
            return


def judge(asked: Asked, setting: TrainingSetting, cases: TrainingCases) -> TrainingEstimates:
    """All rows estimated."""
    return training_estimate(
        setting, cases, budget(asked, len(cases)), asked.failures, asked.model.notes
    )


def chosen_training(request: PlanRequest, *, folders: bool = True) -> tuple[TrainingEstimates, int]:
    """The candidate's split, or the best that agrees with what it states (the nearest when none is feasible)."""
    asked = resolve_training(request, folders=folders)
    exact = one_case(asked)
    if exact is not None:
        return judge(asked, training_setting(asked), exact), 0
    table = training_plan(request, folders=folders, limits=request.candidate or CandidateRequest())
    near = table.nearest
    return table.estimates, int(table.ranked[0]) if near is None else near


def estimate_training_many(
    requests: Iterable[tuple[int, PlanRequest]],
) -> dict[int, dict[str, Any]]:
    """Answers by number; requests that share a setting are columns of one estimate, a bad one answers its error."""
    answers: dict[int, dict[str, Any]] = {}
    groups: dict[str, list[tuple[int, Asked, TrainingSetting, TrainingCases]]] = {}
    for n, request in requests:
        try:
            asked = resolve_training(request)
            exact = one_case(asked)
            if exact is None:
                estimates, row = chosen_training(request)
                answers[n] = estimates.row(row)
                continue
            setting = training_setting(asked)
            groups.setdefault(setting_key(asked, setting), []).append((n, asked, setting, exact))
        except RecipeError as error:
            answers[n] = error.to_json()
    for members in groups.values():
        _, asked, setting, _ = members[0]
        tokens = np.concatenate([budget(each, 1) for _, each, _, _ in members])
        cases = stack_cases([each for _, _, _, each in members])
        estimates = training_estimate(setting, cases, tokens, asked.failures, asked.model.notes)
        answers |= {n: estimates.row(i) for i, (n, _, _, _) in enumerate(members)}
    return answers
