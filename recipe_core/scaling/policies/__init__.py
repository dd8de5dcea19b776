"""Policies of autoscalers, as their own projects decide.

``controller_of`` is a policy at work on columns, each a fleet of its own: rules (``rules``), how
they settle on a number (``tracking``), numbers by the clock (``controller``) and by a forecast
(``predictive``), with the numbers of ``policies.yaml``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from recipe_core.base.errors import InputError
from recipe_core.request.scaling import Policy, Scaling
from recipe_core.scaling.fleet import Controller
from recipe_core.scaling.policies.controller import Fixed, Schedule
from recipe_core.scaling.policies.predictive import Dynamo, Predictive
from recipe_core.scaling.policies.rows import FIELD, check_scaling, default_triggers, policy_row
from recipe_core.scaling.policies.tracking import Behaved, Held, Kpa, Triggers
from recipe_core.scaling.traces.loads import Load

__all__ = ["BATCHES", "controller_of"]

# Policies that one controller decides together, in the order of their columns.
BATCHES: tuple[tuple[Policy, ...], ...] = (
    ("fixed",),
    ("schedule",),
    ("predictive",),
    ("hpa", "keda", "llm-d"),
    ("kpa",),
    ("skyserve", "ray-serve"),
    ("dynamo",),
)


def controller_of(
    scalings: Sequence[Scaling],
    *,
    capacity_per_s: float,
    start_s: float,
    history: Load | None = None,
    slots: int | None = None,
    limits_s: Mapping[str, float] | None = None,
) -> Controller:
    """Return scalings of one entry of ``BATCHES`` at work, a column each, in their order.

    Args:
        scalings: those of one policy stand together, in the order of the entry.
        capacity_per_s: requests per second that one replica serves within the limits.
        start_s: of a cold start.
        history: the load before second 0, for forecasts.
        slots: requests in a replica at once, for triggers that are left out.
        limits_s: ``ttft_s`` and ``tpot_s`` of the objective, for Dynamo.

    Raises:
        InputError: a scaling states what its policy does not know, or needs a trigger and has none.
        ValueError: the scalings are of several batches, look at different intervals, or are none.
    """
    policies = list(dict.fromkeys(scaling.policy for scaling in scalings))
    batch = next((batch for batch in BATCHES if policies and {*policies} <= {*batch}), ())
    if not batch or policies != [policy for policy in batch if policy in policies]:
        raise ValueError(f"a batch has scalings of one policy, not of {sorted(policies)}")
    triggers: Triggers = {
        policy: default_triggers(policy, slots=slots, capacity_per_s=capacity_per_s)
        for policy in policies
    }
    for scaling in scalings:
        check_scaling(scaling)
        if policy_row(scaling.policy).metrics and not (
            scaling.triggers or triggers[scaling.policy]
        ):
            raise InputError(
                f"policy {scaling.policy} has no trigger to scale by.",
                field=f"{FIELD}.triggers",
                hint="State one, for example {metric: in-flight, target: 8}.",
            )
    if "predictive" in batch:
        return Predictive(scalings, capacity_per_s, start_s, history)
    if "dynamo" in batch:
        return Dynamo(scalings, capacity_per_s, limits_s or {})
    if "fixed" in batch or "schedule" in batch:
        return Fixed(scalings) if "fixed" in batch else Schedule(scalings)
    if "kpa" in batch:
        return Kpa(scalings, triggers)
    return Held(scalings, triggers) if "skyserve" in batch else Behaved(scalings, triggers)
