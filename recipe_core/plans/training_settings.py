"""Facts that all cases of a training estimate share: cluster, framework, failures, rollout."""

from __future__ import annotations

from typing import Any, Final

from recipe_core.base.errors import InputError, RecipeError
from recipe_core.engines.frameworks import framework, training_data
from recipe_core.engines.spec import engine
from recipe_core.engines.training_programs import program_facts
from recipe_core.estimates.columns.rollout import Sampling
from recipe_core.estimates.columns.training import (
    Failures,
    TrainingSetting,
    training_calibration,
)
from recipe_core.hardware.cluster import Cluster
from recipe_core.hardware.failures import failure_file, node_failures, spot_market
from recipe_core.hardware.host import StorageTier, measured_tier, storage_tier
from recipe_core.hardware.prices import HOURS_PER_MONTH
from recipe_core.plans.launch_rules import default_framework, launch_lacks, on_framework
from recipe_core.plans.problem import Problem, TrainingProblem, refuse_field, resolve_problem
from recipe_core.plans.serving_candidates import stated_serving_case
from recipe_core.plans.size import with_device_note
from recipe_core.request.candidate import CandidateRequest
from recipe_core.request.objective import Objective
from recipe_core.request.phases import ramp_of
from recipe_core.request.rollout import Rollout
from recipe_core.request.schema import Options, PlanRequest
from recipe_core.request.serving_workload import ServingWorkload
from recipe_core.request.training_workload import Loading, TrainingWorkload

SECONDS_PER_HOUR = 3600.0
# Number format in which the engine of a rollout is sent the trained weights.
ROLLOUT_WEIGHTS: Final = "bf16"
# Fields of a workload that a setting has too.
SHARED_FIELDS: tuple[str, ...] = (
    *("method", "attention", "fused_loss", "lora_rank", "lora_targets", "evaluation"),
    *("data_format", "data", "document_tokens", "packed", "mtp_layers"),
    *("gradient_dtype", "state_dtype", "moment_dtype", "activation_dtype"),
)


def failures_of(workload: TrainingWorkload, place: Cluster) -> Failures:
    """Return failures of devices and the writing of checkpoints: as requested, else as published.

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


def sampling_of(problem: TrainingProblem, place: Cluster) -> Sampling | None:
    """Return how the workload samples answers on a cluster; None where it samples none.

    Raises:
        InputError: for an engine that is unknown or does not run on the device, and where no
            device is left to train on.
    """
    workload, rollout = problem.workload, problem.workload.rollout
    if rollout is None:
        return None
    _check_rollout(rollout, place)
    served = ServingWorkload(
        mode="offline",
        requests=rollout.sequences,
        input_tokens=rollout.prompt_tokens,
        output_tokens=rollout.response_tokens,
        max_context=rollout.longest_tokens,
        # copies of one prompt are computed once
        prefix_hit=1 - 1 / rollout.samples,
    )
    candidate = CandidateRequest(
        engine=rollout.engine, tp=1, pp=1, dp=1, weight_dtype=ROLLOUT_WEIGHTS
    )
    request = problem.request.model_copy(
        update={
            "workload": served,
            "candidate": candidate,
            "objective": Objective(),
            "options": Options(),
        }
    )
    case = stated_serving_case(
        Problem(request, served, problem.model.serving(()), (place,)), candidate
    )
    assert case is not None  # noqa: S101 - the split is stated in full
    setting, template = case
    critic, adapters = workload.method == "ppo", workload.adapters is not None
    return Sampling(rollout, critic, adapters, workload.global_batch, setting, template)


def _check_rollout(rollout: Rollout, place: Cluster) -> None:
    device = place.device
    try:
        spec = engine(rollout.engine)
    except InputError as error:
        field = "workload.rollout.engine"
        raise InputError(error.message, field=field, hint=error.hint) from None
    refuse_field(
        device.runtime not in spec.runtimes,
        f"{spec.title} does not run on {device.title}.",
        "workload.rollout.engine",
        "Name an engine that does.",
    )
    only_sampling = rollout.devices or 0
    refuse_field(
        only_sampling >= place.devices,
        f"{only_sampling:,} of {place.devices:,} devices leave none to train on.",
        "workload.rollout.devices",
        "Use fewer, or add nodes.",
    )


def training_setting(
    problem: TrainingProblem, name: str | None, precision: str | None, place: Cluster
) -> TrainingSetting:
    """Return what all splits of one framework and precision share on a cluster.

    Without a name the framework is the first that can launch what is asked.

    Raises InputError for an unknown framework.
    """
    workload, candidate = problem.workload, problem.candidate
    any_name = name or program_facts().preferred[0]
    alike: dict[str, Any] = {field: getattr(workload, field) for field in SHARED_FIELDS}
    shared = TrainingSetting(
        model=with_device_note(problem.model, place.device),
        cluster=place,
        engine=any_name,
        framework=framework(any_name).built(compiled=bool(candidate.compile)),
        precision=precision or "bf16",  # type: ignore[arg-type]  # the schema's own words
        optimizer_name=workload.optimizer,
        optimizer=training_data().optimizers[workload.optimizer],
        lora_alpha=workload.lora_alpha or 2.0 * workload.lora_rank,
        calibration=training_calibration(),
        failures=failures_of(workload, place),
        loading=workload.loading or Loading(),
        phases=workload.phases or (),
        ramp=ramp_of(workload.phases, workload.sequence_length, workload.global_batch)
        if workload.phases
        else None,
        sampling=sampling_of(problem, place),
        fp8_recipe=candidate.fp8_recipe,
        cuda_graphs=candidate.cuda_graphs or "none",
        compiles=candidate.compile,
        **alike,
    )
    if name:
        return shared
    return on_framework(shared, default_framework(shared, *launch_needs(problem)))


def launch_needs(problem: TrainingProblem) -> tuple[str, bool]:
    """Return where states live, and whether the loss is to be computed in pieces."""
    return problem.candidate.offload or "none", bool(problem.workload.fused_loss)


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


def framework_choices() -> dict[str, str]:
    """Frameworks to choose among by name, the choice that is made for one first, with no name."""
    frameworks = training_data().frameworks.items()
    return {"": "Automatic", **{name: program.title for name, program in frameworks}}


def framework_limits(request: PlanRequest, *, folders: bool = True) -> str:
    """Say which framework is taken where none is chosen, and which cannot launch what is asked.

    Empty where the request has no answer, which is said elsewhere.
    """
    try:
        problem = resolve_problem(request, folders=folders)
        needs = launch_needs(problem)
        usual = training_setting(problem, None, problem.candidate.precision, problem.cluster)
    except RecipeError:
        return ""
    sentences = [f"Automatic: {usual.framework.title}."]
    for name, program in training_data().frameworks.items():
        lacks = launch_lacks(on_framework(usual, name), *needs)
        if phrases := " and ".join(lack.phrase.split(",")[0] for lack in lacks):
            sentences.append(f"{program.title} cannot launch {phrases}.")
    return " ".join(sentences)
