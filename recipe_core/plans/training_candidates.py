"""The training splits a plan evaluates.

Every framework, degree, ZeRO stage, micro-batch and recomputation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from recipe_core.base import budget
from recipe_core.base.arrays import Bool, Int
from recipe_core.engines.training_programs import training_engine
from recipe_core.estimates.columns.columns import stack_columns
from recipe_core.estimates.columns.training import (
    OFFLOADS,
    RECOMPUTE,
    SCHEDULES,
    TrainingCases,
    TrainingSetting,
    modules_code,
    modules_of,
    training_cases,
)
from recipe_core.estimates.rules.training_rules import training_refusals
from recipe_core.estimates.training.activations import recomputed_modules
from recipe_core.hardware.cluster import Cluster
from recipe_core.models.spec import ModelSpec
from recipe_core.plans.launch_rules import launch_search_rules
from recipe_core.plans.problem import TrainingProblem
from recipe_core.plans.serving_columns import CandidateColumn
from recipe_core.plans.size import check_training_size
from recipe_core.plans.training_settings import training_settings
from recipe_core.request.candidate import CandidateRequest
from recipe_core.request.split_key import TRAINING_FIELDS

# Micro-batches that a search tries; more fill no device better.
MICRO_BATCHES = (1, 2, 4, 8, 16, 32)
VIRTUAL_STAGES = (1, 2, 4)
# Tokens of a sequence below which context parallelism cuts no further.
SHORTEST_PIECE = 1024

DEGREES = ("tp", "pp", "cp", "dp", "ep")
NUMBERS = TRAINING_FIELDS[2:-1]


def _coded_column(
    field: str, words: Sequence[Any], usual: float | None = None, column: str = ""
) -> CandidateColumn:
    """A column of places in ``words``."""
    return CandidateColumn(
        field,
        column or field,
        usual=usual,
        read=lambda word, _: words.index(word),
        value=lambda code, _: words[int(code)],
    )


TRAINING_COLUMNS = (
    *(CandidateColumn(name, name) for name in NUMBERS),
    _coded_column("recompute", RECOMPUTE),
    _coded_column("schedule", SCHEDULES),
    _coded_column("offload", OFFLOADS, usual=0),
    _coded_column("gradient_sync", ("micro-batch", "step"), usual=0, column="sync_step"),
    CandidateColumn("recompute_layers", "recompute_layers", usual=0),
    CandidateColumn(
        "recompute_modules",
        "recompute_modules",
        usual=0,
        read=lambda names, _: modules_code(names),
        value=lambda code, _: list(modules_of(int(code))),
    ),
    _coded_column("overlap_experts", (False, True), usual=0),
    _coded_column("activation_offload", (False, True)),
    CandidateColumn("shard", "shard"),
    _coded_column("sequence_parallel", (False, True)),
)


def _stated_columns(candidate: CandidateRequest, model: ModelSpec) -> dict[str, float]:
    """Columns of what a candidate states; cases have all others as usual."""
    return {
        entry.column: entry.number(value, model)
        for entry in TRAINING_COLUMNS
        if (value := getattr(candidate, entry.field)) is not None
    }


def _waits_on_host(shared: TrainingSetting, recompute: Int) -> Int:
    """Return where activations wait on the host by itself, by codes of recomputation."""
    full = recompute == RECOMPUTE.index("full")
    return np.where(shared.framework.activations_on_host & full, 1, 0)


def describe_training_cases(
    shared: TrainingSetting, columns: TrainingCases, rows: Int
) -> list[dict[str, Any]]:
    """Some cases as candidates of the contract: what a recipe pins and a launch repeats."""
    fields = {
        "engine": shared.engine,
        **dict.fromkeys((*NUMBERS, "recompute")),
        "precision": shared.precision,
        "schedule": None,
    }
    if shared.fp8_recipe:
        fields["fp8_recipe"] = shared.fp8_recipe
    if shared.cuda_graphs != "none":
        fields["cuda_graphs"] = shared.cuda_graphs
    if shared.compiles is not None:
        fields["compile"] = shared.compiles
    out: list[dict[str, Any]] = [dict(fields) for _ in rows]
    by_itself = _waits_on_host(shared, columns.recompute[rows]).tolist()
    for entry in TRAINING_COLUMNS:
        usual = by_itself if entry.field == "activation_offload" else entry.usual
        for place, value in entry.stated_values(shared.model, columns, rows, usual):
            out[place][entry.field] = value
    return out


def shared_columns(problem: TrainingProblem, place: Cluster) -> dict[str, float]:
    """Columns that all splits of a request have in common on a cluster."""
    workload = problem.workload
    return {
        "sequence_length": workload.sequence_length,
        "global_batch": workload.global_batch,
        "fused_loss": int(bool(workload.fused_loss)),
        "per_node": place.per_node,
        "nodes": place.nodes,
        "token_budget": np.nan if workload.tokens is None else workload.tokens,
        "sampling_devices": _sampling_devices(problem),
    }


def _sampling_devices(problem: TrainingProblem) -> int:
    """Devices that only sample answers, which no split uses."""
    rollout = problem.workload.rollout
    return rollout.devices or 0 if rollout else 0


def stated_training_case(
    problem: TrainingProblem, candidate: CandidateRequest
) -> tuple[TrainingSetting, TrainingCases] | None:
    """The one case of a candidate that states tp, pp, dp and micro_batch, else None.

    What it leaves out is plain: no recomputation, one chunk a stage, states on every replica
    (parameters in host memory are always divided).
    """
    c = candidate
    if c.tp is None or c.pp is None or c.dp is None or c.micro_batch is None:
        return None
    shared = training_settings(problem)[0]
    recompute = RECOMPUTE.index(c.recomputing[0])
    columns = {
        "zero_stage": _zero_stages(c, (0,))[0],
        "recompute": recompute,
        "activation_offload": _waits_on_host(shared, np.array(recompute)),
        **_stated_columns(c, problem.model),
        **shared_columns(problem, shared.cluster),
    }
    return shared, training_cases(1, **columns)


def _zero_stages(candidate: CandidateRequest, usual: Sequence[int]) -> Sequence[int]:
    """The stage that is stated, the one that parameters in host memory need, or the ``usual``."""
    if candidate.zero_stage is not None:
        return (candidate.zero_stage,)
    return (3,) if candidate.offload == "parameters" else usual


def _degree_divisors(n: int) -> list[int]:
    small = [d for d in range(1, math.isqrt(n) + 1) if n % d == 0]
    return sorted({*small, *(n // d for d in small)})


def _worlds(problem: TrainingProblem, place: Cluster) -> list[int]:
    """Numbers of devices to evaluate: all.

    With fewer nodes allowed also doubling from one device on.
    """
    devices = place.devices - _sampling_devices(problem)
    if problem.request.options.nodes == "all":
        return [devices]
    doubled = (place.per_node * 2**k for k in range(place.nodes.bit_length()))
    sizes = {*_degree_divisors(place.per_node), *doubled, devices}
    return sorted(n for n in sizes if n <= devices)


def _all_split_degrees(
    problem: TrainingProblem, place: Cluster, candidate: CandidateRequest
) -> Int:
    """tp, pp, cp, dp and ep of every split (splits, 5).

    Tp within a fast island, pp within the layers.
    """
    model = problem.model
    island = (place.fabric.domain or 1) if place.rack_scale else place.per_node
    longest = problem.workload.sequence_length
    moe = model.experts
    rows: list[tuple[int, int, int, int, int]] = []
    for world in _worlds(problem, place):
        for tp in (d for d in _degree_divisors(world) if d <= island):
            for pp in (d for d in _degree_divisors(world // tp) if d <= len(model.layers)):
                for cp in _degree_divisors(world // (tp * pp)):
                    if cp > 1 and longest // cp < SHORTEST_PIECE:
                        continue
                    dp = world // (tp * pp * cp)
                    shared = [1]
                    if moe:
                        shared = [
                            ep for ep in _degree_divisors(tp * cp * dp) if moe.experts % ep == 0
                        ]
                    rows.extend((tp, pp, cp, dp, ep) for ep in shared)
    degrees = np.array(rows, dtype=np.int64).reshape(-1, len(DEGREES))
    for column, name in enumerate(DEGREES):
        if (degree := getattr(candidate, name)) is not None:
            degrees = degrees[degrees[:, column] == degree]
    return degrees


def every_training_case(
    problem: TrainingProblem, candidate: CandidateRequest | None = None
) -> list[tuple[TrainingSetting, TrainingCases]]:
    """All splits of every setting that agree with what ``candidate`` states.

    Raises:
        LimitError: for more than the budget of the request allows, all settings together, one
            micro-batch size after the other.
    """
    out, total = [], 0
    for shared in training_settings(problem):
        cases = _setting_cases(problem, shared, candidate or CandidateRequest(), total)
        total += len(cases)
        if len(cases):
            out.append((shared, cases))
    return out


def _setting_cases(
    problem: TrainingProblem, shared: TrainingSetting, candidate: CandidateRequest, total: int
) -> TrainingCases:
    """Every split with every ZeRO stage, micro-batch, chunk count and recomputation.

    FSDP also with states divided inside a node only (HSDP). Splits that break a rule with a
    micro-batch of one and one chunk a stage are listed once, and so are those of degrees that the
    framework does not launch. ``total``: candidates before these.
    """
    place = shared.cluster
    degrees = dict(zip(DEGREES, _all_split_degrees(problem, place, candidate).T, strict=True))
    columns = shared_columns(problem, place)
    offload = OFFLOADS.index(candidate.offload or "none")
    columns["zero_stage"] = 3 if candidate.offload == "parameters" else 0
    base = training_cases(len(degrees["tp"]), **degrees, **columns, offload=offload)
    legal = np.ones(len(base), dtype=np.bool_)
    launch_refusals = launch_search_rules(shared, base, degrees=True)
    for rule in (*training_refusals(shared, base), *launch_refusals):
        legal &= ~rule.broken
    parts = [base.take(np.flatnonzero(~legal))]
    total += len(parts[0])
    several = len(problem.clusters)
    for micro_batch in [candidate.micro_batch] if candidate.micro_batch else MICRO_BATCHES:
        budget.spend()
        parts.append(
            _expand_choices(problem, shared, base, np.flatnonzero(legal), candidate, micro_batch)
        )
        total += len(parts[-1])
        check_training_size(total, several)
    return stack_columns(parts)


def _expand_choices(
    problem: TrainingProblem,
    shared: TrainingSetting,
    base: TrainingCases,
    legal: Int,
    candidate: CandidateRequest,
    micro_batch: int,
) -> TrainingCases:
    """The legal rows of ``base`` with every other choice that the candidate leaves open."""
    c = candidate
    hybrid_too = shared.framework.sharding == "fsdp" and not c.shard
    axes = {
        "micro_batch": [micro_batch],
        "zero_stage": _zero_stages(c, range(4)),
        "virtual_stages": [c.virtual_stages] if c.virtual_stages else VIRTUAL_STAGES,
        "recompute": [RECOMPUTE.index(kind) for kind in c.recomputing],
        "hybrid": [0, 1] if hybrid_too else [0],
    }
    grid = np.meshgrid(legal, *map(np.array, axes.values()), indexing="ij")
    rows, *values = (axis.ravel() for axis in grid)
    columns: dict[str, Any] = dict(zip(axes, values, strict=True))
    hybrid = columns.pop("hybrid")
    columns |= {name: getattr(base, name)[rows] for name in DEGREES}
    replicas = columns["dp"] * columns["cp"]
    inside = np.maximum(base.per_node[rows] // columns["tp"], 1)  # replicas inside a node
    columns["shard"] = np.where(hybrid > 0, inside, replicas)
    # HSDP differs from FSDP only where states are divided fully and replicas fill several nodes
    # evenly
    divides = (columns["zero_stage"] == 3) & (inside > 1) & (replicas > inside)
    sensible = (hybrid == 0) | (divides & (replicas % inside == 0))
    columns["activation_offload"] = _waits_on_host(shared, columns["recompute"])
    columns |= _stated_columns(c, problem.model) | shared_columns(problem, shared.cluster)
    cases = training_cases(len(rows), **columns)
    return cases.take(np.flatnonzero(sensible & _worthwhile(shared, cases, c)))


def _worthwhile(
    shared: TrainingSetting,
    cases: TrainingCases,
    candidate: CandidateRequest,
) -> Bool:
    """Cases that differ from another in something, and whose batch and chunks come out even."""
    keeps = shared.flash and shared.framework.selective_keeps.value == 1
    drops = (recomputed_modules(shared, cases) > 0) | (not keeps)
    again = (cases.recompute != RECOMPUTE.index("selective")) | drops
    even = cases.global_batch % (cases.dp * cases.micro_batch) == 0
    layers = shared.trained_layers
    chunks = cases.virtual_stages == 1
    chunks |= (
        (cases.pp > 1)
        & (layers % (cases.pp * cases.virtual_stages) == 0)
        & (cases.micro_batches % cases.pp == 0)
    )
    states = (cases.zero_stage == 0) | (cases.replicas > 1) | cases.host_parameters
    if 0 not in training_engine(shared.engine).launches.zero_stages:
        states |= cases.zero_stage > 1  # verl's FSDP is told nothing else, on one device too
    keep = np.ones(len(cases), dtype=np.bool_)
    for choice, worthwhile in (
        (candidate.micro_batch, even),
        (candidate.virtual_stages, chunks),
        (candidate.zero_stage, states),
        (candidate.recompute, again),
    ):
        if choice is None:  # what is stated is evaluated whatever it is
            keep &= worthwhile
    return keep
