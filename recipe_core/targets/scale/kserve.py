"""Policies as fields and annotations of KServe services, raw and on Knative."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from recipe_core.base.errors import NoAnswer
from recipe_core.request.scaling import Metric, Scaling, Trigger
from recipe_core.scaling.policies.rows import default_of
from recipe_core.targets.context import Context
from recipe_core.targets.scale.hpa import scaling_behavior
from recipe_core.targets.scale.policy import (
    averaging_window_s,
    grain_target,
    metric_query,
    only_trigger,
    refuse_fields,
    refuse_policy,
    shortest_number,
    triggers_of,
    whole_seconds,
)

WHERE = "Knative's autoscaler"
PREFIX = "autoscaling.knative.dev/"
METRICS: dict[Metric, str] = {"in-flight": "concurrency", "request-rate": "rps"}
LEAST_TARGET = 0.01
SHORTEST_WINDOW_S, LONGEST_S = 6, 3600
# Of Knative, and simulated; written since a cluster may have other defaults.
PANIC = {
    "panic-window-percentage": shortest_number(100 * default_of("kpa", "panic_window")),
    "panic-threshold-percentage": shortest_number(100 * default_of("kpa", "panic_threshold")),
}
# Fields of a pod that Knative refuses.
_FROM_POD = ("restartPolicy", "terminationGracePeriodSeconds", "deploymentStrategy")


def revision_annotations(scaling: Scaling) -> dict[str, str]:
    """The revision's annotations.

    Raises:
        NoAnswer: for what Knative cannot be told.
    """
    refuse_fields(scaling, WHERE)
    values = {
        "class": "kpa.autoscaling.knative.dev",
        **_target_annotations(only_trigger(scaling, WHERE)),
        "min-scale": str(scaling.min_replicas),
        "max-scale": str(scaling.max_replicas),
        "initial-scale": str(max(1, scaling.min_replicas)),
        **PANIC,
        **_time_annotations(scaling),
    }
    return {PREFIX + name: value for name, value in values.items()}


def _target_annotations(trigger: Trigger | None) -> dict[str, str]:
    if trigger is None:
        return {}
    if trigger.metric not in METRICS:
        raise NoAnswer(
            f"{WHERE} scales by {' or '.join(METRICS)}, not by {trigger.metric}.",
            field="options.scaling.triggers.0.metric",
        )
    if trigger.target < LEAST_TARGET:
        raise NoAnswer(
            f"{WHERE} takes targets of {LEAST_TARGET} or more.",
            field="options.scaling.triggers.0.target",
            hint=f"Set {LEAST_TARGET}.",
        )
    # Knative scales for a share of the target, of which the policy's is all.
    utilization = {"target-utilization-percentage": "100"}
    return {
        "metric": METRICS[trigger.metric],
        "target": shortest_number(trigger.target),
        **utilization,
    }


def _time_annotations(scaling: Scaling) -> dict[str, str]:
    window_s = whole_seconds(scaling, "window_s", most_s=LONGEST_S)
    if window_s is not None and window_s < SHORTEST_WINDOW_S:
        raise NoAnswer(
            f"window_s is {window_s} s; Knative averages over {SHORTEST_WINDOW_S} s or more.",
            field="options.scaling.window_s",
            hint=f"Set {SHORTEST_WINDOW_S}.",
        )
    times = {
        "window": window_s,
        "scale-down-delay": whole_seconds(scaling, "down_delay_s", most_s=LONGEST_S),
        "scale-to-zero-pod-retention-period": whole_seconds(scaling, "idle_s"),
    }
    return {name: f"{seconds}s" for name, seconds in times.items() if seconds is not None}


def without_refused(pod: Mapping[str, Any]) -> dict[str, Any]:
    """A pod as Knative takes it: its proxy drains requests, and it alone ends and restarts pods."""
    fields = {name: value for name, value in pod.items() if name not in _FROM_POD}
    containers = [
        {name: value for name, value in container.items() if name != "lifecycle"}
        for container in pod["containers"]
    ]
    return {**fields, "containers": containers}


MODE = "serving.kserve.io/deploymentMode"
CLASS = "serving.kserve.io/autoscalerClass"
# What KServe does not hand on to the ScaledObject that it makes.
_NOT_OF_KEDA = (
    "tolerance",
    "interval_s",
    "idle_s",
    "up_step",
    "up_period_s",
    "down_step",
    "down_period_s",
)


@dataclass(frozen=True, slots=True)
class ServiceScaling:
    """Fields of the predictor, annotations of the service, and whether Knative runs it."""

    fields: dict[str, Any]
    annotations: dict[str, str]
    knative: bool = False


def service_scaling(context: Context, count: int) -> ServiceScaling:
    """The request's policy; ``count`` servers where it has none, or a fixed number.

    Raises:
        NoAnswer: for a policy that KServe does not run, and for what it cannot be told.
    """
    scaling = context.scaling
    if scaling is None or scaling.policy == "fixed":
        bounds = {"minReplicas": count, "maxReplicas": count}
        return ServiceScaling(bounds, {MODE: "RawDeployment", CLASS: "none"})
    refuse_policy(scaling, "kserve", "an InferenceService")
    bounds = {"minReplicas": scaling.min_replicas, "maxReplicas": scaling.max_replicas}
    if scaling.policy == "kpa":
        notes = {MODE: "Serverless", **revision_annotations(scaling)}
        return ServiceScaling(bounds, notes, knative=True)
    return ServiceScaling(
        {**bounds, "autoScaling": _auto_scaling(context, scaling)},
        {MODE: "RawDeployment", CLASS: "keda"},
    )


def _auto_scaling(context: Context, scaling: Scaling) -> dict[str, Any]:
    refuse_fields(scaling, "KServe's ScaledObject", _NOT_OF_KEDA)
    if scaling.min_replicas == 0:
        raise NoAnswer(
            "min_replicas is 0; KServe's raw deployments keep a replica.",
            field="options.scaling.min_replicas",
            hint="Set 1, or use kubernetes-keda.",
        )
    window_s, server = averaging_window_s(scaling), context.parameters.prometheus
    metrics = [
        {
            "type": "External",
            "external": {
                "metric": {
                    "backend": "prometheus",
                    "serverAddress": server,
                    "query": metric_query(context, trigger.metric, window_s),
                },
                # KServe hands the value on as the threshold of one replica
                "target": {
                    "type": "Value",
                    "value": grain_target(
                        trigger.target, f"options.scaling.triggers.{index}.target"
                    ),
                },
            },
        }
        for index, trigger in enumerate(triggers_of(scaling))
    ]
    rules = scaling_behavior(scaling)
    return {"metrics": metrics, **({"behavior": rules} if rules else {})}
