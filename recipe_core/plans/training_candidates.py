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
from recipe_core.engines.frameworks import framework, training_data
from recipe_core.engines.training_programs import program_facts, training_engine
from recipe_core.estimates.columns.training import (
    OFFLOADS,
    RECOMPUTE,
    SCHEDULES,
    Failures,
    TrainingCases,
    TrainingSetting,
    modules_code,
    modules_of,
    stack_cases,
    training_calibration,
    training_cases,
)
from recipe_core.estimates.rules.training_rules import training_refusals
from recipe_core.estimates.training.activations import recomputed_modules
from recipe_core.hardware.cluster import Cluster
from recipe_core.hardware.failures import failure_file, node_failures, spot_market
from recipe_core.hardware.host import StorageTier, measured_tier, storage_tier
from recipe_core.hardware.ownership import HOURS_PER_MONTH
from recipe_core.plans.launch_rules import default_framework, launch_degree_rules, on_framework
from recipe_core.plans.problem import TrainingProblem
from recipe_core.plans.rollout import sampling_of
from recipe_core.plans.size import check_training_size, with_device_note
from recipe_core.request.candidate import CandidateRequest
from recipe_core.request.phases import ramp_of
from recipe_core.request.training_workload import Loading, TrainingWorkload

SECONDS_PER_HOUR = 3600.0
# Micro-batches that a search tries; more fill no device better.
MICRO_BATCHES = (1, 2, 4, 8, 16, 32)
VIRTUAL_STAGES = (1, 2, 4)
# Tokens of a sequence below which context parallelism cuts no further.
SHORTEST_PIECE = 1024

DEGREES = ("tp", "pp", "cp", "dp", "ep")


# Settings: what all cases of an estimate share


def failures_of(workload: TrainingWorkload, place: Cluster) -> Failures:
    """How often devices fail and how checkpoints are written: as requested, else as published.

    Raises:
        HardwareError: for a storage tier that nobody knows.
    """
    usual, published = training_data().run, failure_file()
    mtbf_hours, basis, node_loss = workload.device_mtbf_hours, None, 1.0
    if mtbf_hours is None:
        nodes = node_failures(place.device.architecture, place.per_node)
        mtbf_hours, basis = nodes.mtbf_hours * place.per_node, nodes.basis
        node_loss = published.repair.drained_share.value
        if place.commitment == "spot":
            mtbf_hours, node_loss, basis = _add_reclaims(place, mtbf_hours, node_loss, basis)
    spares, repair_s = workload.spare_nodes or 0, workload.repair_s
    if spares and not repair_s:
        repair_s = published.repair.repair_hours.value * SECONDS_PER_HOUR
    price = workload.storage_usd_per_gb_month or 0.0
    return Failures(
        device_mtbf_s=mtbf_hours * SECONDS_PER_HOUR,
        storage_bytes_per_s=workload.storage_bytes_per_s,
        restart_s=workload.restart_s or usual.restart_s.value,
        repair_s=repair_s,
        min_nodes=workload.min_nodes,
        asynchronous=workload.checkpoints == "asynchronous",
        interval_s=workload.checkpoint_interval_s,
        kept_checkpoints=workload.kept_checkpoints,
        basis=basis,
        node_loss=node_loss,
        spare_nodes=spares,
        storage=_storage_of(workload, place),
        reads_back=workload.restart_s is None,
        usd_per_byte_s=price / 1e9 / (HOURS_PER_MONTH * SECONDS_PER_HOUR),
        slow_nodes=workload.slow_node_share or 0.0,
        slowdown=published.slow_nodes.slowdown.value,
        limit_s=workload.time_limit_s,
    )


def _add_reclaims(
    place: Cluster, mtbf_hours: float, node_loss: float, basis: str
) -> tuple[float, float, str]:
    """Failures of devices with the reclaims of spot machines, each of which takes a node away.

    Returns the mean time between both of a device in hours, the share that takes a node away, and
    what they rest on.
    """
    provider = place.offer.provider if place.offer else None
    traced = {trace.provider for trace in failure_file().spot}
    market = spot_market(place.device.architecture, provider if provider in traced else None)
    failed, reclaims = 1 / mtbf_hours, market.reclaims_per_hour / place.per_node
    lost = (failed * node_loss + reclaims) / (failed + reclaims)
    return 1 / (failed + reclaims), lost, f"{basis}; {market.basis}"


def _storage_of(workload: TrainingWorkload, place: Cluster) -> StorageTier | None:
    """The tier that is asked for, else what was measured there; a stated rate stands for itself."""
    if workload.storage:
        return storage_tier(workload.storage)
    return None if workload.storage_bytes_per_s else measured_tier(place.device)


def training_setting(
    problem: TrainingProblem, name: str | None, precision: str | None, place: Cluster
) -> TrainingSetting:
    """What all splits of one framework and precision share on a cluster.

    Without a name the framework is the first that can launch what is asked.

    Raises InputError for an unknown framework.
    """
    workload, any_name = problem.workload, name or program_facts().preferred[0]
    candidate = problem.candidate
    shared = TrainingSetting(
        model=with_device_note(problem.model, place.device),
        cluster=place,
        engine=any_name,
        framework=framework(any_name).built(compiled=bool(candidate.compile)),
        precision=precision or "bf16",  # type: ignore[arg-type]  # the schema's own words
        method=workload.method,
        optimizer_name=workload.optimizer,
        optimizer=training_data().optimizers[workload.optimizer],
        attention=workload.attention,
        fused_loss=workload.fused_loss,
        lora_rank=workload.lora_rank,
        lora_alpha=workload.lora_alpha or 2.0 * workload.lora_rank,
        lora_targets=workload.lora_targets,
        calibration=training_calibration(),
        failures=failures_of(workload, place),
        data_format=workload.data_format,
        document_tokens=workload.document_tokens,
        packed=workload.packed,
        gradient_dtype=workload.gradient_dtype,
        state_dtype=workload.state_dtype,
        moment_dtype=workload.moment_dtype,
        activation_dtype=workload.activation_dtype,
        mtp_layers=workload.mtp_layers,
        loading=workload.loading or Loading(),
        phases=workload.phases or (),
        ramp=ramp_of(workload.phases, workload.sequence_length, workload.global_batch)
        if workload.phases
        else None,
        evaluation=workload.evaluation,
        sampling=sampling_of(problem, place),
        fp8_recipe=candidate.fp8_recipe,
        cuda_graphs=candidate.cuda_graphs or "none",
        compiles=candidate.compile,
    )
    if name:
        return shared
    offload, in_pieces = candidate.offload or "none", bool(workload.fused_loss)
    return on_framework(shared, default_framework(shared, offload, in_pieces))


def training_settings(problem: TrainingProblem) -> list[TrainingSetting]:
    """Every cluster × framework of the options, or the candidate's, in the candidate's precision.

    The request's own cluster comes first.
    """
    candidate = problem.candidate
    names = (candidate.engine,) if candidate.engine else problem.request.options.engines or (None,)
    return [
        training_setting(problem, name, candidate.precision, place)
        for place in problem.clusters
        for name in dict.fromkeys(names)
    ]


# Columns


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


def _choice_columns(candidate: CandidateRequest) -> dict[str, int]:
    out = {
        "recompute_layers": candidate.recompute_layers or 0,
        "recompute_modules": modules_code(candidate.recompute_modules or ()),
        "overlap_experts": int(bool(candidate.overlap_experts)),
        "offload": OFFLOADS.index(candidate.offload or "none"),
        "sync_step": int(candidate.gradient_sync == "step"),
    }
    if candidate.schedule:
        out["schedule"] = SCHEDULES.index(candidate.schedule)
    if candidate.sequence_parallel is not None:
        out["sequence_parallel"] = int(candidate.sequence_parallel)
    return out


def _activation_offload(shared: TrainingSetting, candidate: CandidateRequest, again: Int) -> Int:
    """Where activations wait on the host, by codes of recomputation: as stated, or as usual."""
    usual = shared.framework.activations_on_host & (again == RECOMPUTE.index("full"))
    requested = candidate.activation_offload
    return np.where(usual if requested is None else requested, 1, 0)


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
    columns = {
        **{name: getattr(c, name) or 1 for name in DEGREES},
        "virtual_stages": c.virtual_stages or 1,
        "zero_stage": _zero_stages(c, (0,))[0],
        "micro_batch": c.micro_batch,
        "recompute": RECOMPUTE.index(c.recomputing[0]),
        "shard": c.shard or c.dp * (c.cp or 1),
    }
    shared = training_settings(problem)[0]
    again = np.array(columns["recompute"])
    columns["activation_offload"] = int(_activation_offload(shared, c, again))
    rest = _choice_columns(c) | shared_columns(problem, shared.cluster)
    return shared, training_cases(1, **columns, **rest)


def _zero_stages(candidate: CandidateRequest, usual: Sequence[int]) -> Sequence[int]:
    """The stage that is stated, the one that parameters in host memory need, or the ``usual``."""
    if candidate.zero_stage is not None:
        return (candidate.zero_stage,)
    return (3,) if candidate.offload == "parameters" else usual


# Cases


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
    for rule in (*training_refusals(shared, base), *launch_degree_rules(shared, base)):
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
    return stack_cases(parts)


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
    columns["shard"] = c.shard or np.where(hybrid > 0, inside, replicas)
    # HSDP differs from FSDP only where states are divided fully and replicas fill several nodes
    # evenly
    divides = (columns["zero_stage"] == 3) & (inside > 1) & (replicas > inside)
    sensible = (hybrid == 0) | (divides & (replicas % inside == 0))
    columns["activation_offload"] = _activation_offload(shared, c, columns["recompute"])
    columns |= _choice_columns(c) | shared_columns(problem, shared.cluster)
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


# The candidate of a case


def describe_training_cases(
    shared: TrainingSetting, columns: TrainingCases, rows: Int
) -> list[dict[str, Any]]:
    """Some cases as candidates of the contract: what a recipe pins and a launch repeats."""
    return [_describe_training_case(shared, columns, i) for i in rows.tolist()]


def _describe_training_case(
    shared: TrainingSetting, columns: TrainingCases, i: int
) -> dict[str, Any]:
    names = ("tp", "pp", "virtual_stages", "cp", "ep", "dp", "zero_stage", "micro_batch")
    out: dict[str, Any] = {"engine": shared.engine}
    out |= {name: int(getattr(columns, name)[i]) for name in names}
    out |= {
        "recompute": RECOMPUTE[columns.recompute[i]],
        "precision": shared.precision,
        "schedule": SCHEDULES[columns.schedule[i]],
    }
    if shared.fp8_recipe:
        out["fp8_recipe"] = shared.fp8_recipe
    if shared.cuda_graphs != "none":
        out["cuda_graphs"] = shared.cuda_graphs
    if shared.compiles is not None:
        out["compile"] = shared.compiles
    if columns.offload[i]:
        out["offload"] = OFFLOADS[columns.offload[i]]
    if columns.sync_step[i]:
        out["gradient_sync"] = "step"
    if columns.recompute_layers[i]:
        out["recompute_layers"] = int(columns.recompute_layers[i])
    if columns.recompute_modules[i]:
        out["recompute_modules"] = list(modules_of(columns.recompute_modules[i]))
    if columns.overlap_experts[i]:
        out["overlap_experts"] = True
    usual = shared.framework.activations_on_host and out["recompute"] == "full"
    if bool(columns.activation_offload[i]) != usual:  # otherwise than it does by itself
        out["activation_offload"] = not usual
    out["shard"] = int(columns.shard[i])
    out["sequence_parallel"] = bool(columns.sequence_parallel[i])
    return out
