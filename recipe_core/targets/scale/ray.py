"""The policy ``ray-serve`` as a deployment's configuration, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from recipe_core.base.errors import NoAnswer
from recipe_core.request.scaling import Metric, Scaling, Trigger
from recipe_core.targets.scale.bounds import fewest_replicas, refuse_fields, refuse_policy
from recipe_core.targets.scale.metrics import only_trigger

WHERE = "Ray Serve"
# Ray Serve scales by requests that run or wait in a replica or on the way to it.
METRIC: Metric = "in-flight"
# By field of the policy: Ray's name (``AutoscalingConfig`` of Ray 2.5x).
TIMES = {
    "up_delay_s": "upscale_delay_s",
    "down_delay_s": "downscale_delay_s",
    "idle_s": "downscale_to_zero_delay_s",
    "window_s": "look_back_period_s",
    "interval_s": "metrics_interval_s",
}


def ray_deployment_replicas(scaling: Scaling) -> dict[str, Any]:
    """The part of a deployment's configuration that sets its number of replicas.

    Raises:
        NoAnswer: for another policy, and for what Ray Serve cannot be told.
    """
    refuse_policy(scaling, ("fixed", "ray-serve"), WHERE)
    if scaling.policy == "fixed":
        return {"num_replicas": fewest_replicas(scaling)}
    refuse_fields(scaling, ("triggers", *TIMES), WHERE)
    trigger = only_trigger(scaling, WHERE)
    if trigger is not None and trigger.metric != METRIC:
        raise NoAnswer(
            f"{WHERE} scales by {METRIC}, not by {trigger.metric}.",
            field="options.scaling.triggers.0.metric",
        )
    if scaling.window_s == 0:
        raise NoAnswer("Ray Serve averages over more than 0 s.", field="options.scaling.window_s")
    times = {name: getattr(scaling, field) for field, name in TIMES.items()}
    config = {
        "min_replicas": scaling.min_replicas,
        "max_replicas": scaling.max_replicas,
        **({"target_ongoing_requests": trigger.target} if trigger else {}),
        **{name: seconds for name, seconds in times.items() if seconds is not None},
    }
    return {"autoscaling_config": config}


def read_ray_deployment(config: Mapping[str, Any]) -> Scaling:
    """The policy that a deployment's configuration was written from."""
    if "num_replicas" in config:
        count = config["num_replicas"]
        return Scaling(policy="fixed", min_replicas=count, max_replicas=count)
    scaled = config["autoscaling_config"]
    times = {field: scaled[name] for field, name in TIMES.items() if name in scaled}
    triggers: tuple[Trigger, ...] = ()
    if "target_ongoing_requests" in scaled:
        triggers = (Trigger(metric=METRIC, target=scaled["target_ongoing_requests"]),)
    return Scaling(
        policy="ray-serve",
        min_replicas=scaled["min_replicas"],
        max_replicas=scaled["max_replicas"],
        triggers=triggers,
        **times,
    )
