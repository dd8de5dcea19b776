"""The policy ``skyserve`` as the replica policy of a SkyPilot service, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from recipe_core.base.errors import NoAnswer
from recipe_core.request.scaling import Metric, Scaling, Trigger
from recipe_core.scaling.policies.defaults import default_of
from recipe_core.targets.scale.bounds import (
    fewest_replicas,
    refuse_fields,
    refuse_policy,
    whole_seconds,
)
from recipe_core.targets.scale.metrics import only_trigger, triggers_of

WHERE = "SkyServe"
# SkyServe scales by requests per second, over a minute.
METRIC: Metric = "request-rate"
TIMES = {"up_delay_s": "upscale_delay_seconds", "down_delay_s": "downscale_delay_seconds"}
# What a service cannot change.
FIXED = {name: default_of("skyserve", name) for name in ("window_s", "interval_s")}


def sky_service_replicas(scaling: Scaling) -> dict[str, Any]:
    """The part of a service that sets its number of replicas.

    Raises:
        NoAnswer: for another policy, and for what SkyServe cannot be told.
    """
    refuse_policy(scaling, ("fixed", "skyserve"), WHERE)
    if scaling.policy == "fixed":
        return {"replicas": fewest_replicas(scaling)}
    refuse_fields(scaling, ("triggers", *TIMES, *FIXED), WHERE)
    for name, value in FIXED.items():
        if getattr(scaling, name) not in (None, value):
            raise NoAnswer(
                f"{name} is {getattr(scaling, name):g} s; SkyServe's is {value:g} s.",
                field=f"options.scaling.{name}",
                hint="Leave it out.",
            )
    (trigger, *more_triggers) = triggers_of(scaling)
    if more_triggers:
        only_trigger(scaling, WHERE)  # raises that it knows one metric
    if trigger.metric != METRIC:
        raise NoAnswer(
            f"{WHERE} scales by {METRIC}, not by {trigger.metric}.",
            field="options.scaling.triggers.0.metric",
        )
    times = {name: whole_seconds(scaling, field) for field, name in TIMES.items()}
    policy = {
        "min_replicas": scaling.min_replicas,
        "max_replicas": scaling.max_replicas,
        "target_qps_per_replica": trigger.target,
        **{name: seconds for name, seconds in times.items() if seconds is not None},
    }
    return {"replica_policy": policy}


def read_sky_service(service: Mapping[str, Any]) -> Scaling:
    """The policy that a service was written from."""
    if "replicas" in service:
        count = service["replicas"]
        return Scaling(policy="fixed", min_replicas=count, max_replicas=count)
    policy = service["replica_policy"]
    times = {field: policy[name] for field, name in TIMES.items() if name in policy}
    trigger = Trigger(metric=METRIC, target=policy["target_qps_per_replica"])
    return Scaling(
        policy="skyserve",
        min_replicas=policy["min_replicas"],
        max_replicas=policy["max_replicas"],
        triggers=(trigger,),
        **times,
    )
