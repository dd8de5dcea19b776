"""Policies of autoscalers: their rules as pure functions, and batches of them at work.

One module a policy restates a project's documentation (docs/reference/autoscalers.md);
``defaults.yaml`` has its numbers with their sources, ``table.py`` what each knows, ``columns.py``
sliding means and maxima.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from recipe_core.base.errors import InputError
from recipe_core.request.scaling import Policy, Scaling, Trigger
from recipe_core.scaling.fleet import Controller
from recipe_core.scaling.policies.dynamo import Dynamo
from recipe_core.scaling.policies.hpa import Hpa
from recipe_core.scaling.policies.keda import Keda
from recipe_core.scaling.policies.kpa import Kpa
from recipe_core.scaling.policies.llm_d import LlmD
from recipe_core.scaling.policies.predictive import Predictive
from recipe_core.scaling.policies.ray_serve import RayServe
from recipe_core.scaling.policies.schedule import Fixed, Schedule
from recipe_core.scaling.policies.skyserve import SkyServe
from recipe_core.scaling.policies.table import FIELD, ROWS, check_scaling, default_triggers
from recipe_core.scaling.traces.loads import Load

__all__ = ["controller_of"]


@dataclass(frozen=True, slots=True)
class _PolicyInputs:
    """What a batch of policies is made from."""

    scalings: Sequence[Scaling]
    triggers: Sequence[Trigger]
    capacity_per_s: float
    start_s: float
    history: Load | None
    limits_s: Mapping[str, float] = field(default_factory=dict)


def controller_of(
    scalings: Sequence[Scaling],
    *,
    capacity_per_s: float,
    start_s: float,
    start_hour: int = 0,  # noqa: ARG001 - signals carry the hour
    history: Load | None = None,
    slots: int | None = None,
    limits_s: Mapping[str, float] | None = None,
) -> Controller:
    """Scalings of one policy at work, a column each, in their order.

    capacity_per_s: requests per second that one replica serves within the limits. start_s: of a
    cold start. start_hour: of the week at second 0; signals carry it too. history: the load before
    second 0, for forecasts. slots: requests in a replica at once, for triggers that are left out.
    limits_s: ``ttft_s`` and ``tpot_s`` of the objective, for Dynamo.

    Raises:
        InputError: a scaling states what its policy does not know, or needs a trigger and has none.
        ValueError: the scalings are of several policies, look at different intervals, or are none.
    """
    policies = {scaling.policy for scaling in scalings}
    if len(policies) != 1:
        raise ValueError(f"a batch has scalings of one policy, not of {sorted(policies)}")
    for scaling in scalings:
        check_scaling(scaling)
    (policy,) = policies
    triggers = default_triggers(policy, slots=slots, capacity_per_s=capacity_per_s)
    _check_triggered(scalings, triggers)
    inputs = _PolicyInputs(scalings, triggers, capacity_per_s, start_s, history, limits_s or {})
    return _MAKERS[policy](inputs)


def _check_triggered(scalings: Sequence[Scaling], triggers: Sequence[Trigger]) -> None:
    for scaling in scalings:
        if ROWS[scaling.policy].metrics and not (scaling.triggers or triggers):
            raise InputError(
                f"policy {scaling.policy} has no trigger to scale by.",
                field=f"{FIELD}.triggers",
                hint="State one, for example {metric: in-flight, target: 8}.",
            )


def _make_dynamo(inputs: _PolicyInputs) -> Controller:
    return Dynamo(inputs.scalings, inputs.capacity_per_s, inputs.limits_s)


def _make_predictive(inputs: _PolicyInputs) -> Controller:
    return Predictive(inputs.scalings, inputs.capacity_per_s, inputs.start_s, inputs.history)


_MAKERS: Mapping[Policy, Callable[[_PolicyInputs], Controller]] = {
    "fixed": lambda inputs: Fixed(inputs.scalings),
    "schedule": lambda inputs: Schedule(inputs.scalings),
    "predictive": _make_predictive,
    "hpa": lambda inputs: Hpa(inputs.scalings, inputs.triggers),
    "keda": lambda inputs: Keda(inputs.scalings, inputs.triggers),
    "kpa": lambda inputs: Kpa(inputs.scalings, inputs.triggers),
    "skyserve": lambda inputs: SkyServe(inputs.scalings, inputs.triggers),
    "ray-serve": lambda inputs: RayServe(inputs.scalings, inputs.triggers),
    "dynamo": _make_dynamo,
    "llm-d": lambda inputs: LlmD(inputs.scalings, inputs.triggers),
}
