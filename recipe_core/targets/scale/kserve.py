"""Policies as fields and annotations of KServe's InferenceService, and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from recipe_core.base.errors import NoAnswer
from recipe_core.request.scaling import Scaling, Trigger
from recipe_core.targets.context import Context
from recipe_core.targets.scale import kpa
from recipe_core.targets.scale.bounds import grain_target, refuse_fields, refuse_policy
from recipe_core.targets.scale.hpa import read_behavior, scaling_behavior
from recipe_core.targets.scale.metrics import (
    averaging_window_s,
    metric_query,
    read_metric_query,
    triggers_of,
)

MODE = "serving.kserve.io/deploymentMode"
CLASS = "serving.kserve.io/autoscalerClass"
# What KServe hands on to the ScaledObject that it makes.
_OF_KEDA = ("triggers", "window_s", "up_delay_s", "down_delay_s")


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
    refuse_policy(scaling, ("keda", "kpa"), "an InferenceService")
    bounds = {"minReplicas": scaling.min_replicas, "maxReplicas": scaling.max_replicas}
    if scaling.policy == "kpa":
        notes = {MODE: "Serverless", **kpa.revision_annotations(scaling)}
        return ServiceScaling(bounds, notes, knative=True)
    return ServiceScaling(
        {**bounds, "autoScaling": _auto_scaling(context, scaling)},
        {MODE: "RawDeployment", CLASS: "keda"},
    )


def _auto_scaling(context: Context, scaling: Scaling) -> dict[str, Any]:
    refuse_fields(scaling, _OF_KEDA, "KServe's ScaledObject")
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


def read_inference_service(service: Mapping[str, Any]) -> Scaling:
    """The policy that an InferenceService was written from."""
    notes, predictor = service["metadata"]["annotations"], service["spec"]["predictor"]
    if notes[MODE] == "Serverless":
        return kpa.read_annotations(notes)
    fields: dict[str, Any] = {
        "policy": "keda" if "autoScaling" in predictor else "fixed",
        "min_replicas": predictor["minReplicas"],
        "max_replicas": predictor["maxReplicas"],
    }
    scaled = predictor.get("autoScaling", {})
    triggers = []
    for entry in scaled.get("metrics", []):
        metric, window_s = read_metric_query(entry["external"]["metric"]["query"])
        target = float(entry["external"]["target"]["value"])
        triggers.append(Trigger(metric=metric, target=target))
        if window_s is not None:
            fields["window_s"] = window_s
    return Scaling(**fields, triggers=tuple(triggers), **read_behavior(scaled.get("behavior", {})))
