"""The rollout of a training request as a serving problem on the same devices."""

from __future__ import annotations

from typing import Final

from recipe_core.base.errors import InputError
from recipe_core.engines.spec import engine
from recipe_core.estimates.columns.rollout import Sampling
from recipe_core.hardware.cluster import Cluster
from recipe_core.plans.problem import Problem, TrainingProblem
from recipe_core.plans.serving_candidates import stated_serving_case
from recipe_core.request.candidate import CandidateRequest
from recipe_core.request.objective import Objective
from recipe_core.request.schema import Options
from recipe_core.request.serving_workload import ServingWorkload
from recipe_core.request.training_workload import Rollout

# Number format in which the engine is sent the trained weights.
WEIGHTS: Final = "bf16"


def sampling_of(problem: TrainingProblem, place: Cluster) -> Sampling | None:
    """How the workload samples answers on a cluster; None where it samples none.

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
    candidate = CandidateRequest(engine=rollout.engine, tp=1, pp=1, dp=1, weight_dtype=WEIGHTS)
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
    if device.runtime not in spec.runtimes:
        raise InputError(
            f"{spec.title} does not run on {device.title}.",
            field="workload.rollout.engine",
            hint="Name an engine that does.",
        )
    if rollout.devices is not None and rollout.devices >= place.devices:
        raise InputError(
            f"{rollout.devices:,} of {place.devices:,} devices leave none to train on.",
            field="workload.rollout.devices",
            hint="Use fewer, or add nodes.",
        )
