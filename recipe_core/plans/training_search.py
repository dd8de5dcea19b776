"""The search over training splits, and the quantities of these in a plan."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from recipe_core.base.arrays import Float
from recipe_core.estimates.columns.training import TrainingCases, TrainingSetting
from recipe_core.estimates.rules.training_rules import training_refusals
from recipe_core.estimates.training.estimates import TrainingEstimates, estimate_training
from recipe_core.estimates.training.starts import training_uncertainty
from recipe_core.plans.confidence import refuse_unsure
from recipe_core.plans.evaluation import EvaluatedCases, Physics, columns_of, evaluate_cases
from recipe_core.plans.kind import DEGREES, Kind
from recipe_core.plans.launch_rules import able_frameworks, launch_search_rules
from recipe_core.plans.limits import add_limit_rules
from recipe_core.plans.problem import TrainingProblem
from recipe_core.plans.training_candidates import every_training_case
from recipe_core.request.candidate import CandidateRequest
from recipe_core.request.edit import shared_candidate

Block = EvaluatedCases[TrainingSetting, TrainingCases, TrainingEstimates]


def _rollout_s(estimates: TrainingEstimates) -> Float:
    """Seconds in which answers are sampled, one per case; NaN where none are."""
    if estimates.reinforcement is None:
        return np.full(len(estimates), np.nan)
    return estimates.reinforcement.rollouts.seconds


# ``tokens_per_s`` of all devices over the whole run: its phases, less what padding, evaluations,
# checkpoints and failures cost; ``tokens_per_s_per_gpu`` without them, of the workload's own shape;
# ``mfu`` and ``hfu`` shares of the peak, ``run_mfu`` of the whole run; ``usd_per_million_tokens``
# NaN without a price; ``rollout_s`` NaN where no answers are sampled.
PHYSICS: Physics[TrainingSetting, TrainingCases, TrainingEstimates] = Physics(
    estimate=estimate_training,
    rules=training_refusals,
    search_rules=launch_search_rules,
    uncertain=training_uncertainty,
    case_columns={
        **columns_of("", *DEGREES),
        "gpus": lambda c: c.all_devices,
        **columns_of("", "virtual_stages", "zero_stage", "micro_batch", "shard", "recompute"),
    },
    quantities={
        "step_s": lambda e: e.step_s,
        "tokens_per_s": lambda e: e.run.run_tokens_per_s,
        "tokens_per_s_per_gpu": lambda e: e.run.tokens_per_s / e.cases.all_devices,
        **columns_of("", "mfu", "hfu"),
        **columns_of("run", "usd_per_million_tokens", "joules_per_token"),
        "peak_memory_bytes": lambda e: e.peak_bytes,
        "shortfall_bytes": lambda e: e.peak_bytes - e.memory.capacity_bytes,
        "usable_bytes": lambda e: e.memory.capacity_bytes,
        "bubble_share": lambda e: e.parts["bubble"] / e.step_s,
        "start_probability": lambda e: e.start_probability,
        "goodput": lambda e: e.run.goodput,
        "run_mfu": lambda e: e.run_mfu,
        **columns_of("run", "wall_s", "usd"),
        "gpus_rented": lambda e: e.run.devices_rented,
        **columns_of("run", "usd_per_hour", "watts"),
        "rollout_s": _rollout_s,
    },
)


def search_training(
    _spec: Kind, problem: TrainingProblem, candidate: CandidateRequest | None
) -> tuple[TrainingProblem, list[Block]]:
    """Every case of a problem that agrees with what ``candidate`` states, judged.

    Without one, what all splits of a plan share (framework, precision, offload) is the request's.
    Where no split runs, nor with optimizer states in host memory, those with parameters there are
    added.
    """
    shared = candidate or shared_candidate(problem.request) or CandidateRequest()
    blocks = _search_blocks(problem, shared)
    if shared.offload is not None or any(block.feasible.any() for block in blocks):
        return problem, blocks
    for states in ("optimizer", "parameters"):
        hosted = [
            block for block in _blocks_on_host(problem, shared, states) if block.feasible.any()
        ]
        if hosted:  # optimizer states there are a change that is offered
            return problem, [*blocks, *hosted] if states == "parameters" else blocks
    return problem, blocks


def judge_training_cases(
    _spec: Kind, problem: TrainingProblem, setting: TrainingSetting, cases: TrainingCases
) -> list[Block]:
    return [_limit_block(problem, evaluate_cases(PHYSICS, setting, cases))]


def _search_blocks(problem: TrainingProblem, candidate: CandidateRequest) -> list[Block]:
    pairs = every_training_case(problem, candidate)
    return [_limit_block(problem, evaluate_cases(PHYSICS, *pair, searching=True)) for pair in pairs]


def _blocks_on_host(
    problem: TrainingProblem, candidate: CandidateRequest, states: str
) -> Iterator[Block]:
    """The same with some ``states`` in host memory, on frameworks that can be told so.

    Where none can launch the request, with its states on the devices either, on any.
    """
    away = {"offload": states}
    moved = problem.candidate.model_copy(update=away)
    request = problem.request.model_copy(update={"candidate": moved})
    pieces = bool(problem.workload.fused_loss)
    for block in _search_blocks(
        replace(problem, request=request), candidate.model_copy(update=away)
    ):
        setting = block.setting
        if setting.engine in able_frameworks(setting, states, pieces) or not able_frameworks(
            setting, "none", pieces
        ):
            yield block


def _limit_block(problem: TrainingProblem, block: Block) -> Block:
    objective = problem.request.objective
    return refuse_unsure(add_limit_rules(block, objective.limits), objective)
