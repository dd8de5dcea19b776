"""The time limit of a start: one fact, whether the request or the deployment settings state it."""

from __future__ import annotations

from recipe_core.base.errors import InputError
from recipe_core.recipe.place import Parameters
from recipe_core.request.schema import PlanRequest
from recipe_core.request.training_workload import TrainingWorkload

SECONDS_PER_MINUTE = 60


def limited_request(request: PlanRequest, place: Parameters) -> PlanRequest:
    """The request with the time limit of its place, so that checkpoints are planned within it.

    Raises:
        InputError: where the place ends a start before the request's ``workload.time_limit_s``.
    """
    workload = request.workload
    if not isinstance(workload, TrainingWorkload) or place.time_limit_minutes is None:
        return request
    limit_s = float(place.time_limit_minutes * SECONDS_PER_MINUTE)
    if workload.time_limit_s is None:
        limited = workload.model_copy(update={"time_limit_s": limit_s})
        return request.model_copy(update={"workload": limited})
    if limit_s < workload.time_limit_s:
        raise InputError(
            f"{place.time_limit_minutes} ends a start before workload.time_limit_s, "
            f"{workload.time_limit_s:.0f} s.",
            field="parameters.time_limit_minutes",
            hint="State one of them, or the same time in both.",
        )
    return request


def without_limit(request: PlanRequest, place: Parameters) -> PlanRequest:
    """The request without a time limit that came from this place."""
    workload = request.workload
    if not isinstance(workload, TrainingWorkload) or place.time_limit_minutes is None:
        return request
    if workload.time_limit_s != place.time_limit_minutes * SECONDS_PER_MINUTE:
        return request
    free = workload.model_copy(update={"time_limit_s": None})
    return request.model_copy(update={"workload": free})
